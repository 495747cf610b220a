"""Sets of characters as intervals, and how several of them divide the alphabet; it knows no automata.

A *letter* is a code point without the surrogates: those below them are themselves, those above are counted on, so that
the alphabet has no gap. A `Charset` is a tuple of (first, last) letters, sorted, disjoint and not adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Charset: TypeAlias = tuple[tuple[int, int], ...]

FIRST_SURROGATE = 0xD800
LAST_SURROGATE = 0xDFFF
N_SURROGATES = 0x800
LAST_LETTER = 0x10FFFF - N_SURROGATES

NOTHING: Charset = ()
EVERYTHING: Charset = ((0, LAST_LETTER),)


def letter(code_point: int) -> int:
    """The letter of a code point that is no surrogate."""
    return code_point if code_point < FIRST_SURROGATE else code_point - N_SURROGATES


def code_point(letter: int) -> int:
    """The inverse of `letter`."""
    return letter if letter < FIRST_SURROGATE else letter + N_SURROGATES


def of_code_points(ranges: Iterable[tuple[int, int]]) -> Charset:
    """Of ranges of code points, first and last, in any order; surrogates in them are left out."""
    found = []
    for first, last in ranges:
        if first < FIRST_SURROGATE:
            found.append((first, min(last, FIRST_SURROGATE - 1)))
        if last > LAST_SURROGATE:
            found.append((letter(max(first, LAST_SURROGATE + 1)), letter(last)))
    return merged(found)


def of_characters(characters: str) -> Charset:
    """These characters."""
    return of_code_points((ord(c), ord(c)) for c in characters)


def merged(intervals: Iterable[tuple[int, int]]) -> Charset:
    """A charset of intervals in any order."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = (found[-1][0], last)
        elif first <= last:
            found.append((first, last))
    return tuple(found)


def union(*charsets: Charset) -> Charset:
    """Letters that are in any of them."""
    return merged(interval for charset in charsets for interval in charset)


def complement(charset: Charset) -> Charset:
    """All other letters."""
    found, begin = [], 0
    for first, last in charset:
        if first > begin:
            found.append((begin, first - 1))
        begin = last + 1
    if begin <= LAST_LETTER:
        found.append((begin, LAST_LETTER))
    return tuple(found)


def intersection(one: Charset, other: Charset) -> Charset:
    """Letters that are in both."""
    return complement(union(complement(one), complement(other)))


def holds(charset: Charset, letter: int) -> bool:
    """Whether a letter is in it."""
    return any(first <= letter <= last for first, last in charset)


def size(charset: Charset) -> int:
    """How many letters it has."""
    return sum(last - first + 1 for first, last in charset)


def partition(charsets: Sequence[Charset]) -> tuple[list[int], list[int], list[list[int]]]:
    """How charsets divide the alphabet: (starts, classes, members).

    Interval i begins at letter starts[i] and is of the class classes[i]; letters of one class are in the same
    charsets. members[c]: in which ones, by their indices, sorted.
    """
    changes: dict[int, int] = {0: 0}
    for j, charset in enumerate(charsets):
        for first, last in charset:
            changes[first] = changes.get(first, 0) ^ 1 << j
            changes[last + 1] = changes.get(last + 1, 0) ^ 1 << j
    changes.pop(LAST_LETTER + 1, None)
    starts: list[int] = []
    classes: list[int] = []
    numbers: dict[int, int] = {}
    member = 0
    for start in sorted(changes):
        member ^= changes[start]
        c = numbers.setdefault(member, len(numbers))
        if not classes or classes[-1] != c:
            starts.append(start)
            classes.append(c)
    return starts, classes, [_bits(member) for member in numbers]


def _bits(number: int) -> list[int]:
    found = []
    while number:
        low = number & -number
        found.append(low.bit_length() - 1)
        number ^= low
    return found
