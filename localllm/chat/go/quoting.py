"""Go's quoted strings and character constants, read and written; it knows nothing of templates."""

from __future__ import annotations

import re

_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_WRITTEN = {char: f"\\{name}" for name, char in _NAMED.items()}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|([abfnrtv\\'\"]))")


# A byte that is no UTF-8 is a lone surrogate: this and its value.
_BYTE = 0xDC00


class QuotingError(ValueError):
    """The text is not a literal of Go."""


def quoted(text: str, quote: str = '"', ascii_only: bool = False) -> str:
    """A literal of Go for a text; lone surrogates stand for bytes that are no UTF-8."""
    return quote + "".join(_written(char, quote, ascii_only) for char in text) + quote


def _written(char: str, quote: str, ascii_only: bool) -> str:
    if char == quote:
        return f"\\{char}"
    if char in _WRITTEN:
        return _WRITTEN[char]
    code = ord(char)
    if char == " " or (char.isprintable() and (code < 0x80 or not ascii_only)):
        return char
    if _BYTE + 0x80 <= code <= _BYTE + 0xFF:
        return f"\\x{code - _BYTE:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unquoted(literal: str) -> str:
    """The text of a literal in double quotes or back quotes. Raises: QuotingError."""
    if literal.startswith("`"):
        return literal[1:-1].replace("\r", "")
    return _unescaped(literal[1:-1], other_quote="'")


def unquoted_char(literal: str) -> int:
    """The code of a character constant such as 'a'. Raises: QuotingError."""
    text = _unescaped(literal[1:-1], other_quote='"')
    if len(text) != 1:
        raise QuotingError(f"malformed character constant: {literal}" if text else "invalid syntax")
    code = ord(text)
    return code - _BYTE if _BYTE + 0x80 <= code <= _BYTE + 0xFF else code


def _unescaped(body: str, other_quote: str) -> str:
    """Escapes of bytes (\\x, octal) may together spell a character in UTF-8."""
    result, at = [], 0
    while (found := body.find("\\", at)) >= 0:
        result.append(body[at:found].encode("utf-8", "surrogatepass"))
        match = _ESCAPE.match(body, found)
        if not match or match[5] == other_quote:
            raise QuotingError("invalid syntax")
        result.append(_escaped_bytes(match))
        at = match.end()
    result.append(body[at:].encode("utf-8", "surrogatepass"))
    return b"".join(result).decode("utf-8", "surrogateescape")


def _escaped_bytes(match: re.Match[str]) -> bytes:
    if match[5]:
        return _NAMED.get(match[5], match[5]).encode()
    if match[1] or match[4]:
        value = int(match[1], 16) if match[1] else int(match[4], 8)
        if value > 0xFF:
            raise QuotingError("invalid syntax")
        return bytes([value])
    code = int(match[2] or match[3], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise QuotingError("invalid syntax")
    return chr(code).encode()
