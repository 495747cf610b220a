"""Schemas, and what is made of them, by number: each is looked into once, and only when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from localllm.grammar.errors import TooComplexError, UnsupportedSchemaError
from localllm.grammar.schema import ranges
from localllm.grammar.schema.combining import (
    candidates,
    intersect,
    intersect_arrays,
    intersect_objects,
    limited,
    other_arrays,
    other_objects,
    unite,
)
from localllm.grammar.schema.languages import Languages
from localllm.grammar.schema.nodes import (
    ANY,
    ANYTHING,
    NEVER,
    NOTHING_FITS,
    ArrayNode,
    Blame,
    Node,
    ObjectNode,
    is_anything,
)
from localllm.grammar.schema.shapes import ShapeId

MAX_SHAPES = 20_000
MAX_WORK = 200_000


class EndlessReferenceError(UnsupportedSchemaError):
    """A schema is itself before any value was read. `path` is empty until it is known which reference does it."""

    def __init__(self, path: str, keyword: str) -> None:
        super().__init__("a reference leads back to itself before any value is read", path=path, keyword=keyword)


class Table:
    """Shapes by id. 0 (ANY) are all values, 1 (NEVER) none.

    A shape is defined by a function that makes its node, called once when the node is asked for. Intersections and
    complements of ids are ids at once; the same ones get the same ids, so that those of recursive schemas end.
    """

    def __init__(self) -> None:
        self._ids: dict[Hashable, ShapeId] = {}
        self._makers: list[Callable[[], Node] | None] = [None, None]
        self._nodes: list[Node | None] = [ANYTHING, NOTHING_FITS]
        self._parts: dict[ShapeId, tuple[ShapeId, ...]] = {}
        self._opposites: dict[ShapeId, ShapeId] = {ANY: NEVER, NEVER: ANY}
        self._being_made: set[ShapeId] = set()
        self._being_checked: set[ShapeId] = set()
        self._is_empty: dict[ShapeId, bool] = {ANY: False, NEVER: True}
        self._work = 0
        self.languages = Languages(self.spend)
        self.blame = Blame("not", "#")

    def spend(self, amount: int) -> None:
        """Count steps of work; raises TooComplexError where they are too many."""
        self._work += amount
        if self._work > MAX_WORK:
            raise TooComplexError("a schema needs too many combinations of its parts")

    def define(self, key: Hashable, make: Callable[[], Node]) -> ShapeId:
        """The id of what has this key; `make` is how its node is made where the key is new."""
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._nodes)
            if found >= MAX_SHAPES:
                raise TooComplexError(f"a schema becomes more than {MAX_SHAPES} different shapes")
            self._makers.append(make)
            self._nodes.append(None)
        return found

    def node(self, shape: ShapeId) -> Node:
        """What the shape is. Raises EndlessReferenceError where that needs itself."""
        found = self._nodes[shape]
        if found is not None:
            return found
        if shape in self._being_made:
            raise EndlessReferenceError("", "$ref")
        make = self._makers[shape]
        assert make is not None
        self._being_made.add(shape)
        try:
            found = self._nodes[shape] = make()
        finally:
            self._being_made.discard(shape)
        return found

    def both(self, a: ShapeId, b: ShapeId) -> ShapeId:
        """The values of a that are of b too."""
        if a == b or b == ANY:
            return a
        if a == ANY:
            return b
        if a == NEVER or b == NEVER:
            return NEVER
        parts = tuple(dict.fromkeys((*self.parts(a), *self.parts(b))))
        if len(parts) == 1:
            return parts[0]
        if any(self._opposites.get(part) in parts for part in parts):
            return NEVER
        found = self.define(frozenset(parts), lambda: self._intersection(a, b, parts))
        self._parts.setdefault(found, parts)
        return found

    def parts(self, shape: ShapeId) -> tuple[ShapeId, ...]:
        """The shapes that the shape is the intersection of."""
        return self._parts.get(shape, (shape,))

    def _intersection(self, a: ShapeId, b: ShapeId, parts: tuple[ShapeId, ...]) -> Node:
        one, other = self._nodes[a], self._nodes[b]
        if one is not None and other is not None:
            return intersect(self, one, other)
        found = self.node(parts[0])
        for part in parts[1:]:
            found = intersect(self, found, self.node(part))
        return found

    def any_of(self, shapes: tuple[ShapeId, ...]) -> ShapeId:
        """The values of any of them."""
        parts = tuple(dict.fromkeys(shape for shape in shapes if shape != NEVER))
        if not parts or ANY in parts:
            return ANY if parts else NEVER
        if len(parts) == 1:
            return parts[0]
        return self.define(("any of", frozenset(parts)), lambda: unite(self, [self.node(part) for part in parts]))

    def no(self, shape: ShapeId) -> ShapeId:
        """All values that are not of it."""
        found = self._opposites.get(shape)
        if found is None:
            blame = self.blame
            found = self.define(("no", shape), lambda: self._complement(shape, blame))
            self._opposites[shape] = found
            self._opposites[found] = shape
        return found

    def _complement(self, shape: ShapeId, blame: Blame) -> Node:
        node, before = self.node(shape), self.blame
        self.blame = blame
        try:
            return self.without(ANYTHING, node).at(blame.path)
        finally:
            self.blame = before

    def is_anything(self, shape: ShapeId) -> bool:
        """Whether all values are of it; may overlook it."""
        return shape == ANY or is_anything(self.node(shape))

    def is_empty(self, shape: ShapeId) -> bool:
        """Whether no value is of it. May overlook it, where a schema is made of itself or asks what cannot be told."""
        known = self._is_empty.get(shape)
        if known is not None:
            return known
        if shape in self._being_checked:
            return False
        self._being_checked.add(shape)
        try:
            found = self.is_empty_node(self.node(shape))
        except EndlessReferenceError:
            return False
        except RecursionError:
            found = False
        finally:
            self._being_checked.discard(shape)
        self._is_empty[shape] = found
        return found

    def is_empty_node(self, node: Node) -> bool:
        return (
            not node.has_null
            and not node.booleans
            and not node.numbers
            and node.strings is None
            and all(self.is_empty_array(array) for array in node.arrays)
            and all(self.is_empty_object(found) for found in node.objects)
        )

    def is_empty_array(self, array: ArrayNode) -> bool:
        most = len(array.prefix) if array.least > len(array.prefix) else array.least
        if any(self.is_empty(shape) for shape in array.prefix[:most]):
            return True
        if array.least > len(array.prefix) and self.is_empty(array.rest):
            return True
        return any(part.least and self._has_too_few(array, part.shape, part.start) for part in array.contains)

    def _has_too_few(self, array: ArrayNode, shape: ShapeId, start: int) -> bool:
        items = {array.item(index) for index in range(start, max(len(array.prefix), start))} | {array.rest}
        return all(self.is_empty(self.both(item, shape)) for item in items)

    def is_empty_object(self, found: ObjectNode) -> bool:
        if any(self.is_empty(value) for name, value in found.properties.items() if name in found.required):
            return True
        return any(all(self.is_empty(shape) for _, shape in candidates(self, found, part)) for part in found.some)

    def without_empty(self, node: Node) -> Node:
        """The same values without alternatives that no value is of."""
        arrays = tuple(array for array in node.arrays if not self.is_empty_array(array))
        objects = tuple(found for found in node.objects if not self.is_empty_object(found))
        if len(arrays) == len(node.arrays) and len(objects) == len(node.objects):
            return node
        return replace(node, arrays=arrays, objects=objects)

    def have_disjoint_parts(self, a: Node, b: Node) -> bool:
        """Whether no array and no object is of both; may overlook it."""
        self.spend(1)
        return all(self._are_disjoint_objects(one, other) for one in a.objects for other in b.objects) and all(
            self._are_disjoint_arrays(one, other) for one in a.arrays for other in b.arrays
        )

    def without(self, a: Node, b: Node) -> Node:
        """The values of a that are not of b. What is there of b that plainly is not of a costs nothing."""
        strings = a.strings
        if strings is not None and b.strings is not None:
            strings = self.languages.without(strings, b.strings)
            if strings.is_empty:
                strings = None
        return Node(
            a.has_null and not b.has_null,
            a.booleans - b.booleans,
            ranges.intersect(a.numbers, ranges.complement(b.numbers)) if a.numbers and b.numbers else a.numbers,
            strings,
            tuple(part for array in a.arrays for part in self._array_without(array, b.arrays)),
            tuple(part for found in a.objects for part in self._object_without(found, b.objects)),
            a.path,
        )

    def _array_without(self, array: ArrayNode, others: tuple[ArrayNode, ...]) -> list[ArrayNode]:
        left = [array]
        for other in others:
            found = []
            for part in left:
                if self._are_disjoint_arrays(part, other):
                    found.append(part)
                    continue
                for opposite in other_arrays(self, other, self.blame):
                    both = intersect_arrays(self, part, opposite)
                    if both is not None and not self.is_empty_array(both):
                        found.append(both)
            left = list(limited({part.key: part for part in found}.values()))
            self.spend(len(left))
        return left

    def _object_without(self, found: ObjectNode, others: tuple[ObjectNode, ...]) -> list[ObjectNode]:
        left = [found]
        for other in others:
            kept = []
            for part in left:
                if self._are_disjoint_objects(part, other):
                    kept.append(part)
                    continue
                for opposite in other_objects(self, other, self.blame):
                    both = intersect_objects(self, part, opposite)
                    if both is not None and not self.is_empty_object(both):
                        kept.append(both)
            left = list(limited({part.key: part for part in kept}.values()))
            self.spend(len(left))
        return left

    def _are_disjoint_arrays(self, a: ArrayNode, b: ArrayNode) -> bool:
        both = intersect_arrays(self, a, b)
        return both is None or self.is_empty_array(both)

    def _are_disjoint_objects(self, a: ObjectNode, b: ObjectNode) -> bool:
        required = (*sorted(a.required & b.required), *sorted(a.required ^ b.required))
        return any(self._are_disjoint(a.value(name), b.value(name)) for name in required)

    def _are_disjoint(self, a: ShapeId, b: ShapeId) -> bool:
        if a == b or ANY in (a, b) or NEVER in (a, b):
            return self.is_empty(self.both(a, b))
        try:
            one, other = self.node(a), self.node(b)
        except EndlessReferenceError:
            return False
        if (one.arrays and other.arrays) or (one.objects and other.objects):
            return self.is_empty(self.both(a, b))
        return self._have_disjoint_scalars(one, other)

    def _have_disjoint_scalars(self, a: Node, b: Node) -> bool:
        if (a.has_null and b.has_null) or a.booleans & b.booleans:
            return False
        if a.strings is not None and b.strings is not None and not self.languages.are_disjoint(a.strings, b.strings):
            return False
        return not (a.numbers and b.numbers) or not ranges.intersect(a.numbers, b.numbers)
