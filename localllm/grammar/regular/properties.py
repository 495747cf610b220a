"""The sets of characters that escapes name: \\d, \\w, \\s and Unicode's properties; it knows no syntax around them."""

from __future__ import annotations

import functools
import sys

import regex  # type: ignore[import-untyped]

from localllm.grammar.regular import charsets
from localllm.grammar.regular.charsets import Charset

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
    return charsets.of_code_points((m.start(), m.end() - 1) for m in pattern.finditer(_all_characters()))


@functools.lru_cache(maxsize=1)
def _all_characters() -> str:
    return "".join(map(chr, range(sys.maxunicode + 1)))
