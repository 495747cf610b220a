"""What can be said of expressions before they are lowered: which can end, which may be empty; in linear time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from localllm.grammar.expressions import (
    Choice,
    Expression,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Sequence,
    Terminal,
    TokenSet,
)


class Analysis:
    """`can_end`: it has words; `is_nullable`: an empty one; `n_uses`: at how many places it is used."""

    def __init__(self, grammar: Grammar) -> None:
        self._rules = grammar.rules
        self._all: list[Expression] = []
        self._uses: Counter[int] = Counter()
        self._parents: dict[int, list[Expression]] = {}
        self._collect(grammar)
        self._ending = self._grown(_ends_by_itself)
        self._nullable = self._grown(_is_empty_by_itself)

    def can_end(self, expression: Expression) -> bool:
        return id(expression) in self._ending

    def is_nullable(self, expression: Expression) -> bool:
        return id(expression) in self._nullable

    def n_uses(self, expression: Expression) -> int:
        return self._uses[id(expression)]

    def references(self) -> list[str]:
        """The rules that are referred to."""
        return [e.rule for e in self._all if isinstance(e, Reference)]

    def _collect(self, grammar: Grammar) -> None:
        uses, parents, found = self._uses, self._parents, self._all
        waiting = list(grammar.rules.values())
        for body in waiting:
            uses[id(body)] += 1
        found += {id(body): body for body in waiting}.values()
        for expression in found:
            for part in _parts(expression, grammar.rules):
                parents.setdefault(id(part), []).append(expression)
                uses[id(part)] += 1
                if uses[id(part)] == 1:
                    found.append(part)

    def _grown(self, by_itself: Callable[[Expression], bool]) -> set[int]:
        """The least set of expressions (their ids) that hold those for which it is said and all that follow from them:
        sequences of such, choices of one of them."""
        missing = {id(e): len(e.items) for e in self._all if isinstance(e, Sequence)}
        waiting = [e for e in self._all if by_itself(e)]
        held = {id(e) for e in waiting}
        while waiting:
            for parent in self._parents.get(id(waiting.pop()), ()):
                key = id(parent)
                if key in missing:
                    missing[key] -= 1
                    if missing[key]:
                        continue
                if key not in held:
                    held.add(key)
                    waiting.append(parent)
        return held


def _parts(expression: Expression, rules: Mapping[str, Expression]) -> tuple[Expression, ...]:
    if isinstance(expression, (Sequence, Choice)):
        return expression.items
    if isinstance(expression, Repeat):
        return (expression.item,)
    if isinstance(expression, Reference) and expression.rule in rules:
        return (rules[expression.rule],)
    return ()


def _ends_by_itself(expression: Expression) -> bool:
    if isinstance(expression, Terminal):
        return not expression.dfa.is_empty
    if isinstance(expression, TokenSet):
        return expression.negated or bool(expression.ids)
    return isinstance(expression, Literal) or _is_skippable(expression)


def _is_empty_by_itself(expression: Expression) -> bool:
    if isinstance(expression, Terminal):
        return bool(expression.dfa.accepting[0])
    return (isinstance(expression, Literal) and not expression.data) or _is_skippable(expression)


def _is_skippable(expression: Expression) -> bool:
    if isinstance(expression, Repeat):
        return expression.least == 0
    return isinstance(expression, Sequence) and not expression.items
