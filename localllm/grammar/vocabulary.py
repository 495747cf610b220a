"""The tokens of a model as bytes, in the tables that finding allowed tokens needs; of grammars it knows nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernels_cpu.automata import layout
from kernels_cpu.automata.tokens import row_tokens
from kernels_cpu.automata.vocabularies import PLACES, build_trie, plain_rows
from localllm.grammar.dfa import Dfa
from localllm.grammar.errors import TooComplexError

Mask = npt.NDArray[np.uint32]

MAX_ROWS_BYTES = 64 << 20
"""Of known tokens by rows of DFAs; at that many all are forgotten."""
MAX_TRIE = 1 << 23  # nodes: the size of a subtree has 23 bits
MAX_PLAIN = 256
"""Characters of a token that is known by their number alone; longer ones are found by their bytes."""

# Within a character of UTF-8: at its beginning, one, two, three bytes before its end, after E0, ED, F0, F4, E2, E2 80.
_FIRST, _ONE, _TWO, _THREE, _E0, _ED, _F0, _F4, _E2, _E280 = range(PLACES)


@dataclass(frozen=True, eq=False)
class RowTokens:
    """Of a DFA in a row: `bits`, the tokens that stay within it; `exits`, int32, places in a trie where it may be left:
    the trie of all tokens, or, `by_rest`, of those that are not plain."""

    bits: Mask
    exits: npt.NDArray[np.int32]
    by_rest: bool

    @property
    def n_bytes(self) -> int:
        return self.bits.nbytes + self.exits.nbytes


class Vocabulary:
    """pieces: the bytes of each token. Those of `special_ids` and `eos_ids` match no bytes, whatever theirs are;
    `eos_ids` are allowed where a text may end.

    Not for several threads at once. Raises: TooComplexError where its tokens are too long.
    """

    def __init__(self, pieces: Sequence[bytes], eos_ids: Collection[int], special_ids: Collection[int] = ()) -> None:
        self.n_vocab = len(pieces)
        self.n_words = -(-self.n_vocab // 32)
        self.eos_ids = frozenset(token for token in eos_ids if 0 <= token < self.n_vocab)
        controls = self.eos_ids.union(special_ids)
        self._pieces = [b"" if token in controls else piece for token, piece in enumerate(pieces)]
        self._held: list[npt.NDArray[Any]] = []
        self.record = np.zeros(layout.VOCABULARY_WORDS, np.int64)
        self.longest = max(map(len, self._pieces), default=0)
        self._fill()
        self._rows: dict[tuple[bytes, int], RowTokens] = {}
        self._rows_bytes = 0
        self._plain_rows: dict[bytes, npt.NDArray[np.uint8]] = {}
        self._exits = np.empty(max(self._n_trie, 1), np.int32)
        self._way = np.empty((self.longest + 2, 2), np.int32)
        self.address = int(self.record.ctypes.data)

    def mask_of(self, ids: npt.NDArray[np.bool_]) -> Mask:
        """bool [n_vocab] as bits: uint32 [n_words]."""
        padded = np.zeros(32 * self.n_words, np.bool_)
        padded[: len(ids)] = ids
        return np.packbits(padded, bitorder="little").view(np.uint32)

    def row_tokens(self, dfa: Dfa, delta: npt.NDArray[np.int32], row: int) -> RowTokens:
        """What is known of a DFA in a row; delta: int32 [n_states, 256], its own."""
        found = self._rows.get((dfa.key, row))
        if found is None:
            if self._rows_bytes > MAX_ROWS_BYTES:
                self._rows.clear()
                self._plain_rows.clear()
                self._rows_bytes = 0
            found = self._rows[dfa.key, row] = self._find_row(dfa, delta, row)
            self._rows_bytes += found.n_bytes
        return found

    def _find_row(self, dfa: Dfa, delta: npt.NDArray[np.int32], row: int) -> RowTokens:
        accepting = dfa.accepting.view(np.uint8)
        by_rest = bool(self._plain_rows_of(dfa)[row])
        trie, n_trie = (self._rest, self._n_rest) if by_rest else (self._trie, self._n_trie)
        bits = self._plain[-1].copy() if by_rest else np.zeros(self.n_words, np.uint32)
        n = row_tokens(
            trie.ctypes.data,
            n_trie,
            delta.ctypes.data,
            accepting.ctypes.data,
            row,
            self._way.ctypes.data,
            bits.ctypes.data,
            self._exits.ctypes.data,
            len(self._exits),
        )
        return RowTokens(bits, self._exits[:n].copy(), by_rest)

    def _plain_rows_of(self, dfa: Dfa) -> npt.NDArray[np.uint8]:
        found = self._plain_rows.get(dfa.key)
        if found is None:
            alive = np.empty((dfa.n_states, PLACES), np.uint8)
            seen, ways = np.zeros((PLACES, 256, PLACES), np.uint8), np.empty(2 * PLACES * 257, np.int32)
            after = np.ascontiguousarray(dfa.next)
            plain_rows(
                after.ctypes.data,
                *after.shape,
                dfa.classes.ctypes.data,
                _PLAIN_BYTES.ctypes.data,
                seen.ctypes.data,
                ways.ctypes.data,
                alive.ctypes.data,
            )
            found = self._plain_rows[dfa.key] = np.ascontiguousarray(alive[:, 0])
        return found

    def _fill(self) -> None:
        pieces = self._pieces
        if sum(map(len, pieces)) >= MAX_TRIE:
            raise TooComplexError(f"the tokens of the vocabulary have {MAX_TRIE:,} bytes or more")
        starts = np.zeros(self.n_vocab + 1, np.int32)
        np.cumsum([len(piece) for piece in pieces], out=starts[1:])
        data = np.frombuffer(b"".join(pieces) + b"\0", np.uint8)
        order = sorted((token for token in range(self.n_vocab) if pieces[token]), key=pieces.__getitem__)
        n_plain = _n_plain_characters(pieces)
        self._trie, self._n_trie, twins = self._trie_of(order, data, starts)
        rest = [token for token in order if n_plain[token] < 0]
        self._rest, self._n_rest, _ = self._trie_of(rest, data, starts)
        most_plain = int(n_plain.max(initial=0))
        self._plain = np.stack([self.mask_of((n_plain > 0) & (n_plain <= k)) for k in range(most_plain + 1)])
        ends = np.array(sorted(self.eos_ids), np.int32)
        self._put(layout.MASK_WORDS, self.n_words)
        self._put(layout.TRIE, self._trie)
        self._put(layout.N_TRIE, self._n_trie)
        self._put(layout.REST, self._rest)
        self._put(layout.N_REST, self._n_rest)
        self._put(layout.PLAIN, self._plain)
        self._put(layout.MOST_PLAIN, most_plain)
        self._put(layout.LONGEST, self.longest)
        self._put(layout.TOKEN_STARTS, starts)
        self._put(layout.TOKEN_BYTES, data)
        self._put(layout.ENDS, ends)
        self._put(layout.N_ENDS, len(ends))
        self._put(layout.TWINS, twins)
        self._put(layout.N_TWINS, len(twins))

    def _put(self, word: int, value: int | npt.NDArray[Any]) -> None:
        if not isinstance(value, int):
            self._held.append(value)
            value = int(value.ctypes.data)
        self.record[word] = value

    def _trie_of(
        self, order: list[int], data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], int, npt.NDArray[np.int32]]:
        """The trie of tokens in the order of their bytes, the number of its nodes, and pairs of equal tokens."""
        ids = np.array(order, np.int32)
        spans = np.stack([starts[ids], starts[ids + 1] - starts[ids]], axis=1).astype(np.int32)
        nodes = np.empty((int(spans[:, 1].sum()) + 1, 2), np.int32)
        way, twins = np.empty(self.longest + 1, np.int32), np.empty((len(ids) + 1, 2), np.int32)
        counts = build_trie(
            data.ctypes.data,
            spans.ctypes.data,
            ids.ctypes.data,
            len(ids),
            nodes.ctypes.data,
            way.ctypes.data,
            twins.ctypes.data,
        )
        n_nodes = counts & 0xFFFFFFFF
        return nodes[:n_nodes].copy(), n_nodes, twins[: counts >> 32].copy()


def _n_plain_characters(pieces: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """How many characters a token has, -1 where one of them is not plain or not whole, or there are more than
    MAX_PLAIN: int32 [n_vocab]."""
    found = np.full(len(pieces), -1, np.int32)
    for token, piece in enumerate(pieces):
        if piece and piece.translate(None, _NOT_PLAIN) == piece and not any(end in piece for end in _LINE_ENDS):
            try:
                n = len(piece.decode())
            except UnicodeDecodeError:
                continue
            found[token] = n if n <= MAX_PLAIN else -1
    return found


_NOT_PLAIN: Final = bytes([*range(0x20), ord('"'), ord("\\")])
# Not plain either, so that all that `.` stands for in a pattern is plain.
_LINE_ENDS: Final = ("\u2028".encode(), "\u2029".encode())


def _plain_bytes() -> npt.NDArray[np.int32]:
    """The places within a character, as `plain_rows` takes them."""
    table = np.full((PLACES, 256), -1, np.int32)
    table[_FIRST, 0x20:0x80] = _FIRST
    table[_FIRST, list(_NOT_PLAIN)] = -1
    table[_FIRST, 0xC2:0xE0] = _ONE
    table[_FIRST, 0xE1:0xF0] = _TWO
    table[_FIRST, 0xF1:0xF4] = _THREE
    table[_FIRST, [0xE0, 0xE2, 0xED, 0xF0, 0xF4]] = [_E0, _E2, _ED, _F0, _F4]
    table[_ONE, 0x80:0xC0] = _FIRST
    table[_TWO, 0x80:0xC0] = _ONE
    table[_THREE, 0x80:0xC0] = _TWO
    table[_E0, 0xA0:0xC0] = _ONE
    table[_ED, 0x80:0xA0] = _ONE
    table[_F0, 0x90:0xC0] = _TWO
    table[_F4, 0x80:0x90] = _TWO
    table[_E2, 0x80:0xC0] = _ONE
    table[_E2, 0x80] = _E280
    table[_E280, 0x80:0xC0] = _FIRST
    table[_E280, [end[2] for end in _LINE_ENDS]] = -1
    return table


_PLAIN_BYTES: Final = _plain_bytes()
