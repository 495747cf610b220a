"""GBNF to a grammar. Groups wait on a stack of its own, so that no depth of nesting is too much for Python's.

    rule      name ::= alternatives, to the end of the line; a line that begins with `|` goes on with it
    item      "literal"  [class]  .  name  ( alternatives )  <[id]>  <text>  !<...>
    postfix   *  +  ?  {m}  {m,}  {m,n}

Characters are code points. `#` begins a comment. After `::=` and `|` and within parentheses lines may end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from localllm.grammar.characters import one_of
from localllm.grammar.expressions import Expression, Grammar, Reference, Repeat, TokenSet, optional
from localllm.grammar.first_references import check_left_recursion
from localllm.grammar.gbnf.characters import character_class, literal
from localllm.grammar.groups import Group
from localllm.grammar.regular import charsets
from localllm.grammar.source import Source

_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_LITERAL = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_CLASS = re.compile(r"\[([^\]\\]*(?:\\.[^\]\\]*)*)\]", re.DOTALL)
_TOKEN = re.compile(r"!?(<(?:\[([0-9]{1,9})\]|[^>\[\r\n][^>\r\n]*)>)")
_COUNT = re.compile(r"\{[ \t]*([0-9]+)[ \t]*(?:(,)[ \t]*([0-9]*)[ \t]*)?\}")
_COUNT_FORMS = "{m}, {m,} or {m,n}"
MAX_DIGITS = 9  # of a repetition's bounds


def parse_gbnf(text: str, *, root: str = "root", token_ids: Callable[[str], int | None] | None = None) -> Grammar:
    """The grammar that GBNF describes.

    token_ids: the id of the token whose text, `<` and `>` with it, is exactly this, or None; it is asked for `<text>`.

    Raises: GrammarError for what is malformed, with the place; LeftRecursionError.
    """
    return _Parser(text, token_ids).grammar(root)


class _Parser:
    def __init__(self, text: str, token_ids: Callable[[str], int | None] | None) -> None:
        self._source = Source(text)
        self._text = text
        self._token_ids = token_ids
        self._at = 0
        self._rules: dict[str, Expression] = {}
        self._begins: dict[str, int] = {}
        self._references: dict[Reference, int] = {}  # to where they are; compared by identity

    def grammar(self, root: str) -> Grammar:
        self._skip(_BLANKS_AND_LINES)
        while self._at < len(self._text):
            self._rule()
            self._skip(_BLANKS_AND_LINES)
        self._check_names(root)
        grammar = Grammar(self._rules, root)
        check_left_recursion(grammar, self._source, self._references.__getitem__)
        return grammar

    def _check_names(self, root: str) -> None:
        for reference, at in self._references.items():
            if reference.rule not in self._rules:
                raise self._source.error(
                    f'the rule "{reference.rule}" is not defined', at, hint=self._hint(reference.rule)
                )
        if not self._rules:
            raise self._source.error("the grammar has no rules", 0)
        if root not in self._rules:
            raise self._source.error(f'no rule is named "{root}", to begin with', 0, hint=self._hint(root))

    def _hint(self, name: str) -> str | None:
        alike = [rule for rule in self._rules if rule.lower() == name.lower()]
        return f'names are case-sensitive, and there is "{alike[0]}"' if alike else None

    # Rules

    def _rule(self) -> None:
        begin = self._at
        name = self._name()
        if name is None:
            raise self._unexpected("a rule's name (letters, digits and -)")
        self._skip(_BLANKS)
        if not self._text.startswith("::=", self._at):
            raise self._unexpected(f'"::=" after the name "{name}"')
        if name in self._rules:
            line, _ = self._source.place(self._begins[name])
            raise self._source.error(f'the rule "{name}" is defined twice, first in line {line}', begin)
        self._at += 3
        self._begins[name] = begin
        self._rules[name] = self._alternatives()

    def _alternatives(self) -> Expression:
        groups = [Group(self._at)]
        self._skip(_BLANKS_AND_LINES)
        # An empty last alternative: what follows the lines is another rule.
        while self._at < len(self._text) and not (len(groups) == 1 and self._ends_rule(groups[0])):
            self._item(groups)
            self._skip(_BLANKS if len(groups) == 1 else _BLANKS_AND_LINES)
        if len(groups) > 1:
            raise self._source.error('"(" is not closed', groups[-1].begin)
        return groups[0].expression()

    def _ends_rule(self, group: Group) -> bool:
        """Whether the rule ends here; lines before one that begins with `|` are read."""
        following = _BLANKS_AND_LINES.match(self._text, self._at)
        assert following is not None
        if self._text[self._at] in "\r\n":
            if not self._text.startswith("|", following.end()):
                return True
            self._at = following.end()
            return False
        return not group.items and self._begins_rule()

    def _begins_rule(self) -> bool:
        name = _NAME.match(self._text, self._at)
        blanks = _BLANKS.match(self._text, name.end()) if name else None
        return blanks is not None and self._text.startswith("::=", blanks.end())

    # Items

    def _item(self, groups: list[Group]) -> None:
        group, at = groups[-1], self._at
        letter = self._text[at]
        if letter == '"':
            begin, end = self._span(_LITERAL, "the literal")
            group.items.append(literal(self._source, begin, end))
        elif letter == "[":
            begin, end = self._span(_CLASS, "the class")
            group.items.append(character_class(self._source, begin, end))
        elif letter == ".":
            self._at += 1
            group.items.append(one_of(charsets.EVERYTHING))
        elif letter in "<!":
            group.items.append(self._token())
        elif letter in "*+?{":
            if not group.items:
                raise self._source.error(f'"{letter}" follows nothing that it could repeat', at)
            group.items.append(self._repeated(group.items.pop(), letter))
        elif letter == "|":
            self._at += 1
            group.close_alternative()
            self._skip(_BLANKS_AND_LINES)
        elif letter == "(":
            self._at += 1
            groups.append(Group(at))
        elif letter == ")" and len(groups) > 1:
            self._at += 1
            groups.pop()
            groups[-1].items.append(group.expression())
        else:
            group.items.append(self._reference())

    def _reference(self) -> Reference:
        at = self._at
        name = self._name()
        if name is None:
            raise self._unexpected("a literal, class, name, group, token or the end of the rule")
        reference = Reference(name)
        self._references[reference] = at
        return reference

    def _repeated(self, item: Expression, letter: str) -> Expression:
        if letter != "{":
            self._at += 1
            return optional(item) if letter == "?" else Repeat(item, int(letter == "+"), None)
        at = self._at
        match = _COUNT.match(self._text, at)
        if match is None:
            raise self._source.error(f'a repetition is written {_COUNT_FORMS}, not "{self._shown(at)}"', at)
        if max(len(match[1]), len(match[3] or "")) > MAX_DIGITS:
            raise self._source.error(f"a repetition of more than {10**MAX_DIGITS - 1:,} times", at)
        self._at = match.end()
        least = int(match[1])
        most = least if match[2] is None else int(match[3]) if match[3] else None
        if most is not None and most < least:
            raise self._source.error(f"{match[0]} asks for at least {least} and at most {most}", at)
        return Repeat(item, least, most)

    def _token(self) -> TokenSet:
        at = self._at
        match = _TOKEN.match(self._text, at)
        if match is None:
            raise self._source.error(f'a token is written <[id]>, <text> or !<...>, not "{self._shown(at)}"', at)
        self._at = match.end()
        text, number = match.groups()
        token = int(number) if number else None
        if token is None:
            if self._token_ids is None:
                raise self._source.error(f'no vocabulary to look the token "{text}" up in', at)
            token = self._token_ids(text)
            if token is None:
                raise self._source.error(f'"{text}" is not one token of this model', at)
        return TokenSet(frozenset((token,)), negated=match[0].startswith("!"))

    # Text

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _name(self) -> str | None:
        match = _NAME.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _span(self, pattern: re.Pattern[str], what: str) -> tuple[int, int]:
        """From where to where the inside of something in quotes or brackets goes."""
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._source.error(f"{what} is not closed", self._at)
        self._at = match.end()
        return match.span(1)

    def _shown(self, at: int) -> str:
        return self._text[at : at + 12].splitlines()[0]

    def _unexpected(self, expected: str) -> Exception:
        if self._at >= len(self._text):
            return self._source.error(f"the text ends, expected {expected}", self._at)
        return self._source.error(f'"{self._text[self._at]}" is unexpected here, expected {expected}', self._at)
