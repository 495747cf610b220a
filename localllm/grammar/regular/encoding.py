"""Automata over bytes for automata over letters: as UTF-8, and as the text of JSON strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular import charsets
from localllm.grammar.regular.automaton import Automaton

MAX_STATES = 60_000

# (first, last, state after it), of bytes or of code points
Arc: TypeAlias = tuple[int, int, int]

# Code points of as many bytes: first, last, the bits of the lead byte that are always there, bits that follow.
_FORMS = ((0x80, 0x7FF, 0xC0, 6), (0x800, 0xFFFF, 0xE0, 12), (0x10000, 0x10FFFF, 0xF0, 18))
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}


class Builder:
    """States over bytes, as lists of arcs."""

    def __init__(self) -> None:
        self.arcs: list[list[Arc]] = []
        self.accepting: set[int] = set()
        self._known: dict[tuple[Arc, ...], int] = {}

    def state(self) -> int:
        """A new state without arcs."""
        if len(self.arcs) >= MAX_STATES:
            raise TooComplexError(f"a pattern needs more than {MAX_STATES} states over bytes")
        self.arcs.append([])
        return len(self.arcs) - 1

    def shared(self, arcs: Iterable[Arc]) -> int:
        """The one state that has exactly these arcs."""
        key = tuple(arcs)
        if key not in self._known:
            self._known[key] = self.state()
            self.arcs[self._known[key]] = list(key)
        return self._known[key]

    def add_characters(self, state: int, arcs: Iterable[Arc]) -> None:
        """Arcs of code points from a state, sorted and without surrogates, as the bytes of UTF-8."""
        arcs = list(arcs)
        self.arcs[state] += [(a, min(b, 0x7F), t) for a, b, t in arcs if a <= 0x7F]
        for first, last, lead, n_bits in _FORMS:
            within = [(max(a, first), min(b, last), t) for a, b, t in arcs if a <= last and b >= first]
            self.arcs[state] += self._split(within, n_bits, lead)

    def _split(self, arcs: list[Arc], n_bits: int, base: int) -> list[Arc]:
        """Arcs of the byte that holds the bits from n_bits on."""
        if n_bits == 0:
            return [(base | a, base | b, t) for a, b, t in arcs]
        size = 1 << n_bits
        found: list[Arc] = []
        by_byte: list[tuple[int, list[Arc]]] = []
        for a, b, t in arcs:
            begin, end = a >> n_bits, b >> n_bits
            if begin == end:
                _append(by_byte, begin, (a & size - 1, b & size - 1, t))
                continue
            if a & size - 1:
                _append(by_byte, begin, (a & size - 1, size - 1, t))
                begin += 1
            whole_end = end if b & size - 1 == size - 1 else end - 1
            if begin <= whole_end:
                self._flush(by_byte, n_bits, base, found)
                found.append((base | begin, base | whole_end, self._after([(0, size - 1, t)], n_bits)))
            if whole_end < end:
                _append(by_byte, end, (0, b & size - 1, t))
        self._flush(by_byte, n_bits, base, found)
        return found

    def _flush(self, by_byte: list[tuple[int, list[Arc]]], n_bits: int, base: int, found: list[Arc]) -> None:
        found += [(base | byte, base | byte, self._after(arcs, n_bits)) for byte, arcs in by_byte]
        by_byte.clear()

    def _after(self, arcs: list[Arc], n_bits: int) -> int:
        return self.shared(self._split(arcs, n_bits - 6, 0x80))

    def dfa(self, start: int) -> Dfa:
        """What is built, from a state that has all others after it."""
        bounds = sorted({0} | {x for arcs in self.arcs for a, b, _ in arcs for x in (a, b + 1) if x < 256})
        column = {bound: i for i, bound in enumerate([*bounds, 256])}
        table = np.full((len(self.arcs), len(bounds)), DEAD, dtype=np.int32)
        for state, arcs in enumerate(self.arcs):
            row = table[state]
            for a, b, target in arcs:
                row[column[a] : column[b + 1]] = target
        numbers: dict[bytes, int] = {}
        alike = [numbers.setdefault(c.tobytes(), len(numbers)) for c in np.ascontiguousarray(table.T)]
        firsts = [alike.index(c) for c in range(len(numbers))]
        classes = np.repeat(np.array(alike, dtype=np.uint8), np.diff([*bounds, 256]))
        order = np.arange(len(self.arcs))
        order[0], order[start] = start, 0
        places = np.append(order, DEAD).astype(np.int32)  # the exchange of two is its own inverse
        accepting = np.zeros(len(self.arcs), dtype=np.bool_)
        accepting[list(self.accepting)] = True
        return Dfa(classes, np.ascontiguousarray(places[table[:, firsts][order]]), accepting[order])


def _append(by_byte: list[tuple[int, list[Arc]]], byte: int, arc: Arc) -> None:
    if by_byte and by_byte[-1][0] == byte:
        by_byte[-1][1].append(arc)
    else:
        by_byte.append((byte, [arc]))


def _arcs(automaton: Automaton, state: int) -> Iterable[Arc]:
    """The arcs of code points from a state, in order."""
    row = automaton.rows[state]
    bounds = [*automaton.starts.tolist(), charsets.LAST_LETTER + 1]
    for i, c in enumerate(automaton.classes.tolist()):
        if row[c] == DEAD:
            continue
        first, last = bounds[i], bounds[i + 1] - 1
        if first < charsets.FIRST_SURROGATE <= last:
            yield first, charsets.FIRST_SURROGATE - 1, row[c]
            first = charsets.FIRST_SURROGATE
        yield charsets.code_point(first), charsets.code_point(last), row[c]


def utf8_dfa(automaton: Automaton) -> Dfa:
    """The UTF-8 of a language's words."""
    builder = Builder()
    for _ in range(automaton.n_states):
        builder.state()
    for state in range(automaton.n_states):
        builder.add_characters(state, _arcs(automaton, state))
    builder.accepting = set(np.flatnonzero(automaton.accepting).tolist())
    return builder.dfa(0)


