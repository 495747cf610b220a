"""Go's number constants; it knows nothing of templates."""

from __future__ import annotations

import re

from localllm.chat.go.quoting import quoted, unquoted_char

MAX_INT, MIN_INT = 2**63 - 1, -(2**63)
MAX_UNSIGNED = 2**64 - 1

_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0(?:_?[0-7])*|[1-9](?:_?\d)*)\Z"
)
_FLOAT = re.compile(r"[+-]?(?:\d(?:_?\d)*\.?(?:\d(?:_?\d)*)?|\.\d(?:_?\d)*)(?:[eE][+-]?\d(?:_?\d)*)?\Z")
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:_?[0-9a-fA-F])*\.?(?:_?[0-9a-fA-F])*[pP][+-]?\d+\Z")
_OLD_OCTAL = re.compile(r"([+-]?)0_?([0-7_]*)\Z")


class NumberError(ValueError):
    """The text is no number that fits; the message is Go's."""


def number(text: str) -> int | float | complex:
    """The value of a constant such as 12, 0x1F, 1e3, 'a' or 2i.

    Raises: NumberError, and QuotingError for a character constant.
    """
    if text.startswith("'"):
        return unquoted_char(text)
    if text.endswith("i"):
        return _complex(text)
    if _INTEGER.match(text):
        return _integer(text)
    if _FLOAT.match(text):
        return _float(float(text.replace("_", "")), text)
    if _HEX_FLOAT.match(text):
        return _float(float.fromhex(text.replace("_", "")), text)
    raise NumberError(f"illegal number syntax: {quoted(text)}")


def _integer(text: str) -> int:
    octal = _OLD_OCTAL.match(text)
    plain = f"{octal[1]}0o{octal[2] or '0'}" if octal else text
    value = int(plain.replace("o_", "o"), 0)
    if not MIN_INT <= value <= MAX_UNSIGNED:
        raise NumberError(f"integer overflow: {quoted(text)}")
    return value


def _float(value: float, text: str) -> float:
    """Digits without a point or an exponent that are no integer, such as 09, are refused."""
    if not re.search(r"[.eEpP]", text):
        raise NumberError(f"integer overflow: {quoted(text)}")
    return value


def _complex(text: str) -> complex:
    split = max(text.rfind("+", 1), text.rfind("-", 1))
    if split > 0 and text[split - 1] in "eEpP":
        split = max(text.rfind("+", 1, split), text.rfind("-", 1, split))
    real, imaginary = (text[:split], text[split:-1]) if split > 0 else ("0", text[:-1])
    if not (_FLOAT.match(real) and _FLOAT.match(imaginary)):
        raise NumberError(f"illegal number syntax: {quoted(text)}")
    return complex(float(real.replace("_", "")), float(imaginary.replace("_", "")))
