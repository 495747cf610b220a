"""The sets of characters that escapes name: \\d, \\w, \\s and Unicode's properties; it knows no syntax around them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import regex  # type: ignore[import-untyped]

from localllm.grammar.regular import charsets
from localllm.grammar.regular.charsets import Charset

# The ranges of code points in which Unicode has characters, or may have some soon.
_ASSIGNED = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))

DIGITS: Charset = charsets.of_code_points([(0x30, 0x39)])
WORD: Charset = charsets.of_code_points([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
LINE_ENDS: Charset = charsets.of_characters("\n\r\u2028\u2029")
# ECMA-262's WhiteSpace and LineTerminator: Unicode's Zs among them.
BLANKS: Charset = charsets.of_code_points(
    [
        *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    ]
)


@functools.lru_cache(maxsize=64)
def named(name: str) -> Charset | None:
    """The letters with a property as `\\p{…}` names it (`L`, `Letter`, `Script=Greek`); None for an unknown one."""
    try:
        pattern = regex.compile(r"\p{" + name + "}+", regex.V0)
    except regex.error:
        return None
    planes = ((first + m.start(), first + m.end() - 1) for first, text in _characters() for m in pattern.finditer(text))
    ends = ((first, last) for first, last in _alike() if pattern.match(chr(first)))
    return charsets.of_code_points([*planes, *ends])


@functools.cache
def _characters() -> list[tuple[int, str]]:
    """The code points of the planes that have characters, one after another, with the first of them."""
    return [(first, "".join(map(chr, range(first, last + 1)))) for first, last in _ASSIGNED]


def _alike() -> Iterator[tuple[int, int]]:
    """The ranges of all others. The last two code points of a plane are no characters; the rest are unassigned, or are
    for private use."""
    for plane in range(4, 17):
        last = plane << 16 | 0xFFFD
        yield 0xE1000 if plane == 14 else plane << 16, last
        yield last + 1, last + 2
