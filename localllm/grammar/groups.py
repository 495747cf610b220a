"""Alternatives that a parser is reading; a parser keeps a stack of them instead of calling itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from localllm.grammar.expressions import Expression, choice, sequence


@dataclass
class Group:
    """`begin`: where it begins in the text. `items` are those of the last alternative, which is still open."""

    begin: int
    alternatives: list[Expression] = field(default_factory=list)
    items: list[Expression] = field(default_factory=list)

    def close_alternative(self) -> None:
        self.alternatives.append(sequence(*self.items))
        self.items = []

    def expression(self) -> Expression:
        """The whole; no item may be added any more."""
        self.close_alternative()
        return choice(self.alternatives)
