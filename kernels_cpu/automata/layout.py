"""What the compiled automaton finds at which word of its two records; it does not know who fills them.

A record is int64; a word is a number or the address of a table. `localllm.grammar.program` says what nodes, counters
and frames are, and `localllm.grammar.twin` what is computed here.
"""

from __future__ import annotations

# ------------------------------------------------------------------- an automaton
NODES, TARGETS, DELTA, RULES, ROOT = range(5)
"""int32 [n_nodes][4], [n], [n_rows][256], [n_rules][3] (start, whether it may be empty, rank); the number of a rule."""

N_STATES, MAX_STATES, N_CELLS, MAX_CELLS = range(5, 9)
STATES, STATE_CELLS, STATE_TABLE, FOLLOWING = range(9, 13)
"""int32 [max_states][4] (first cell, n, flags, mask); cells: int32 [max_cells][3] configurations; a hash table of
2 * max_states numbers of states; int32 [max_states][256]: the state after a byte, 0 none, UNKNOWN."""

N_FRAMES, MAX_FRAMES, N_PAIRS, MAX_PAIRS = range(13, 17)
FRAMES, PAIRS, FRAME_TABLE = range(17, 20)
"""int32 [max_frames][2] (first pair, n); int32 [max_pairs][3] what waits; a hash table of 2 * max_frames."""

WORK, LOG, KEPT, PICKED, CALLED, SEEN, STAMP, WAY = range(20, 28)
"""Scratch: int32 [WORK_CELLS][3] three times, [2 * WORK_CELLS][3], [WORK_CELLS][4]; [2 * WORK_CELLS][2] (stamp, index);
the last stamp; int32 [longest token + 2][2], the way from a trie's root (where a subtree ends, the state at it)."""

ROW_INFO, SET_BITS, WANTED = range(28, 31)
"""int64 [n_rows][4] (kind, bits, exits, n exits); uint32 [n_sets][mask_words]; what an
answer below 0 is about."""

MASKS, N_MASKS, MAX_MASKS = range(31, 34)
"""uint32 [max_masks][mask_words]: masks that are known."""

SPENT = 34
"""What the answer that is being found has cost, in units of about 3 ns."""

AUTOMATON_WORDS = 35

# ------------------------------------------------------------------- a vocabulary
MASK_WORDS, TRIE, N_TRIE, REST, N_REST = range(5)
"""uint32 words of a mask; int32 [n_trie][2] tries (byte and size << 8, token or -1) in preorder without the root: of
all tokens, and of those that are not plain."""

PLAIN, MOST_PLAIN, LONGEST = range(5, 8)
"""uint32 [most_plain + 1][mask_words]: tokens of at most so many plain characters; bytes of the longest token. Plain
characters are those that a JSON string has as they are."""

TOKEN_STARTS, TOKEN_BYTES, ENDS, N_ENDS, TWINS, N_TWINS = range(8, 14)
"""int32 [n_vocab + 1]; uint8; int32 [n] tokens that end the text; int32 [n][2] tokens with the same bytes."""

VOCABULARY_WORDS = 14

# ------------------------------------------------------------------- values
RETURN, RANGE, SPLIT, CALL, TABLE, LOOP, INC, TOKENS = range(8)
"""Operations of nodes."""

UNKNOWN = -1
DEAD = 0  # the state of nothing
WORK_CELLS = 1 << 14
MOST_SPENT = 1 << 26  # on one answer, so that no step of a batch waits much more than a quarter of a second for it

IS_COMPLETE, HAS_SETS = 1, 2  # flags of a state

# Kinds of rows: NARROW ones are walked; of WIDE ones the tokens are to be found once and for all; of KNOWN ones they
# are, of KNOWN_BY_REST too, whose exits are places in the trie of the rest; CHARACTER begins a JSON string's character.
NARROW, WIDE, KNOWN, KNOWN_BY_REST, CHARACTER = range(5)

START, TOKENS_AFTER, AFTER_TOKEN, AFTER_BYTES, FORCED, FILL_TABLES, KEEP_FRAME, KEEP_STATE = range(8)
"""What an automaton is asked; `ask.py` says with which arguments."""

GROW, TOO_MANY, WANT_ROW, WANT_MASKS, TOO_LONG = -2, -3, -4, -5, -6
"""Answers that are no states: more room is needed; too many readings of a text; the tokens of row WANTED are; room for
masks is; the answer costs more than MOST_SPENT."""
