"""From the bytes of a Modelfile to its text, and which characters a value keeps; it knows no instruction."""

from __future__ import annotations

import codecs
import unicodedata

BLANKS = " \t"
LINE_ENDS = "\r\n"

# Longest first: the mark of UTF-8 is no prefix of the others, but the order should not matter to who adds one.
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_NOT_PRINTED = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"))


def decode(content: bytes) -> str:
    """UTF-8, or what a byte order mark says (UTF-8, UTF-16 of either order); what is invalid becomes U+FFFD."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors="replace")
    return content.decode("utf-8", errors="replace")


def keep_printable(text: str) -> str:
    """What a value keeps of its text: no controls, formats or odd blanks, but blanks, tabs and line ends.

    As Ollama does it, by Go's `strconv.IsPrint`; characters that this Python does not know yet are kept.
    """
    return text if text.isprintable() else "".join(filter(_is_kept, text))


def _is_kept(character: str) -> bool:
    if character in BLANKS or character in LINE_ENDS:
        return True
    return unicodedata.category(character) not in _NOT_PRINTED
