"""What shapes are while they are combined: like those of `shapes`, but closed under complement.

Schemas are named by ids of a `Table` (`table.py`), so that a node is made without looking at what its children are.
Nodes are never changed after they were made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from localllm.grammar.regular import Language
from localllm.grammar.schema.ranges import ALL_NUMBERS, Ranges
from localllm.grammar.schema.shapes import ShapeId

ANY: ShapeId = 0
NEVER: ShapeId = 1

ANY_STRING = Language.any()
BOTH = frozenset((False, True))
NEITHER: frozenset[bool] = frozenset()
NO_NAMES: frozenset[str] = frozenset()


class Blame(NamedTuple):
    """The keyword a constraint came from, and where it stands."""

    keyword: str
    path: str


class Some(NamedTuple):
    """At least one property, declared or not, whose name is of `names` has a value of `shape`."""

    names: Language
    shape: ShapeId
    blame: Blame


class Contains(NamedTuple):
    """Of the items from index `start` on, from `least` to `most` are of `shape`."""

    start: int
    shape: ShapeId
    least: int
    most: int | None
    blame: Blame


@dataclass(eq=False, slots=True)
class Evaluated:
    """What unevaluatedProperties and unevaluatedItems do not see: `names` and a language of names, or all of them; the
    first `n_items` items, or all, and those of the shapes `contains`."""

    names: frozenset[str] = NO_NAMES
    language: Language | None = None
    has_all: bool = False
    n_items: int = 0
    contains: tuple[ShapeId, ...] = ()

    def __or__(self, other: Evaluated) -> Evaluated:
        if other is NOTHING or self is other:
            return self
        if self is NOTHING:
            return other
        if self.has_all or other.has_all:
            return ALL
        languages = [found for found in (self.language, other.language) if found is not None]
        return Evaluated(
            self.names | other.names,
            languages[0] | languages[1] if len(languages) == 2 else (languages[0] if languages else None),
            False,
            max(self.n_items, other.n_items),
            tuple(dict.fromkeys((*self.contains, *other.contains))),
        )


NOTHING = Evaluated()
ALL = Evaluated(has_all=True)


@dataclass(eq=False, slots=True)
class ArrayNode:
    """`prefix` then `rest`, as in `ArrayShape`. `unique` and `twins`: where it was said that no two items are equal, or
    that some two are."""

    prefix: tuple[ShapeId, ...] = ()
    rest: ShapeId = ANY
    least: int = 0
    most: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: Blame | None = None
    twins: Blame | None = None
    evaluated: Evaluated = NOTHING

    def item(self, index: int) -> ShapeId:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    @property
    def key(self) -> tuple[object, ...]:
        return (
            self.prefix,
            self.rest,
            self.least,
            self.most,
            self.contains,
            self.unique is None,
            self.twins is None,
            id(self.evaluated),
        )


@dataclass(eq=False, slots=True)
class ObjectNode:
    """`properties` by name; of the other names those of one of the disjoint languages in `families` may be there.

    The languages may hold declared names, which count for nothing. `required` names are in `properties`, where a name
    whose shape is NEVER is forbidden.
    """

    properties: dict[str, ShapeId] = field(default_factory=dict)
    required: frozenset[str] = NO_NAMES
    families: tuple[tuple[Language, ShapeId], ...] = ((ANY_STRING, ANY),)
    least: int = 0
    most: int | None = None
    some: tuple[Some, ...] = ()
    evaluated: Evaluated = NOTHING

    def value(self, name: str) -> ShapeId:
        """The shape of a property of this name; NEVER where there may be none."""
        found = self.properties.get(name)
        if found is not None:
            return found
        for language, shape in self.families:
            if language is ANY_STRING or language.contains(name):
                return shape
        return NEVER

    @property
    def key(self) -> tuple[object, ...]:
        return (
            tuple(self.properties.items()),
            self.required,
            self.families,
            self.least,
            self.most,
            self.some,
            id(self.evaluated),
        )


@dataclass(eq=False, slots=True)
class Node:
    """A set of values, type by type; `strings` is never an empty language."""

    has_null: bool = False
    booleans: frozenset[bool] = NEITHER
    numbers: Ranges = ()
    strings: Language | None = None
    arrays: tuple[ArrayNode, ...] = ()
    objects: tuple[ObjectNode, ...] = ()
    path: str = "#"

    def at(self, path: str) -> Node:
        return replace(self, path=path)


FREE_ARRAY = ArrayNode()
FREE_OBJECT = ObjectNode()
ANYTHING = Node(True, BOTH, ALL_NUMBERS, ANY_STRING, (FREE_ARRAY,), (FREE_OBJECT,))
NOTHING_FITS = Node()


def is_anything(node: Node) -> bool:
    """Whether all values are of it; may overlook it."""
    return node is ANYTHING or (
        node.has_null
        and len(node.booleans) == 2
        and node.numbers == ALL_NUMBERS
        and node.strings is not None
        and node.strings.is_any
        and any(is_free_array(array) for array in node.arrays)
        and any(is_free_object(found) for found in node.objects)
    )


def is_free_array(array: ArrayNode) -> bool:
    return array is FREE_ARRAY or (
        array.rest == ANY
        and all(shape == ANY for shape in array.prefix)
        and not array.least
        and array.most is None
        and not array.contains
        and array.unique is None
        and array.twins is None
        and array.evaluated is NOTHING
    )


def is_free_object(found: ObjectNode) -> bool:
    return found is FREE_OBJECT or (
        not found.required
        and not found.least
        and found.most is None
        and not found.some
        and found.evaluated is NOTHING
        and all(shape == ANY for shape in found.properties.values())
        and len(found.families) == 1
        and found.families[0][1] == ANY
        and found.families[0][0].is_any
    )
