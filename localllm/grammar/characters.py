"""Characters as grammars write them, raw or after a backslash, and in UTF-8; which escapes there are callers say."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from localllm.grammar.expressions import Terminal
from localllm.grammar.regular import automaton, charsets
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.encoding import utf8_dfa
from localllm.grammar.source import Source

_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2}) | \\u([0-9A-Fa-f]{4}) | \\U([0-9A-Fa-f]{8}) | \\(.?) | [^\\]", re.VERBOSE | re.DOTALL
)
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def read_characters(source: Source, begin: int, end: int, short: Mapping[str, str]) -> list[tuple[int, int]]:
    r"""(code point, offset) of each character that is written between two offsets.

    short: what the letters after a backslash stand for; `\xHH`, `\uHHHH` and `\UHHHHHHHH` are code points besides.

    Raises: GrammarError.
    """
    found = []
    for match in _CHARACTER.finditer(source.text, begin, end):
        digits = match[1] or match[2] or match[3]
        letter = match[4]
        if letter is not None and letter not in short:
            raise _wrong_escape(source, letter, match.start(), short)
        code = int(digits, 16) if digits else ord(match[0] if letter is None else short[letter])
        if code > 0x10FFFF or charsets.FIRST_SURROGATE <= code <= charsets.LAST_SURROGATE:
            raise source.error(f"U+{code:04X} is no character", match.start())
        found.append((code, match.start()))
    return found


def read_text(source: Source, begin: int, end: int, short: Mapping[str, str]) -> str:
    """The text that is written between two offsets; see `read_characters`."""
    text = source.text[begin:end]
    if text.isascii() and "\\" not in text:
        return text
    return "".join(chr(code) for code, _ in read_characters(source, begin, end, short))


@functools.lru_cache(maxsize=1024)
def one_of(charset: Charset) -> Terminal:
    """The UTF-8 of one character of a set."""
    return Terminal(utf8_dfa(automaton.of_power(charset, 1, 1)))


def _wrong_escape(source: Source, letter: str, offset: int, short: Mapping[str, str]) -> Exception:
    if letter in _HEX_DIGITS:
        return source.error(f'"\\{letter}" needs {_HEX_DIGITS[letter]} hexadecimal digits', offset)
    known = " ".join(f"\\{letter}" for letter in short)
    return source.error(f'unknown escape "\\{letter}" (known: {known} \\xHH \\uHHHH \\UHHHHHHHH)', offset)
