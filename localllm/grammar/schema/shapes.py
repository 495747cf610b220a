"""The normal form of a JSON Schema: for each type of JSON the values it permits; how it was written is gone.

`normalize` makes it of a schema and `emit` makes rules of it. Shapes refer to one another by their index in a table,
so that a recursive schema is a table with a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from localllm.grammar.regular import Language

ShapeId: TypeAlias = int


@dataclass(frozen=True)
class NumberRange:
    """Numbers from `least` to `most`; None is no bound. `is_integer`: only those without a fraction.

    `multiple_of` is positive; with it the numbers are those that it divides exactly. None is a multiple of one of
    `not_multiples_of`; (1,) are numbers that are no integers. One value is a range of its own: `least == most`.
    """

    least: Fraction | None = None
    most: Fraction | None = None
    excludes_least: bool = False
    excludes_most: bool = False
    is_integer: bool = False
    multiple_of: Fraction | None = None
    not_multiples_of: tuple[Fraction, ...] = ()


@dataclass(frozen=True, eq=False)
class ArrayShape:
    """`prefix` are the shapes of the first items, `rest` that of all later ones; None: there are none.

    Of the items after the prefix, from `contains_least` to `contains_most` are of the shape `contains`, all of whose
    values are of `rest` too. Where there is a `contains_most`, the others are of the shape `others`: the values of
    `rest` that are not of `contains` (None: there are none). `is_unique`: no two items are equal; there are then only
    finitely many different ones.
    """

    prefix: tuple[ShapeId, ...] = ()
    rest: ShapeId | None = None
    least: int = 0
    most: int | None = None
    contains: ShapeId | None = None
    contains_least: int = 1
    contains_most: int | None = None
    others: ShapeId | None = None
    is_unique: bool = False


@dataclass(frozen=True, eq=False)
class ObjectShape:
    """`properties`: the shapes of values by name, in declared order. `required`: names, each one in `properties`.

    `families`: the other names that may be there, as disjoint languages that hold no name of `properties`, with the
    shapes of their values. `least` and `most` count all properties.
    """

    properties: Mapping[str, ShapeId] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    families: tuple[tuple[Language, ShapeId], ...] = ()
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Shape:
    """A value is valid if it is one of these. `strings` is the language of strings (of code points, not of JSON).

    `path` is where in the schema it came from, for messages.
    """

    has_null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[NumberRange, ...] = ()
    strings: Language | None = None
    arrays: tuple[ArrayShape, ...] = ()
    objects: tuple[ObjectShape, ...] = ()
    path: str = "#"


@dataclass(frozen=True, eq=False)
class Shapes:
    """The normal form of a whole schema: shape `root` of a table. `any_value`: the index of the shape of all values, if
    the table has one. `warnings`: what was left out because the schema asked for leniency."""

    table: Sequence[Shape]
    root: ShapeId
    any_value: ShapeId | None = None
    warnings: tuple[str, ...] = ()
