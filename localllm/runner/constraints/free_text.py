"""Text of an answer that is not constrained, up to marks that end it, and the marks; it knows no grammar of content.

A mark may be a control token, which stands for no bytes in a constraint, or spelled in ordinary tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.expressions import Expression, Literal, Repeat, Terminal, TokenSet, sequence
from localllm.tokenizer import Tokenizer

BLANKS = b" \t\r\n"
MAX_BLANKS = 8
Table = npt.NDArray[np.int32]


def blanks(most: int = MAX_BLANKS) -> Expression:
    """A few blank characters, or none."""
    return Repeat(one_of(BLANKS), 0, most)


def one_of(characters: bytes) -> Expression:
    """One of these bytes."""
    table = np.full((2, 256), DEAD, np.int32)
    table[0, list(characters)] = 1
    return Terminal(_dfa(table, np.array([False, True])))


def text_without(avoided: Iterable[str], first: Iterable[str] = ()) -> Expression:
    """Any bytes in which none of the texts `avoided` occurs, and whose first character that is not blank is none of
    those in `first`."""
    table, is_match = _searching([text.encode() for text in avoided if text])
    table[is_match[table]] = DEAD
    forbidden = [byte for text in first for byte in text.encode()[:1]]
    if forbidden:
        table = _begun_otherwise(table, forbidden)
    return Terminal(_dfa(table, np.ones(len(table), bool)))


def text_up_to(end: str) -> Expression:
    """Any bytes that end with the first occurrence of a text."""
    table, is_match = _searching([end.encode()])
    table[is_match] = DEAD
    return Terminal(_dfa(table, is_match))


class Marks:
    """Texts as the tokens of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def expression(self, text: str) -> Expression:
        """A text, in which what are control tokens of the vocabulary are those tokens."""
        items: list[Expression] = []
        spelled = b""
        for token in self._tokenizer.encode(text, add_special=False, is_continuation=True):
            if self._tokenizer.is_control(token):
                items += [Literal(spelled)] if spelled else []
                items.append(TokenSet(frozenset((token,))))
                spelled = b""
            else:
                spelled += self._tokenizer.piece(token)
        items += [Literal(spelled)] if spelled or not items else []
        return sequence(*items)

    def is_control(self, text: str) -> bool:
        """Whether a text begins with a control token."""
        tokens = self._tokenizer.encode(text, add_special=False, is_continuation=True)
        return bool(tokens) and self._tokenizer.is_control(tokens[0])

    def up_to(self, end: str) -> Expression:
        """Any text and the first mark after it."""
        if self.is_control(end):
            return sequence(text_without([end]), self.expression(end))
        return text_up_to(end)


def _searching(texts: Sequence[bytes]) -> tuple[Table, npt.NDArray[np.bool_]]:
    """The automaton of Aho and Corasick: int32 [n_states, 256], and bool [n_states], where a text has just ended."""
    goto: list[dict[int, int]] = [{}]
    is_match = [False]
    for text in texts:
        state = 0
        for byte in text:
            if byte not in goto[state]:
                goto[state][byte] = len(goto)
                goto.append({})
                is_match.append(False)
            state = goto[state][byte]
        is_match[state] = True
    table = np.zeros((len(goto), 256), np.int32)
    fails = [0] * len(goto)
    waiting = deque([0])
    while waiting:  # a state's failure is less deep, so its row is there already
        state = waiting.popleft()
        is_match[state] |= is_match[fails[state]]
        if state:
            table[state] = table[fails[state]]
        for byte, after in goto[state].items():
            fails[after] = int(table[state, byte]) if state else 0
            table[state, byte] = after
            waiting.append(after)
    return table, np.array(is_match)


def _begun_otherwise(table: Table, forbidden: list[int]) -> Table:
    """The same, with a copy of each state before it in which only blanks have been read so far."""
    n = len(table)
    begun = np.where(table == DEAD, DEAD, table + n).astype(np.int32)
    start = begun.copy()
    start[:, list(BLANKS)] = table[:, list(BLANKS)]
    start[:, forbidden] = DEAD
    return np.concatenate([start, begun])


def _dfa(table: Table, accepting: npt.NDArray[np.bool_]) -> Dfa:
    """Without the states that nothing leads to, and with classes instead of bytes."""
    numbers = {0: 0}
    waiting = [0]
    while waiting:
        for after in np.unique(table[waiting.pop()]).tolist():
            if after != DEAD and after not in numbers:
                numbers[after] = len(numbers)
                waiting.append(after)
    kept = list(numbers)
    renumbered = np.full(len(table) + 1, DEAD, np.int32)
    renumbered[kept] = np.arange(len(kept))
    columns, classes = np.unique(renumbered[table[kept]], axis=1, return_inverse=True)
    return Dfa(classes.reshape(-1).astype(np.uint8), np.ascontiguousarray(columns, np.int32), accepting[kept])
