"""Reads JSON bodies as Go's decoder does, down to the texts of its errors; it knows nothing of what they mean.

Bytes that are no UTF-8, and halves of surrogate pairs, become U+FFFD; what follows the first value is ignored.
"""

import contextlib
import json
import re
from typing import Any, NoReturn

MAX_DEPTH = 200
"""Arrays and objects within each other: what walks a value by recursion must not run out of stack. Go allows 10,000."""

MAX_SCANNED = 20_000
"""Values and keys that are looked at for the exact error: a large body must not keep the daemon from others."""

_SPACE = " \t\n\r"
_SPACES = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_DIGIT_RUN = re.compile("[0-9]*")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = frozenset("0123456789")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_QUOTED = {
    "'": r"\'",
    "\\": r"\\",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\b": r"\b",
    "\f": r"\f",
    "\v": r"\v",
    "\a": r"\a",
}
_LITERALS = {"t": "true", "f": "false", "n": "null"}


class GoJSONError(ValueError):
    """The body is not JSON; the message is Go's."""


def parse(body: bytes) -> Any:
    """The first JSON value of a body, nested at most MAX_DEPTH deep. Raises: GoJSONError."""
    text = body.decode("utf-8", "replace")
    start = len(text) - len(text.lstrip(_SPACE))
    if start == len(text):
        raise GoJSONError("missing request body")
    try:
        value, _ = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        with contextlib.suppress(_TooLongError):
            _Scanner(text, start).scan()
            raise GoJSONError("exceeded max depth") from error
        known = "exceeded max depth" if isinstance(error, RecursionError) else f"invalid JSON: {error}"
        raise GoJSONError(known) from error
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(value):
        raise GoJSONError("exceeded max depth")
    return _without_surrogates(value) if "\\u" in text else value


def _parse_int(digits: str) -> int | float:
    # Python bounds the digits of an int; nothing here wants more than a float holds.
    return int(digits) if len(digits) < 400 else float(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _parse_float(digits: str) -> float:
    return float(digits)


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


# The decoder lets other threads run only where it calls Python: so it does at every number and object.
_DECODER = json.JSONDecoder(
    object_hook=_same, parse_float=_parse_float, parse_int=_parse_int, parse_constant=_refuse_constant
)


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
        if not containers:
            return False
    return True


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


class _TooLongError(Exception):
    """The first error lies behind MAX_SCANNED values."""


class _Scanner:
    """Finds the first error of a text, in Go's words, unless it comes late.

    Keeps its own stack: a text may nest as deep as it likes.
    """

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position
        self.n_steps = 0

    def step(self) -> None:
        """Count one value, key or escape. Raises: _TooLongError."""
        self.n_steps += 1
        if self.n_steps > MAX_SCANNED:
            raise _TooLongError

    def scan(self) -> None:
        """Raises: GoJSONError where the text's first value is not JSON."""
        closers: list[str] = []
        self.value(closers)
        while closers:
            self.spaces()
            if self.peek() == ",":
                self.position += 1
                self.spaces()
                if closers[-1] == "}":
                    self.key()
                self.value(closers)
            elif self.peek() == closers[-1]:
                self.position += 1
                closers.pop()
            else:
                self.fail("after object key:value pair" if closers[-1] == "}" else "after array element")

    def value(self, closers: list[str]) -> None:
        """A scalar whole, or the opening of a container up to its first scalar."""
        while True:
            self.step()
            self.spaces()
            char = self.peek()
            if char not in "{[":
                self.scalar(char)
                return
            self.position += 1
            closers.append("}" if char == "{" else "]")
            if len(closers) > MAX_DEPTH:
                raise GoJSONError("exceeded max depth")
            self.spaces()
            if self.peek() == closers[-1]:
                self.position += 1
                closers.pop()
                return
            if char == "{":
                self.key()

    def scalar(self, char: str) -> None:
        if char == '"':
            self.string()
        elif char == "-" or char in _DIGITS:
            self.number()
        elif char in _LITERALS:
            self.literal(_LITERALS[char])
        else:
            self.fail("looking for beginning of value")

    def key(self) -> None:
        self.step()
        if self.peek() != '"':
            self.fail("looking for beginning of object key string")
        self.string()
        self.spaces()
        if self.peek() != ":":
            self.fail("after object key")
        self.position += 1

    def string(self) -> None:
        self.position += 1
        while True:
            self.skip(_PLAIN)
            char = self.peek()
            if char not in '"\\':
                self.fail("in string literal")
            self.position += 1
            if char == '"':
                return
            self.escape()

    def escape(self) -> None:
        self.step()
        char = self.peek()
        if char not in '"\\/bfnrtu':
            self.fail("in string escape code")
        self.position += 1
        if char == "u":
            for _ in range(4):
                if self.peek() not in _HEX_DIGITS:
                    self.fail("in \\u hexadecimal character escape")
                self.position += 1

    def number(self) -> None:
        if self.peek() == "-":
            self.position += 1
        if self.peek() == "0":
            self.position += 1
        else:
            self.digits("in numeric literal")
        if self.peek_or_end() == ".":
            self.position += 1
            self.digits("after decimal point in numeric literal")
        if self.peek_or_end() in ("e", "E"):
            self.position += 1
            if self.peek() in "+-":
                self.position += 1
            self.digits("in exponent of numeric literal")

    def digits(self, where: str) -> None:
        if self.peek() not in _DIGITS:
            self.fail(where)
        self.skip(_DIGIT_RUN)

    def literal(self, word: str) -> None:
        for expected in word:
            if self.peek() != expected:
                self.fail(f"in literal {word} (expecting '{expected}')")
            self.position += 1

    def spaces(self) -> None:
        self.skip(_SPACES)

    def skip(self, pattern: "re.Pattern[str]") -> None:
        """Go past what a pattern matches, which may be nothing."""
        match = pattern.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def peek(self) -> str:
        char = self.peek_or_end()
        if not char:
            raise GoJSONError("unexpected EOF")
        return char

    def peek_or_end(self) -> str:
        return self.text[self.position : self.position + 1]

    def fail(self, where: str) -> NoReturn:
        raise GoJSONError(f"invalid character {_quoted(self.text[self.position])} {where}")


def _quoted(char: str) -> str:
    if char in _QUOTED:
        return f"'{_QUOTED[char]}'"
    if char.isprintable():
        return f"'{char}'"
    code = ord(char)
    return f"'\\x{code:02x}'" if code < 128 else f"'\\u{code:04x}'"
