"""A grammar and a vocabulary together: which tokens may come next. The states are kernels_cpu/automata's."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_cpu.automata import layout
from kernels_cpu.automata.ask import ask
from localllm.grammar.errors import GrammarError, TooComplexError
from localllm.grammar.expressions import Grammar
from localllm.grammar.lowering import lower
from localllm.grammar.program import Program
from localllm.grammar.regular import JSON_CHARACTER
from localllm.grammar.vocabulary import Mask, RowTokens, Vocabulary

FIRST_STATES, FIRST_CELLS, FIRST_FRAMES = 64, 4 * layout.WORK_CELLS, 64
MAX_STATES = 1 << 15
"""States that are kept, 1 KB each; at that many those that no matcher is in are forgotten."""
MAX_MASKS = 128
MAX_ROOM = (1 << 17, 1 << 23, 1 << 17, 1 << 23)
"""States, their configurations, frames, their pairs: 1 KB, 12 bytes, 8 bytes, 12 bytes each."""
MAX_KNOWN_BYTES = 32 << 20
"""Of tokens by rows of DFAs; at that many all are forgotten."""
MAX_BYTES = 1 << 12  # of a text that are read at a time
WIDE_BYTES = 32
"""A state of a DFA that goes on with so many bytes has its tokens computed once, wherever the DFA is used."""


Cells = npt.NDArray[np.int32]


class Constraint:
    """What a grammar allows, token by token. Its matchers are independent of one another.

    Not for several threads at once. Raises: GrammarError, TooComplexError.
    """

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self._program = program = lower(grammar)
        self.vocabulary = vocabulary
        self._record = np.zeros(layout.AUTOMATON_WORDS, np.int64)
        self._arrays: dict[int, npt.NDArray[Any]] = {}
        self._matchers: weakref.WeakSet[Matcher] = weakref.WeakSet()
        self.max_states = MAX_STATES
        self._known: dict[int, RowTokens] = {}
        self._known_bytes = 0
        self._put(layout.NODES, program.nodes)
        self._put(layout.TARGETS, program.targets)
        self._put(layout.DELTA, program.delta)
        self._put(layout.RULES, np.array([(r.start, r.is_nullable, r.rank) for r in program.rules], np.int32))
        self._record[layout.ROOT] = program.root
        self._put(layout.SET_BITS, self._set_bits(program))
        self._put(layout.ROW_INFO, self._row_info(program))
        for word in (layout.WORK, layout.LOG, layout.KEPT):
            self._put(word, np.empty((layout.WORK_CELLS, 3), np.int32))
        self._put(layout.PICKED, np.empty((2 * layout.WORK_CELLS, 3), np.int32))
        self._put(layout.CALLED, np.empty((layout.WORK_CELLS, 4), np.int32))
        self._put(layout.SEEN, np.zeros((2 * layout.WORK_CELLS, 2), np.int32))
        self._put(layout.WAY, np.empty((vocabulary.longest + 2, 2), np.int32))
        self._put(layout.MASKS, np.empty((MAX_MASKS, vocabulary.n_words), np.uint32))
        self._record[layout.MAX_MASKS] = MAX_MASKS
        self._make_pools(FIRST_STATES, FIRST_CELLS, FIRST_FRAMES, FIRST_CELLS)
        self.address = int(self._record.ctypes.data)
        self._start = self.answer(layout.START)

    def matcher(self) -> Matcher:
        """One text, at its beginning."""
        return Matcher(self, self._start)

    def enter(self, matcher: Matcher) -> None:
        """Know a matcher, whose state is kept from now on."""
        self._matchers.add(matcher)

    def answer(self, what: int, state: int = 0, a: int = 0, b: int = 0) -> int:
        """What the automaton says in the end, after what it wants has been made. Raises: TooComplexError."""
        if self._known_bytes > MAX_KNOWN_BYTES:  # here, so that all that one answer needs is there at once
            self._array(layout.ROW_INFO)[list(self._known), 0] = layout.WIDE
            self._known.clear()
            self._known_bytes = 0
        while (found := ask(what, self.address, self.vocabulary.address, state, a, b)) < 0:
            if found == layout.GROW:
                if not self._grow():
                    self.tidy()
                    most = f"{MAX_ROOM[0]:,} states, or {MAX_ROOM[1]:,} parts of them"
                    raise TooComplexError(f"what may come next needs more than {most}")
            elif found == layout.WANT_ROW:
                self._learn_row(int(self._record[layout.WANTED]))
                self._record[layout.SPENT] = 0  # each row is learnt once, and what came before it is done again
            elif found == layout.WANT_MASKS:
                self._array(layout.STATES)[:, 3] = layout.UNKNOWN
                self._record[layout.N_MASKS] = 0
            else:
                self._record[layout.SPENT] = 0
                if found == layout.TOO_LONG:
                    raise TooComplexError("what may come next takes too long to find")
                raise TooComplexError(f"the text can be read in more than {layout.WORK_CELLS:,} ways at once")
        return found

    @property
    def n_states(self) -> int:
        """How many states are known."""
        return int(self._record[layout.N_STATES])

    def flags(self, state: int) -> int:
        return int(self._array(layout.STATES)[state, 2])

    def has_more(self, state: int) -> bool:
        """Whether anything can follow."""
        return bool(self._array(layout.STATES)[state, 1])

    def _put(self, word: int, array: npt.NDArray[Any]) -> None:
        self._arrays[word] = array
        self._record[word] = array.ctypes.data

    def _array(self, word: int) -> npt.NDArray[Any]:
        return self._arrays[word]

    def _set_bits(self, program: Program) -> Mask:
        n_vocab = self.vocabulary.n_vocab
        bits = np.zeros((len(program.token_sets), self.vocabulary.n_words), np.uint32)
        for i, (ids, negated) in enumerate(program.token_sets):
            chosen = np.full(n_vocab, negated)
            chosen[[token for token in ids if 0 <= token < n_vocab]] = not negated
            chosen[list(self.vocabulary.eos_ids)] = False
            if not chosen.any():
                raise GrammarError(_nothing(ids, negated, n_vocab))
            bits[i] = self.vocabulary.mask_of(chosen)
        return bits

    def _row_info(self, program: Program) -> npt.NDArray[np.int64]:
        info = np.zeros((len(program.delta), 4), np.int64)
        info[:, 0] = np.where((program.delta >= 0).sum(axis=1) >= WIDE_BYTES, layout.WIDE, layout.NARROW)
        for row, dfa in program.dfas:
            if dfa.key == JSON_CHARACTER.key:
                info[row, 0] = layout.CHARACTER
        return info

    def _learn_row(self, row: int) -> None:
        dfas = self._program.dfas
        first, dfa = dfas[bisect.bisect_right(dfas, row, key=lambda owned: owned[0]) - 1]
        known = self.vocabulary.row_tokens(dfa, self._program.delta[first : first + dfa.n_states], row - first)
        info = self._array(layout.ROW_INFO)
        self._known[row] = known
        self._known_bytes += known.n_bytes
        kind = layout.KNOWN_BY_REST if known.by_rest else layout.KNOWN
        info[row] = kind, known.bits.ctypes.data, known.exits.ctypes.data, len(known.exits)

    # Pools

    def _make_pools(self, n_states: int, n_cells: int, n_frames: int, n_pairs: int) -> None:
        """Empty ones, with room for so many."""
        record = self._record
        record[[layout.N_STATES, layout.N_FRAMES]] = 1
        record[[layout.N_CELLS, layout.N_PAIRS, layout.N_MASKS]] = 0
        record[layout.MAX_STATES], record[layout.MAX_CELLS] = n_states, n_cells
        record[layout.MAX_FRAMES], record[layout.MAX_PAIRS] = n_frames, n_pairs
        self._put(layout.STATES, np.empty((n_states, 4), np.int32))
        self._array(layout.STATES)[0] = 0, 0, 0, layout.UNKNOWN
        self._put(layout.STATE_CELLS, np.empty((n_cells, 3), np.int32))
        self._put(layout.STATE_TABLE, np.zeros(2 * n_states, np.int32))
        self._put(layout.FOLLOWING, np.empty((n_states, 256), np.int32))
        self._array(layout.FOLLOWING)[0] = layout.DEAD
        self._put(layout.FRAMES, np.empty((n_frames, 2), np.int32))
        self._array(layout.FRAMES)[0] = 0
        self._put(layout.PAIRS, np.empty((n_pairs, 3), np.int32))
        self._put(layout.FRAME_TABLE, np.zeros(2 * n_frames, np.int32))

    def _grow(self) -> bool:
        """Twice the room, where half of it is used; False where there is all the room that may be."""
        record = self._record
        used = record[[layout.N_STATES, layout.N_CELLS, layout.N_FRAMES, layout.N_PAIRS]].tolist()
        room = record[[layout.MAX_STATES, layout.MAX_CELLS, layout.MAX_FRAMES, layout.MAX_PAIRS]].tolist()
        n_masks = int(record[layout.N_MASKS])
        more = [
            2 * most if 2 * n >= most < limit else most for n, most, limit in zip(used, room, MAX_ROOM, strict=True)
        ]
        if more == room:
            return False
        tables = (layout.STATES, layout.STATE_CELLS, layout.FRAMES, layout.PAIRS, layout.FOLLOWING)
        old = [self._array(word) for word in tables]
        self._make_pools(*more)
        record[[layout.N_STATES, layout.N_CELLS, layout.N_FRAMES, layout.N_PAIRS]] = used
        record[layout.N_MASKS] = n_masks
        for word, table, n in zip(tables, old, [*used, used[0]], strict=True):
            self._array(word)[:n] = table[:n]
        ask(layout.FILL_TABLES, self.address, 0, 0, 0, 0)
        return True

    def tidy(self) -> None:
        """Forget the states that no matcher is in, once there are more than `max_states`."""
        cells = self._array(layout.STATE_CELLS)
        frames, pairs = self._array(layout.FRAMES), self._array(layout.PAIRS)
        live = sorted({self._start, *(matcher.state for matcher in self._matchers)} - {layout.DEAD})
        spans = {state: self._array(layout.STATES)[state, :3].tolist() for state in live}
        used = np.zeros(len(frames), np.bool_)
        for first, n, _ in spans.values():
            used[cells[first : first + n, 2]] = True
        for frame in range(len(frames) - 1, 0, -1):  # a frame comes after those that it waits in
            if used[frame]:
                used[pairs[frames[frame, 0] :][: frames[frame, 1], 2]] = True
        self._make_pools(FIRST_STATES, FIRST_CELLS, FIRST_FRAMES, FIRST_CELLS)
        numbers = np.zeros(len(frames), np.int32)
        for frame in (np.flatnonzero(used[1:]) + 1).tolist():
            numbers[frame] = self._kept(layout.KEEP_FRAME, pairs[frames[frame, 0] :][: frames[frame, 1]], numbers)
        moved = {layout.DEAD: layout.DEAD}
        for state, (first, n, flags) in spans.items():
            moved[state] = self._kept(layout.KEEP_STATE, cells[first : first + n], numbers, flags)
        self._start = moved[self._start]
        for matcher in self._matchers:
            matcher.state = moved[matcher.state]
        self._record[layout.SPENT] = 0
        if int(self._record[layout.N_STATES]) > self.max_states // 2:
            self.max_states *= 2

    def _kept(self, what: int, old: Cells, numbers: Cells, flags: int = 0) -> int:
        """The new number of a frame or state that was made of these cells, whose frames have new `numbers`."""
        cells = old.copy()
        cells[:, 2] = numbers[cells[:, 2]]
        return self.answer(what, flags, cells.ctypes.data, len(cells))


class Matcher:
    """One text on its way through a constraint."""

    def __init__(self, constraint: Constraint, state: int) -> None:
        self._constraint = constraint
        self.state = state
        self._is_ended = False
        self._ask = ask.load()
        self._m, self._v = constraint.address, constraint.vocabulary.address
        self._out: Mask | None = None
        self._out_address = 0
        constraint.enter(self)

    def fill_mask(self, out: Mask) -> None:
        """The tokens that may follow, into uint32 [n_words], C-contiguous: bit t % 32 of word t // 32 is token t.

        Raises: TooComplexError.
        """
        if self._is_ended:
            out[:] = 0
            return
        if out is not self._out:
            self._out, self._out_address = out, out.ctypes.data
        if self._ask(layout.TOKENS_AFTER, self._m, self._v, self.state, self._out_address, 0) < 0:
            self._constraint.answer(layout.TOKENS_AFTER, self.state, self._out_address)

    def accept(self, token: int) -> bool:
        """Take a token; where it does not fit (False) nothing changes. Raises: TooComplexError."""
        vocabulary = self._constraint.vocabulary
        if self._is_ended:
            return False
        if token in vocabulary.eos_ids:
            self._is_ended = self.is_complete()
            return self._is_ended
        if not 0 <= token < vocabulary.n_vocab:
            return False
        state = self._ask(layout.AFTER_TOKEN, self._m, self._v, self.state, token, 0)
        return self._move(state if state >= 0 else self._constraint.answer(layout.AFTER_TOKEN, self.state, token))

    def accept_bytes(self, data: bytes) -> bool:
        """Take a text; where it does not fit (False) nothing changes. Raises: TooComplexError."""
        if self._is_ended:
            return not data
        ahead = self.clone()
        for start in range(0, len(data), MAX_BYTES):
            text = np.frombuffer(data[start : start + MAX_BYTES], np.uint8)
            if not ahead._move(self._constraint.answer(layout.AFTER_BYTES, ahead.state, text.ctypes.data, len(text))):
                return False
        self.state = ahead.state
        return True

    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return bool(self._constraint.flags(self.state) & layout.IS_COMPLETE)

    def is_finished(self) -> bool:
        """Whether the text ends here: nothing can follow, or its end was accepted."""
        return self._is_ended or (self.is_complete() and not self._constraint.has_more(self.state))

    def forced_bytes(self, limit: int = 1024) -> bytes:
        """What must follow, whatever follows later, up to `limit` bytes: nothing where there is a choice, or where the
        text may end. Raises: TooComplexError."""
        if self._is_ended:
            return b""
        out = np.empty(limit, np.uint8)
        n = self._constraint.answer(layout.FORCED, self.state, out.ctypes.data, limit)
        return out[:n].tobytes()

    def n_accepted(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, one after another, would be accepted; nothing changes. Raises: TooComplexError."""
        draft = self.clone()
        return next((i for i, token in enumerate(tokens) if not draft.accept(token)), len(tokens))

    def clone(self) -> Matcher:
        """Another text with the same beginning."""
        other = Matcher(self._constraint, self.state)
        other._is_ended = self._is_ended
        return other

    def _move(self, state: int) -> bool:
        if state == layout.DEAD:
            return False
        self.state = state
        if state >= self._constraint.max_states:
            self._constraint.tidy()
        return True


def _nothing(ids: frozenset[int], negated: bool, n_vocab: int) -> str:
    """Why no token of a vocabulary is in a set."""
    if negated or not ids:
        return "a set of tokens has none that may be written"
    if not any(0 <= token < n_vocab for token in ids):
        return f"there is no token {min(ids)} (there are {n_vocab:,})"
    return f"token {min(ids)} ends a text, so it cannot be within one"
