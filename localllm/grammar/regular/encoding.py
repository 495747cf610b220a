"""Automata over bytes for automata over letters: as UTF-8, and as the text of JSON strings.

The bytes that spell the letters are laid out once, as a tree whose leaves are classes of letters. A state over letters
becomes the tree's root with the states that follow it as leaves; the nodes below are made once for all states whose
leaves they share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular import charsets
from localllm.grammar.regular.automaton import Automaton

MAX_STATES = 60_000

# (first, last, target) of bytes or code points. A target is a node, or the complement (~) of a class of letters.
Arc: TypeAlias = tuple[int, int, int]

# Code points of as many bytes: first, last, the bits of the lead byte that are always there, bits that follow.
_FORMS = ((0x80, 0x7FF, 0xC0, 6), (0x800, 0xFFFF, 0xE0, 12), (0x10000, 0x10FFFF, 0xF0, 18))
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}
_QUOTE, _BACKSLASH = 0x22, 0x5C


@dataclass
class Tree:
    """How letters are spelled. root: arcs of bytes; nodes: arcs by node, whose targets are nodes of lower number;
    leaves: the classes below each node, sorted."""

    root: list[Arc] = field(default_factory=list)
    nodes: list[tuple[Arc, ...]] = field(default_factory=list)
    leaves: list[tuple[int, ...]] = field(default_factory=list)
    _known: dict[tuple[Arc, ...], int] = field(default_factory=dict)

    def node(self, arcs: Iterable[Arc]) -> int:
        """The one node that has exactly these arcs."""
        key = tuple(arcs)
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(key)
            below = ((~t,) if t < 0 else self.leaves[t] for _, _, t in key)
            self.leaves.append(tuple(sorted({c for found in below for c in found})))
        return self._known[key]

    def add_characters(self, arcs: list[Arc]) -> None:
        """Arcs of code points to classes, sorted and without surrogates, as the bytes of UTF-8."""
        self.root += [(a, min(b, 0x7F), t) for a, b, t in arcs if a <= 0x7F]
        for first, last, lead, n_bits in _FORMS:
            within = [(max(a, first), min(b, last), t) for a, b, t in arcs if a <= last and b >= first]
            self.root += self._split(within, n_bits, lead)

    def _split(self, arcs: list[Arc], n_bits: int, base: int) -> list[Arc]:
        """Arcs of the byte that holds the bits from n_bits on."""
        if n_bits == 0:
            return [(base | a, base | b, t) for a, b, t in arcs]
        size = 1 << n_bits
        by_byte: list[tuple[int, int, list[Arc]]] = []
        for a, b, t in arcs:
            while a <= b:
                byte, low = a >> n_bits, a & size - 1
                if low == 0 and b - a >= size - 1:
                    last = (b + 1 >> n_bits) - 1
                    by_byte.append((byte, last, [(0, size - 1, t)]))
                    a = last + 1 << n_bits
                    continue
                end = min(b, a | size - 1)
                if not by_byte or by_byte[-1][1] != byte:
                    by_byte.append((byte, byte, []))
                by_byte[-1][2].append((low, end & size - 1, t))
                a = end + 1
        return [(base | a, base | b, self.node(self._split(x, n_bits - 6, 0x80))) for a, b, x in by_byte]


def _arcs(automaton: Automaton) -> list[Arc]:
    """The arcs of code points to classes, in order; without the classes after which no word goes on."""
    dead = {c for c, targets in enumerate(zip(*automaton.rows, strict=True)) if all(t == DEAD for t in targets)}
    found = []
    for first, last, c in automaton.intervals():
        if c in dead:
            continue
        if first < charsets.FIRST_SURROGATE <= last:
            found.append((first, charsets.FIRST_SURROGATE - 1, ~c))
            first = charsets.FIRST_SURROGATE
        found.append((charsets.code_point(first), charsets.code_point(last), ~c))
    return found


def utf8_dfa(automaton: Automaton) -> Dfa:
    """The UTF-8 of a language's words."""
    tree = Tree()
    tree.add_characters(_arcs(automaton))
    return _planted(tree, automaton, is_quoted=False)


def json_dfa(automaton: Automaton, *, is_quoted: bool = True) -> Dfa:
    """The JSON text of a language's words in canonical spelling, with the quotes or without.

    Canonical: characters as themselves; `"`, a backslash and controls as their short escapes; controls that have none
    as \\u00XX, with hexadecimal digits of either case.
    """
    tree = Tree()
    arcs = _arcs(automaton)
    tree.add_characters(_plain(arcs))
    _add_escapes(tree, arcs)
    return _planted(tree, automaton, is_quoted=is_quoted)


def _plain(arcs: list[Arc]) -> list[Arc]:
    """The arcs of characters that stand for themselves in JSON."""
    return [
        (max(first, low), min(last, high), target)
        for first, last, target in arcs
        for low, high in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
        if first <= high and last >= low
    ]