def json_dfa(automaton: Automaton, *, is_quoted: bool = True) -> Dfa:
    """The JSON text of a language's words in canonical spelling, with the quotes or without.

    Canonical: characters as themselves; `"`, a backslash and controls as their short escapes; controls that have none
    as \\u00XX, with hexadecimal digits of either case.
    """
    builder = Builder()
    for _ in range(automaton.n_states):
        builder.state()
    end = builder.state() if is_quoted else -1
    for state in range(automaton.n_states):
        arcs = list(_arcs(automaton, state))
        builder.add_characters(state, _plain(arcs))
        _add_escapes(builder, state, arcs)
    accepting = set(np.flatnonzero(automaton.accepting).tolist())
    if not is_quoted:
        builder.accepting = accepting
        return builder.dfa(0)
    if not accepting:
        return Dfa(np.zeros(256, np.uint8), np.full((1, 1), DEAD, np.int32), np.zeros(1, np.bool_))
    for state in accepting:
        builder.arcs[state].append((0x22, 0x22, end))
    builder.accepting = {end}
    start = builder.state()
    builder.arcs[start].append((0x22, 0x22, 0))
    return builder.dfa(start)


def _plain(arcs: list[Arc]) -> Iterable[Arc]:
    """The arcs of characters that stand for themselves in JSON."""
    for first, last, target in arcs:
        for low, high in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)):
            if first <= high and last >= low:
                yield max(first, low), min(last, high), target


def _add_escapes(builder: Builder, state: int, arcs: list[Arc]) -> None:
    escapes: list[Arc] = []
    longer: dict[int, list[Arc]] = {}
    for code in (*range(0x20), 0x22, 0x5C):
        target = next((t for a, b, t in arcs if a <= code <= b), DEAD)
        if target == DEAD:
            continue
        if code >= 0x20 or code in _SHORT:
            byte = code if code >= 0x20 else ord(_SHORT[code])
            escapes.append((byte, byte, target))
        else:
            for digit in {f"{code % 16:x}", f"{code % 16:X}"}:
                longer.setdefault(code // 16, []).append((ord(digit), ord(digit), target))
    if longer:
        tens = [(0x30 + ten, 0x30 + ten, builder.shared(sorted(digits))) for ten, digits in sorted(longer.items())]
        zeros = builder.shared([(0x30, 0x30, builder.shared([(0x30, 0x30, builder.shared(tens))]))])
        escapes.append((0x75, 0x75, zeros))
    if escapes:
        builder.arcs[state].append((0x5C, 0x5C, builder.shared(sorted(escapes))))


def free_string_dfa() -> Dfa:
    """Every JSON string in every spelling, with the quotes; surrogates in pairs only."""
    builder = Builder()
    start, body, end = builder.state(), builder.state(), builder.state()
    builder.arcs[start].append((0x22, 0x22, body))
    builder.add_characters(body, _plain([(0, 0xD7FF, body), (0xE000, 0x10FFFF, body)]))
    builder.arcs[body].append((0x22, 0x22, end))

    def hexadecimal(ranges: list[tuple[str, str]], after: int) -> list[Arc]:
        return [(ord(a), ord(b), after) for a, b in ranges]

    every = [("0", "9"), ("A", "F"), ("a", "f")]
    last = builder.shared(hexadecimal(every, body))
    last_two = builder.shared(hexadecimal(every, last))
    last_three = builder.shared(hexadecimal(every, last_two))
    low = builder.shared(hexadecimal([("C", "F"), ("c", "f")], last_two))
    low = builder.shared(hexadecimal([("D", "D"), ("d", "d")], low))
    low = builder.shared([(0x5C, 0x5C, builder.shared([(0x75, 0x75, low)]))])
    high = builder.shared(hexadecimal(every, builder.shared(hexadecimal(every, low))))
    d = builder.shared([*hexadecimal([("0", "7")], last_two), *hexadecimal([("8", "9"), ("A", "B"), ("a", "b")], high)])
    four = [*hexadecimal([("0", "9"), ("A", "C"), ("E", "F"), ("a", "c"), ("e", "f")], last_three)]
    four += hexadecimal([("D", "D"), ("d", "d")], d)
    escapes = [(ord(c), ord(c), body) for c in '"\\/bfnrt']
    escapes.append((0x75, 0x75, builder.shared(four)))
    builder.arcs[body].append((0x5C, 0x5C, builder.shared(escapes)))
    builder.accepting = {end}
    return builder.dfa(start)
