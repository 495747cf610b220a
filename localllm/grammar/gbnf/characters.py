"""The inside of GBNF's literals and classes: escapes, and ranges."""

from __future__ import annotations

from localllm.grammar.characters import one_of, read_characters, read_text
from localllm.grammar.expressions import Literal, Terminal
from localllm.grammar.regular import charsets
from localllm.grammar.source import Source

ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{letter: letter for letter in '\\"[]-'}}


def literal(source: Source, begin: int, end: int) -> Literal:
    """The text between two offsets.

    Raises: GrammarError.
    """
    return Literal(read_text(source, begin, end, ESCAPES).encode())


def character_class(source: Source, begin: int, end: int) -> Terminal:
    """One character of the class whose inside, with the `^`, is between two offsets.

    Raises: GrammarError.
    """
    is_negated = source.text.startswith("^", begin, end)
    characters = read_characters(source, begin + is_negated, end, ESCAPES)
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