def _add_escapes(tree: Tree, arcs: list[Arc]) -> None:
    escapes: list[Arc] = []
    longer: dict[int, list[Arc]] = {}
    for first, last, target in arcs:
        if first > _BACKSLASH:
            break
        for code in range(first, min(last, 0x1F) + 1):
            if code in _SHORT:
                escapes.append((ord(_SHORT[code]), ord(_SHORT[code]), target))
                continue
            for digit in {f"{code % 16:x}", f"{code % 16:X}"}:
                longer.setdefault(code // 16, []).append((ord(digit), ord(digit), target))
        escapes += [(code, code, target) for code in (_QUOTE, _BACKSLASH) if first <= code <= last]
    if longer:
        tens = [(0x30 + ten, 0x30 + ten, tree.node(sorted(digits))) for ten, digits in sorted(longer.items())]
        zeros = tree.node([(0x30, 0x30, tree.node([(0x30, 0x30, tree.node(tens))]))])
        escapes.append((ord("u"), ord("u"), zeros))
    if escapes:
        tree.root.append((_BACKSLASH, _BACKSLASH, tree.node(sorted(escapes))))


def _planted(tree: Tree, automaton: Automaton, *, is_quoted: bool) -> Dfa:
    """The automaton over bytes that has a tree for each state over letters. The first of these is its start; or,
    `is_quoted`, there is one before it and one after the accepting ones."""
    if automaton.is_empty:
        return Dfa(np.zeros(256, np.uint8), np.full((1, 1), DEAD, np.int32), np.zeros(1, np.bool_))
    offset = int(is_quoted)
    n = automaton.n_states + 2 * offset
    bounds = {0, _QUOTE, _QUOTE + 1} if is_quoted else {0}
    bounds |= {x for arcs in (tree.root, *tree.nodes) for a, b, _ in arcs for x in (a, b + 1) if x < 256}
    columns = {bound: i for i, bound in enumerate([*sorted(bounds), 256])}
    # By class, and after the classes by node, what follows in each state over letters.
    following = [np.where(column == DEAD, DEAD, column + offset) for column in np.ascontiguousarray(automaton.next.T)]
    tables = [np.full((n, len(bounds)), DEAD, dtype=np.int32)]
    nodes: list[npt.NDArray[np.int32]] = []
    n_states = n
    for arcs, leaves in zip(tree.nodes, tree.leaves, strict=True):
        states, chosen = _told_apart([following[c] for c in leaves], n_states)
        nodes.append(states)
        table = np.full((len(chosen), len(bounds)), DEAD, dtype=np.int32)
        for a, b, target in arcs:
            table[:, columns[a] : columns[b + 1]] = (following[~target] if target < 0 else nodes[target])[chosen, None]
        tables.append(table)
        n_states += len(chosen)
        if n_states > MAX_STATES:
            raise TooComplexError(f"a pattern needs more than {MAX_STATES} states over bytes")
    own = tables[0][offset : offset + automaton.n_states]
    for a, b, target in tree.root:
        own[:, columns[a] : columns[b + 1]] = (following[~target] if target < 0 else nodes[target])[:, None]
    accepting = np.zeros(n_states, dtype=np.bool_)
    if is_quoted:
        tables[0][0, columns[_QUOTE]] = offset
        own[automaton.accepting, columns[_QUOTE]] = n - 1
        accepting[n - 1] = True
    else:
        accepting[:n] = automaton.accepting
    return _dfa(np.vstack(tables), sorted(bounds), accepting)


def _told_apart(
    following: list[npt.NDArray[np.int32]], first: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The states of a node below each state over letters, given what follows in them at its leaves: numbers from
    `first` on, equal where all that follows is, DEAD where nothing does. And one state over letters for each number."""
    numbers: dict[tuple[int, ...], int] = {(DEAD,) * len(following): DEAD}
    states: list[int] = []
    chosen: list[int] = []
    for s, key in enumerate(zip(*[column.tolist() for column in following], strict=True)):
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = first + len(chosen)
            chosen.append(s)
        states.append(number)
    return np.array(states, dtype=np.int32), np.array(chosen, dtype=np.int32)


def _dfa(table: npt.NDArray[np.int32], bounds: list[int], accepting: npt.NDArray[np.bool_]) -> Dfa:
    """Of a table whose columns are ranges of bytes, beginning at `bounds`."""
    numbers: dict[bytes, int] = {}
    alike = [numbers.setdefault(c.tobytes(), len(numbers)) for c in np.ascontiguousarray(table.T)]
    firsts = [alike.index(c) for c in range(len(numbers))]
    classes = np.repeat(np.array(alike, dtype=np.uint8), np.diff([*bounds, 256]))
    return Dfa(classes, np.ascontiguousarray(table[:, firsts]), accepting)
