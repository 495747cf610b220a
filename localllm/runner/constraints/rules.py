"""Puts grammars together into one; it knows nothing of what they mean."""

from __future__ import annotations

from collections.abc import Mapping

from localllm.grammar.expressions import Choice, Expression, Grammar, Reference, Repeat, Sequence


class Rules:
    """Rules of several grammars side by side, each below names of its own."""

    def __init__(self) -> None:
        self._rules: dict[str, Expression] = {}
        self._n_grammars = 0

    def add(self, grammar: Grammar) -> Expression:
        """Take a grammar's rules; gives what stands for its root."""
        renamed = _Renamed({name: f"{self._n_grammars}.{name}" for name in grammar.rules})
        self._n_grammars += 1
        self._rules |= {renamed.name(name): renamed.of(body) for name, body in grammar.rules.items()}
        return Reference(renamed.name(grammar.root))

    def grammar(self, root: Expression) -> Grammar:
        """All rules, and one to begin with."""
        return Grammar({**self._rules, "answer": root}, "answer")


class _Renamed:
    """Expressions with other names in them; what has none stays the object that it is, and what is shared stays so."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._done: dict[int, Expression] = {}

    def name(self, rule: str) -> str:
        """A rule's new name; one that there is not keeps a name by which it can be blamed."""
        return self._names.get(rule, rule)

    def of(self, expression: Expression) -> Expression:
        known = self._done.get(id(expression))
        if known is None:
            known = self._done[id(expression)] = self._made(expression)
        return known

    def _made(self, expression: Expression) -> Expression:
        if isinstance(expression, Reference):
            return Reference(self.name(expression.rule))
        if isinstance(expression, Repeat):
            item = self.of(expression.item)
            return expression if item is expression.item else Repeat(item, expression.least, expression.most)
        if isinstance(expression, Sequence | Choice):
            items = tuple(self.of(item) for item in expression.items)
            is_same = all(a is b for a, b in zip(items, expression.items, strict=True))
            return expression if is_same else type(expression)(items)
        return expression
