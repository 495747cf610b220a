"""The inside of GBNF's literals and classes: escapes, ranges, and what they are in UTF-8."""

from __future__ import annotations

import functools
import re

from localllm.grammar.expressions import Literal, Terminal
from localllm.grammar.regular import automaton, charsets
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.encoding import utf8_dfa
from localllm.grammar.source import Source

_CHARACTER = re.compile(
    r"""\\x([0-9A-Fa-f]{2}) | \\u([0-9A-Fa-f]{4}) | \\U([0-9A-Fa-f]{8}) | \\([trn\\"[\]-]) | \\(.?) | [^\\]""",
    re.VERBOSE | re.DOTALL,
)
_SHORT = {"t": "\t", "r": "\r", "n": "\n"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = r"\t \r \n \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH"


def literal(source: Source, begin: int, end: int) -> Literal:
    """The text between two offsets.

    Raises: GrammarError.
    """
    text = source.text[begin:end]
    if "\\" in text or not text.isascii():
        text = "".join(chr(code) for code, _ in _characters(source, begin, end))
    return Literal(text.encode())


def character_class(source: Source, begin: int, end: int) -> Terminal:
    """One character of the class whose inside, with the `^`, is between two offsets.

    Raises: GrammarError.
    """
    is_negated = source.text.startswith("^", begin, end)
    characters = _characters(source, begin + is_negated, end)
    if not characters:
        raise source.error("a class without characters", begin - 1)
    ranges = []
    i = 0
    while i < len(characters):
        first, at = characters[i]
        last = first
        # A raw minus between two characters makes a range of them.
        if i + 2 < len(characters) and source.text[characters[i + 1][1]] == "-":
            last = characters[i + 2][0]
            i += 2
        if last < first:
            raise source.error(f'the range "{chr(first)}-{chr(last)}" is the wrong way round', at)
        ranges.append((first, last))
        i += 1
    charset = charsets.of_code_points(ranges)
    if is_negated:
        charset = charsets.complement(charset)
        if not charset:
            raise source.error("a class that excludes every character", begin - 1)
    return one_of(charset)


@functools.lru_cache(maxsize=1024)
def one_of(charset: Charset) -> Terminal:
    """The UTF-8 of one character of a set."""
    return Terminal(utf8_dfa(automaton.of_power(charset, 1, 1)))


def _characters(source: Source, begin: int, end: int) -> list[tuple[int, int]]:
    """(code point, offset) of each character that is written between two offsets."""
    found = []
    for match in _CHARACTER.finditer(source.text, begin, end):
        x, u, long, short, wrong = match.groups()
        digits = x or u or long
        if wrong is not None:
            raise _wrong_escape(source, wrong, match.start())
        if digits:
            code = int(digits, 16)
        else:
            code = ord(_SHORT.get(short, short) if short else match.group())
        if code > 0x10FFFF or charsets.FIRST_SURROGATE <= code <= charsets.LAST_SURROGATE:
            raise source.error(f"U+{code:04X} is no character", match.start())
        found.append((code, match.start()))
    return found


def _wrong_escape(source: Source, letter: str, offset: int) -> Exception:
    if letter in _HEX_DIGITS:
        return source.error(f'"\\{letter}" needs {_HEX_DIGITS[letter]} hexadecimal digits', offset)
    return source.error(f'unknown escape "\\{letter}" (known: {_ESCAPES})', offset)
