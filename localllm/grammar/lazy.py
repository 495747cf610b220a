"""When a constraint that waits for a trigger begins, and with which part of the text; it knows no grammars.

Triggers are llama.cpp's: a token; a word or a pattern somewhere in the text; a pattern of the whole text. The
constraint begins after the token with which a trigger is first met. What it must have accepted by then is the text from
where the match's first capture group begins, or the match, if it has none.

A pattern is cut at that group: an automaton reads what is before it, and wherever that may end another one begins with
the rest. So a text is read once, whatever the pattern. Of several places where the group may begin the first counts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.errors import ConstraintError, PatternError
from localllm.grammar.regular import Language
from localllm.grammar.regular.encoding import utf8_dfa
from localllm.grammar.regular.parser import parse
from localllm.grammar.regular.syntax import Alt, Anchor, Cat, Look, Node, Rep

Kind = Literal["token", "word", "pattern", "pattern_full"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order of llama.cpp's numbers

_ANYTHING = r"[\s\S]*"
_SPECIAL = re.compile(r"[.^$|()\[\]{}*+?\\/]")
# What matters where a pattern is divided: escapes, classes, groups, alternatives.
_PARTS = re.compile(r"\\.|\[(?:[^\]\\]|\\.)*\]|\((?:\?(?:P?<(?![=!])|<?[=!]|:))?|\)|\|", re.DOTALL)
_CAPTURES = ("(", "(?<", "(?P<")
_QUANTIFIER = re.compile(r"[*+?]|\{[0-9]")


@dataclass(frozen=True)
class Trigger:
    """`value`: the word or pattern; `token`: the id, of a trigger that is a token."""

    kind: Kind
    value: str = ""
    token: int = -1


@dataclass(frozen=True)
class Beginning:
    """What the constraint must have accepted: the end of a token, or none, then whole tokens as (id, piece)."""

    head: bytes
    tokens: tuple[tuple[int, bytes], ...]


def read_triggers(records: Sequence[Mapping[str, Any]]) -> list[Trigger]:
    """Triggers of `grammar_triggers` as clients of llama.cpp write them: `type` (a name or number), `value`, `token`.

    Raises: ConstraintError.
    """
    return [_trigger(record) for record in records]


def _trigger(record: Mapping[str, Any]) -> Trigger:
    kind = record.get("type")
    if isinstance(kind, int) and not isinstance(kind, bool) and 0 <= kind < len(KINDS):
        kind = KINDS[kind]
    if kind not in KINDS:
        raise ConstraintError(f"the type of a grammar trigger is {kind!r} (expected one of {', '.join(KINDS)})")
    value, token = record.get("value", ""), record.get("token", -1)
    if kind == "token":
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ConstraintError(f"the token of a grammar trigger is {token!r} (expected the id of a token)")
        return Trigger(kind, token=token)
    if not isinstance(value, str) or not value:
        raise ConstraintError(f"the value of a grammar trigger is {value!r} (expected a {kind})")
    return Trigger(kind, value)


class LazyStart:
    """Watches a text until one of its triggers is met.

    Raises: ConstraintError where there is no trigger; PatternError, TooComplexError for a pattern.
    """

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        if not triggers:
            raise ConstraintError("a lazy grammar has no trigger to begin at")
        self._tokens = frozenset(trigger.token for trigger in triggers if trigger.kind == "token")
        self._watches = [watch for trigger in triggers if trigger.kind != "token" for watch in _watches(trigger)]
        self._read: list[tuple[int, bytes]] = []

    def anew(self) -> LazyStart:
        """Another one with the same triggers, which compiles nothing, at the beginning of a text."""
        other = copy.copy(self)
        other._watches, other._read = [watch.anew() for watch in self._watches], []
        return other

    def clone(self) -> LazyStart:
        """Another one at the same place of the same text."""
        other = copy.copy(self)
        other._watches, other._read = [copy.copy(watch) for watch in self._watches], list(self._read)
        return other

    def accept(self, token: int, piece: bytes) -> Beginning | None:
        """Read a token and the bytes that it stands for; where the constraint begins with it, what it begins with."""
        self._read.append((token, piece))
        for watch in self._watches:
            watch.read(piece)
        if token in self._tokens:
            return Beginning(b"", ((token, piece),))
        starts = [start for watch in self._watches if (start := watch.start()) is not None]
        return self._beginning(starts[0]) if starts else None

    def _beginning(self, start: int) -> Beginning:
        end = sum(len(piece) for _, piece in self._read)
        tokens: list[tuple[int, bytes]] = []
        for token, piece in reversed(self._read):
            if end <= start:
                break
            end -= len(piece)
            tokens.insert(0, (token, piece))
        if end < start:
            _, piece = tokens.pop(0)
            return Beginning(piece[start - end :], tuple(tokens))
        return Beginning(b"", tuple(tokens))


class _Watch:
    """One way to match a pattern: a text is of `before` up to some byte, and from there to its end of `rest`."""

    def __init__(self, before: Dfa, rest: Dfa) -> None:
        self._before, self._rest = before, rest
        self._state = 0
        self._starts: dict[int, int] = {}  # by state of `rest`, the first byte it may have begun at
        self._n_read = 0
        self._begin()

    def anew(self) -> _Watch:
        return _Watch(self._before, self._rest)

    def read(self, data: bytes) -> None:
        for byte in data:
            self._n_read += 1
            moved: dict[int, int] = {}
            for state, start in self._starts.items():
                state = self._rest.follow(bytes((byte,)), state)
                if state != DEAD:
                    moved[state] = min(start, moved.get(state, start))
            self._starts = moved
            self._state = self._before.follow(bytes((byte,)), self._state)
            self._begin()

    def start(self) -> int | None:
        """Where the rest begins of a text that is matched as it is."""
        return min((start for state, start in self._starts.items() if self._rest.accepting[state]), default=None)

    def _begin(self) -> None:
        if self._state != DEAD and self._before.accepting[self._state]:
            self._starts.setdefault(0, self._n_read)


def _watches(trigger: Trigger) -> list[_Watch]:
    pattern = trigger.value
    if trigger.kind == "word":
        pattern = _SPECIAL.sub(r"\\\g<0>", pattern)
    parse(pattern)
    around = "" if trigger.kind == "pattern_full" else _ANYTHING
    found = []
    for begin, group, end in _branches(pattern):
        before, rest = pattern[begin:group], pattern[group:end]
        if rest.startswith("^"):
            prefix, rest = "", rest[1:]
        else:
            prefix = f"{around}(?:{before})"
        _check(parse(before), trigger.value, ("end", "ahead"))
        _check(parse(rest), trigger.value, ("start",))
        found.append(_Watch(_dfa(prefix), _dfa(f"(?:{rest}){around}")))
    return found


def _dfa(pattern: str) -> Dfa:
    return utf8_dfa(Language.of_regex(pattern, anchored=True).automaton)


def _branches(pattern: str) -> list[tuple[int, int, int]]:
    """Of each alternative where it begins, where its first capture group begins (or the match) and where it ends."""
    found = []
    begin, depth = 0, 0
    group: int | None = None
    opened = -1  # where the group that is open, and in no other one, begins
    for part in _PARTS.finditer(pattern):
        if part[0] == "|" and depth == 0:
            found.append((begin, begin if group is None else group, part.start()))
            begin, group = part.end(), None
        elif part[0] == ")":
            depth -= 1
            if depth == 0 and opened == group and _QUANTIFIER.match(pattern, part.end()):
                raise PatternError(f'trigger "{pattern}": its capture group is repeated', position=part.end())
        elif part[0].startswith("("):
            if part[0] in _CAPTURES and group is None:
                if depth:
                    raise PatternError(
                        f'trigger "{pattern}": its first capture group is within another one', position=part.start()
                    )
                group = part.start()
            if depth == 0:
                opened = part.start()
            depth += 1
    return [*found, (begin, begin if group is None else group, len(pattern))]


def _check(node: Node, pattern: str, refused: tuple[str, ...]) -> None:
    """What cannot be told of one part of a text is refused where it stands in that part."""
    kind = ""
    if isinstance(node, Anchor):
        kind = node.kind
    elif isinstance(node, Look):
        kind = "behind" if node.is_behind else "ahead"
    if kind in (*refused, "boundary", "inside", "behind"):
        what = {"start": '"^" within it', "end": '"$" before its group', "ahead": "look-ahead before its group"}
        raise PatternError(f'trigger "{pattern}": {what.get(kind, "look-behind or a boundary of words")}')
    if isinstance(node, Cat | Alt):
        for item in node.items:
            _check(item, pattern, refused)
    elif isinstance(node, Rep | Look):
        _check(node.item, pattern, refused)
