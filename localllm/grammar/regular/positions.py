"""The places of a pattern's tree and the steps between them; how sets of them become states it does not know."""

from __future__ import annotations

from typing import TypeAlias

from localllm.grammar.errors import TooComplexError
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.syntax import Alt, Anchor, Cat, Look, Node, Rep, Set

MAX_PLACES = 40_000

# What a free step needs: nothing, the kind of an anchor, or what a look finds.
Condition: TypeAlias = str | Look

END = 0


class Positions:
    """Places between the letters of a pattern. From each lead free steps, or one step that takes a letter.

    free: by place the free steps, (condition, place after it).
    letters: by place the letter's charset and the place after it.
    start: the place where a match begins; it ends at END.
    """

    def __init__(self, node: Node) -> None:
        self.free: list[list[tuple[Condition, int]]] = [[]]
        self.letters: dict[int, tuple[Charset, int]] = {}
        self.start = self._add(node, END)

    def _place(self, *steps: tuple[Condition, int]) -> int:
        if len(self.free) >= MAX_PLACES:
            raise TooComplexError(f"a pattern has more than {MAX_PLACES} places, its repetitions written out")
        self.free.append(list(steps))
        return len(self.free) - 1

    def _add(self, node: Node, after: int) -> int:
        """The place where a node begins that is followed by a place."""
        if isinstance(node, Set):
            place = self._place()
            self.letters[place] = (node.charset, after)
            return place
        if isinstance(node, Cat):
            for item in reversed(node.items):
                after = self._add(item, after)
            return after
        if isinstance(node, Alt):
            return self._place(*(("", self._add(item, after)) for item in node.items))
        if isinstance(node, Rep):
            return self._add_repeat(node, after)
        return self._place((node.kind if isinstance(node, Anchor) else node, after))

    def _add_repeat(self, node: Rep, after: int) -> int:
        if node.most is None:
            loop = self._place(("", after))
            self.free[loop].append(("", self._add(node.item, loop)))
            after = loop
        else:
            end = after
            for _ in range(node.most - node.least):
                after = self._place(("", end), ("", self._add(node.item, after)))
        for _ in range(node.least):
            after = self._add(node.item, after)
        return after
