r"""The part of Lark's notation that says which texts match; trees, priorities and lexers it does not know.

    rule      name: alternatives       with `?`, `!` or a priority, which say nothing of texts; `-> alias` likewise
    terminal  NAME: alternatives
    item      "text"  "text"i  "a".."z"  /pattern/  name  NAME  ( )  [ ]  <[id]>  <text>
    postfix   ?  *  +  ~n  ~n..m  {m}  {m,}  {m,n}
    import    %import common.NAME   %import common.NAME -> OTHER   %import common (NAME, OTHER)

A definition ends with its line, unless the next one begins with `|` or a parenthesis is open. Patterns are those of
JSON Schemas. A text matches if it can be divided in any way: terminals are rules like others. A rule that begins with
itself in one of its alternatives becomes a repetition. What else there is in Lark (`%ignore` above all) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from localllm.grammar.characters import one_of, read_characters, read_text
from localllm.grammar.errors import PatternError
from localllm.grammar.expressions import (
    EMPTY,
    Choice,
    Expression,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Sequence,
    TokenSet,
    choice,
    optional,
    sequence,
)
from localllm.grammar.first_references import check_left_recursion
from localllm.grammar.groups import Group
from localllm.grammar.lark_common import COMMON
from localllm.grammar.regular import Language, charsets, utf8
from localllm.grammar.source import Source

_BLANKS = re.compile(r"(?:[ \t]|\\\r?\n|(?://|#)[^\r\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\n]|(?://|#)[^\r\n]*)*")
_DEFINED = re.compile(r"[?!]*(_*[a-z][a-z0-9_]*|_*[A-Z][A-Z0-9_]*)(?:\.-?[0-9]+)?[ \t]*:")
_NAME = re.compile(r"_*[a-z][a-z0-9_]*|_*[A-Z][A-Z0-9_]*")
_STRING = re.compile(r'"([^"\\\r\n]*(?:\\.[^"\\\r\n]*)*)"(i?)')
_PATTERN = re.compile(r"/((?:[^/\\\r\n]|\\.)+)/([a-z]*)")
_TOKEN = re.compile(r"<(?:\[([0-9]{1,9})\]|[^>\[\r\n][^>\r\n]*)>")
_COUNT = re.compile(
    r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{0,9})[ \t]*)?\}|~[ \t]*([0-9]{1,9})(?:\.\.([0-9]{1,9}))?"
)
_ALIAS = re.compile(r"->[ \t]*_*[a-z][a-z0-9_]*")
_DIRECTIVE = re.compile(r"%[a-z]+")
_IMPORT = re.compile(r"common[ \t]*(?:\.[ \t]*([A-Z_]+)(?:[ \t]*->[ \t]*(_*[A-Z][A-Z0-9_]*))?|\(([A-Z_, \t\r\n]+)\))")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "\\": "\\", '"': '"', "'": "'", "/": "/"}


def parse_lark(text: str, *, root: str = "start", token_ids: Callable[[str], int | None] | None = None) -> Grammar:
    """The grammar that Lark's notation describes.

    token_ids: the id of the token whose text, `<` and `>` with it, is exactly this, or None; it is asked for `<text>`.

    Raises: GrammarError for what is malformed or not supported, with the place; LeftRecursionError; TooComplexError.
    """
    return _Parser(text, token_ids).grammar(root)


class _Parser:
    def __init__(self, text: str, token_ids: Callable[[str], int | None] | None) -> None:
        self._source = Source(text)
        self._text = text
        self._token_ids = token_ids
        self._at = 0
        self._rules: dict[str, Expression] = {}
        self._references: dict[Reference, int] = {}  # to where they are; compared by identity

    def grammar(self, root: str) -> Grammar:
        self._skip(_BLANKS_AND_LINES)
        while self._at < len(self._text):
            if self._text[self._at] == "%":
                self._directive()
            else:
                self._definition()
            self._skip(_BLANKS_AND_LINES)
        for reference, at in self._references.items():
            if reference.rule not in self._rules:
                raise self._source.error(f'"{reference.rule}" is not defined', at)
        if root not in self._rules:
            raise self._source.error(f'no rule is named "{root}", to begin with', 0)
        grammar = Grammar({name: _repeated_tails(name, body) for name, body in self._rules.items()}, root)
        check_left_recursion(grammar, self._source, self._references.__getitem__)
        return grammar

    # Lines

    def _directive(self) -> None:
        begin = self._at
        name = self._match(_DIRECTIVE)
        if name is None or name[0] != "%import":
            what = name[0] if name else "%"
            raise self._source.error(f'"{what}" is not supported (of directives only %import common is)', begin)
        self._skip(_BLANKS)
        match = self._match(_IMPORT)
        if match is None:
            raise self._source.error("only %import common.NAME and %import common (NAME, ...) are supported", self._at)
        for imported in re.findall(r"[A-Z_]+", match[1] or match[3]):
            if imported not in COMMON:
                raise self._source.error(f"there is no common.{imported} (there are {', '.join(COMMON)})", begin)
            self._define(match[2] or imported, utf8(Language.of_regex(COMMON[imported], anchored=True)), begin)
        self._end_line()

    def _definition(self) -> None:
        begin = self._at
        match = self._match(_DEFINED)
        if match is None:
            name = self._match(_NAME)
            if name and self._text.startswith("{", self._at):
                raise self._source.error("templates of rules are not supported", begin)
            self._skip(_BLANKS)
            raise self._unexpected('a definition ("rule: ..." or "TERMINAL: ...")')
        self._define(match[1], self._alternatives(), begin)
        self._end_line()

    def _define(self, name: str, body: Expression, at: int) -> None:
        if name in self._rules:
            raise self._source.error(f'"{name}" is defined twice', at)
        self._rules[name] = body

    def _end_line(self) -> None:
        self._skip(_BLANKS)
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            raise self._unexpected("the end of the line")

    def _alternatives(self) -> Expression:
        groups = [Group(self._at)]
        self._skip(_BLANKS)
        while self._at < len(self._text):
            if len(groups) == 1 and self._text[self._at] in "\r\n":
                following = _BLANKS_AND_LINES.match(self._text, self._at)
                assert following is not None
                if not self._text.startswith("|", following.end()):
                    break
                self._at = following.end()
            self._item(groups)
            self._skip(_BLANKS if len(groups) == 1 else _BLANKS_AND_LINES)
        if len(groups) > 1:
            begin = groups[-1].begin
            raise self._source.error(f'"{self._text[begin]}" is not closed', begin)
        return groups[0].expression()

    # Items

    def _item(self, groups: list[Group]) -> None:
        group, at = groups[-1], self._at
        letter = self._text[at]
        if letter == '"':
            group.items.append(self._string())
        elif letter == "/":
            group.items.append(self._pattern())
        elif letter == "<":
            group.items.append(self._token())
        elif letter in "?*+~{":
            if not group.items:
                raise self._source.error(f'"{letter}" follows nothing that it could repeat', at)
            group.items.append(self._repeated(group.items.pop(), letter))
        elif letter == "|":
            self._at += 1
            group.close_alternative()
        elif letter in "([":
            self._at += 1
            groups.append(Group(at))
        elif letter in ")]" and len(groups) > 1 and self._text[group.begin] + letter in ("()", "[]"):
            self._at += 1
            groups.pop()
            inner = group.expression()
            groups[-1].items.append(optional(inner) if letter == "]" else inner)
        elif self._match(_ALIAS) is None:
            group.items.append(self._reference())

    def _string(self) -> Expression:
        at = self._at
        match = self._match(_STRING)
        if match is None:
            raise self._source.error("the string is not closed", at)
        if self._text.startswith("..", self._at):
            return self._range(match)
        text = read_text(self._source, *match.span(1), _ESCAPES)
        return sequence(*(_either_case(c) for c in text)) if match[2] else Literal(text.encode())

    def _range(self, least: re.Match[str]) -> Expression:
        self._at += 2
        most = self._match(_STRING)
        ends = []
        for match in (least, most):
            found = read_characters(self._source, *match.span(1), _ESCAPES) if match else []
            if match is None or len(found) != 1 or match[2]:
                raise self._source.error('a range is written "a".."z", of single characters', least.start())
            ends.append(found[0][0])
        if ends[1] < ends[0]:
            raise self._source.error("the range is the wrong way round", least.start())
        return one_of(charsets.of_code_points([(ends[0], ends[1])]))

    def _pattern(self) -> Expression:
        at = self._at
        match = self._match(_PATTERN)
        if match is None:
            raise self._source.error("the pattern is not closed", at)
        if match[2]:
            raise self._source.error(f'flags of patterns ("{match[2]}") are not supported', match.start(2))
        try:
            return utf8(Language.of_regex(match[1], anchored=True))
        except PatternError as error:
            raise self._source.error(str(error), at + 1 + error.position) from error

    def _token(self) -> TokenSet:
        at = self._at
        match = self._match(_TOKEN)
        if match is None:
            raise self._source.error("a token is written <[id]> or <text>", at)
        token = int(match[1]) if match[1] else self._token_ids(match[0]) if self._token_ids else None
        if token is None:
            raise self._source.error(f'"{match[0]}" is not one token of a model that is known here', at)
        return TokenSet(frozenset((token,)))

    def _repeated(self, item: Expression, letter: str) -> Expression:
        if letter in "?*+":
            self._at += 1
            return optional(item) if letter == "?" else Repeat(item, int(letter == "+"), None)
        at = self._at
        match = self._match(_COUNT)
        if match is None:
            raise self._source.error("a repetition is written ~n, ~n..m, {m}, {m,} or {m,n}", at)
        least = int(match[1] or match[4])
        most = least if not (match[2] or match[5]) else int(match[3] or match[5]) if match[3] or match[5] else None
        if most is not None and most < least:
            raise self._source.error(f"{match[0]} asks for at least {least} and at most {most}", at)
        return Repeat(item, least, most)

    def _reference(self) -> Reference:
        at = self._at
        name = self._match(_NAME)
        if name is None:
            raise self._unexpected("a string, pattern, name, group, token or the end of the definition")
        reference = Reference(name[0])
        self._references[reference] = at
        return reference

    # Text

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _unexpected(self, expected: str) -> Exception:
        if self._at >= len(self._text):
            return self._source.error(f"the text ends, expected {expected}", self._at)
        return self._source.error(f'"{self._text[self._at]}" is unexpected here, expected {expected}', self._at)


def _either_case(character: str) -> Expression:
    cases = {case for case in (character, character.lower(), character.upper()) if len(case) == 1}
    return one_of(charsets.of_characters("".join(cases))) if len(cases) > 1 else Literal(character.encode())


def _repeated_tails(name: str, body: Expression) -> Expression:
    """A rule's body without alternatives that begin with the rule: `a: a x | y` has the words of `y x*`."""
    alternatives = body.items if isinstance(body, Choice) else (body,)
    tails, others = [], []
    for alternative in alternatives:
        items = alternative.items if isinstance(alternative, Sequence) else (alternative,)
        if items and isinstance(items[0], Reference) and items[0].rule == name:
            tails.append(sequence(*items[1:]) if items[1:] else EMPTY)
        else:
            others.append(alternative)
    return Sequence((choice(others), Repeat(choice(tails), 0, None))) if tails else body
