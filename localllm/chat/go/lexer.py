"""A Go template's source as tokens, trim markers applied; it knows nothing of grammar.

Only the ASCII blanks that Go trims are trimmed. A fault is a token too, of kind "error", after which nothing follows,
so that a fault of grammar that comes before it is told first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from localllm.chat.go.quoting import quoted

BLANKS = " \t\r\n"
KEYWORDS = frozenset({"block", "break", "continue", "define", "else", "end", "if", "nil", "range", "template", "with"})
PUNCTUATION = {"|": "pipe", "=": "assign", ":=": "declare", "(": "left paren", ")": "right paren"}
# Token texts longer than this are shortened in messages.
LONGEST_SHOWN = 10

_OPEN = re.compile(r"\{\{(-(?=[ \t\r\n]))?")
_CLOSE = re.compile(r"([ \t\r\n]-)?\}\}")
_SPACE = re.compile(r"[ \t\r\n]+")
_STRING = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_CHAR = re.compile(r"'(?:[^'\\\n]|\\[^\n])*'")
_RAW = re.compile(r"`[^`]*`")
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[.$]\w*")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?|0[bB][01_]*(?:\.[01_]*)?|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?"
)
# What may follow a word, a field or a variable without a space between.
_TERMINATOR = re.compile(r"[ \t\r\n.,|:)(]|\}\}|\Z")


@dataclass(slots=True)
class Token:
    """`is_apart`: blanks stand before it. `line` counts from 1."""

    kind: str
    text: str
    position: int
    line: int
    is_apart: bool = False

    def __str__(self) -> str:
        if self.kind == "eof":
            return "EOF"
        if self.kind == "error":
            return self.text
        if self.kind in KEYWORDS:
            return f"<{self.text}>"
        return quoted(self.text[:LONGEST_SHOWN]) + "..." if len(self.text) > LONGEST_SHOWN else quoted(self.text)


def tokens(source: str) -> Iterator[Token]:
    """The tokens, with "eof" or "error" the last."""
    return _Lexer(source).run()


class _Fault(Exception):  # noqa: N818 (becomes a token, not an error)
    pass


class _Lexer:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._line, self._counted = 1, 0
        self._trims = False

    def run(self) -> Iterator[Token]:
        try:
            while match := _OPEN.search(self._source, self._at):
                text = self._source[self._at : match.start()]
                text = text.lstrip(BLANKS) if self._trims else text
                start = match.start() - len(text)
                text = text.rstrip(BLANKS) if match[1] else text
                if text:
                    yield self._token("text", text, start)
                self._at = match.end()
                if self._is_comment(match):
                    self._skip_comment(match)
                else:
                    yield self._token("left", match[0], match.start())
                    yield from self._action()
            text = self._source[self._at :]
            text = text.lstrip(BLANKS) if self._trims else text
            if text:
                yield self._token("text", text, len(self._source) - len(text))
            yield self._token("eof", "", len(self._source))
        except _Fault as fault:
            yield self._token("error", str(fault), self._at)

    def _token(self, kind: str, text: str, position: int, is_apart: bool = False) -> Token:
        self._line += self._source.count("\n", self._counted, position)
        self._counted = max(position, self._counted)
        return Token(kind, text, position, self._line, is_apart)

    def _is_comment(self, opened: re.Match[str]) -> bool:
        return self._source.startswith("/*", opened.end() + (1 if opened[1] else 0))

    def _skip_comment(self, opened: re.Match[str]) -> None:
        end = self._source.find("*/", opened.end() + (1 if opened[1] else 0) + 2)
        if end < 0:
            raise _Fault("unclosed comment")
        close = _CLOSE.match(self._source, end + 2)
        if not close:
            raise _Fault("comment ends before closing delimiter")
        self._leave(close)

    def _leave(self, close: re.Match[str]) -> None:
        self._at, self._trims = close.end(), bool(close[1])

    def _action(self) -> Iterator[Token]:
        depth, is_apart = 0, False
        while True:
            if close := _CLOSE.match(self._source, self._at):
                if depth:
                    raise _Fault("unclosed left paren")
                yield self._token("right", "}}", self._at, is_apart)
                self._leave(close)
                return
            if space := _SPACE.match(self._source, self._at):
                is_apart = True
                self._at = space.end() - (1 if _CLOSE.match(self._source, space.end() - 1) else 0)
                if self._at == space.start():
                    continue
            else:
                kind, text = self._next()
                depth += (kind == "left paren") - (kind == "right paren")
                if depth < 0:
                    raise _Fault("unexpected right paren")
                yield self._token(kind, text, self._at, is_apart)
                self._at += len(text)
                is_apart = False

    def _next(self) -> tuple[str, str]:
        """Kind and text of the token at the current place, which is no blank and no end of the action."""
        char, following = self._source[self._at : self._at + 1], self._source[self._at + 1 : self._at + 2]
        if not char:
            raise _Fault("unclosed action")
        if char == ":" and following != "=":
            raise _Fault("expected :=")
        text = ":=" if char == ":" else char
        if text in PUNCTUATION:
            return PUNCTUATION[text], text
        if char in "\"'`":
            return self._literal(char)
        if char == "$" or (char == "." and not "0" <= following <= "9"):
            return self._name()
        if char in "+-." or "0" <= char <= "9":
            return self._number()
        if _WORD.match(char):
            return self._word()
        if " " < char <= "~":
            return "char", char
        raise _Fault(f"unrecognized character in action: {_unicode_name(char)}")

    def _literal(self, quote: str) -> tuple[str, str]:
        pattern, kind, name = {
            '"': (_STRING, "string", "quoted string"),
            "'": (_CHAR, "character", "character constant"),
            "`": (_RAW, "string", "raw quoted string"),
        }[quote]
        if match := pattern.match(self._source, self._at):
            return kind, match[0]
        raise _Fault(f"unterminated {name}")

    def _name(self) -> tuple[str, str]:
        match = _NAME.match(self._source, self._at)
        assert match is not None
        self._check_terminated(match.end())
        kind = "variable" if match[0].startswith("$") else "field" if len(match[0]) > 1 else "dot"
        return kind, match[0]

    def _word(self) -> tuple[str, str]:
        match = _WORD.match(self._source, self._at)
        assert match is not None
        self._check_terminated(match.end())
        word = match[0]
        return word if word in KEYWORDS else "bool" if word in ("true", "false") else "identifier", word

    def _check_terminated(self, end: int) -> None:
        if not _TERMINATOR.match(self._source, end):
            raise _Fault(f"bad character {_unicode_name(self._source[end])}")

    def _number(self) -> tuple[str, str]:
        match = _NUMBER.match(self._source, self._at)
        assert match is not None
        end, is_complex = match.end(), False
        if self._source[end : end + 1] in ("+", "-"):
            match = _NUMBER.match(self._source, end)
            assert match is not None
            end, is_complex = match.end(), True
        text = self._source[self._at : end]
        if _WORD.match(self._source, end):
            raise _Fault(f"bad number syntax: {quoted(self._source[self._at : end + 1])}")
        if is_complex and not text.endswith("i"):
            raise _Fault(f"bad number syntax: {quoted(text)}")
        return "number", text


def _unicode_name(char: str) -> str:
    return f"U+{ord(char):04X}" + (f" '{char}'" if char.isprintable() else "")
