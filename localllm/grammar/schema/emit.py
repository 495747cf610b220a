"""Rules for a schema in normal form; how the schema was written it does not know.

A shape that is used once is written where it is used, up to a depth; others are rules of their own. So Python recurses
to a bounded depth, however deep a schema is, and the automaton waits for the end of few rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from fractions import Fraction

from localllm.grammar.errors import (
    ConstraintError,
    SchemaError,
    TooComplexError,
    UnsatisfiableSchemaError,
    UnsupportedSchemaError,
)
from localllm.grammar.expressions import NEVER, Expression, Grammar, Reference, Terminal
from localllm.grammar.json_text import (
    ANY_ARRAY,
    ANY_OBJECT,
    ANY_VALUE,
    FALSE,
    NULL,
    TRUE,
    Layout,
    Whitespace,
    any_of,
    layout_of,
)
from localllm.grammar.numbers import number_terminal
from localllm.grammar.regular import Language
from localllm.grammar.schema.emit_arrays import (
    Counted,
    Items,
    array_text,
    bounded,
    containing_text,
    unique_text,
)
from localllm.grammar.schema.emit_objects import Members, Order, key_text, object_text, spelled_keys
from localllm.grammar.schema.emit_strings import string_text
from localllm.grammar.schema.shapes import ArrayShape, NumberRange, ObjectShape, Shape, ShapeId, Shapes

MAX_SHAPES = 50_000
MAX_INLINE_DEPTH = 40
MAX_VALUES = 64  # of a shape whose values are told apart

_Values = dict[Hashable, Expression]


def emit(shapes: Shapes, *, whitespace: Whitespace = "compact", order: Order = "declared") -> Grammar:
    """The grammar of the JSON texts of a schema's values.

    whitespace: "compact" or "flexible" (`json_text.layout_of`). order: of the properties of an object, "declared" or
    "any"; properties that are not declared come last, or anywhere.

    Raises:
        UnsupportedSchemaError: what cannot be enforced.
        UnsatisfiableSchemaError: no value is valid, as far as that shows here.
        TooComplexError: more shapes or states than the limits allow.
    """
    return _Emission(shapes, layout_of(whitespace), order).grammar()


def _parts(shape: Shape) -> Iterator[ShapeId]:
    """The shapes that a shape refers to, as often as it does."""
    for array in shape.arrays:
        yield from array.prefix
        if array.rest is not None:
            yield array.rest
        yield from (part for part in (array.contains, array.others) if part is not None)
    for an_object in shape.objects:
        yield from an_object.properties.values()
        yield from (value for _, value in an_object.families)


class _Emission:
    def __init__(self, shapes: Shapes, layout: Layout, order: Order) -> None:
        self._shapes, self._layout, self._order = shapes, layout, order
        self._rules: dict[str, Expression] = {}
        self._known: dict[ShapeId, Expression] = {}  # of shapes that are used more than once, or too deep
        self._waiting: list[tuple[str, ShapeId]] = []  # rules that are referred to and not written
        self._n_uses = self._counted_uses()

    def grammar(self) -> Grammar:
        root = self._written(self._shapes.root, 0)
        if root is NEVER:
            raise UnsatisfiableSchemaError("no value is valid", path=self._shapes.table[self._shapes.root].path)
        self._rules["root"] = root
        while self._waiting:
            name, number = self._waiting.pop()
            self._rules[name] = self._written(number, 0)
        return Grammar({**self._layout.any_rules, **self._rules})

    def _counted_uses(self) -> Counter[ShapeId]:
        table, root = self._shapes.table, self._shapes.root
        uses = Counter([root])
        waiting = [root]
        while waiting:
            number = waiting.pop()
            for part in () if number == self._shapes.any_value else _parts(table[number]):
                uses[part] += 1
                if uses[part] == 1:
                    waiting.append(part)
        if len(uses) > MAX_SHAPES:
            raise TooComplexError(f"a schema of {len(uses):,} parts (at most {MAX_SHAPES:,})")
        return uses

    # Values

    def _value(self, number: ShapeId, depth: int) -> Expression:
        """The text of a value of a shape, where it is used."""
        if number == self._shapes.any_value:
            return Reference(ANY_VALUE)
        known = self._known.get(number)
        if known is not None:
            return known
        shape = self._shapes.table[number]
        is_used_once = self._n_uses[number] == 1
        is_leaf = not shape.arrays and not shape.objects
        if is_leaf or (is_used_once and depth < MAX_INLINE_DEPTH):
            written = self._written(number, depth)
        else:
            name = f"{shape.path} ({number})"
            self._waiting.append((name, number))
            written = Reference(name)
        if not is_used_once:
            self._known[number] = written
        return written

    def _written(self, number: ShapeId, depth: int) -> Expression:
        """The text of a value of a shape: NEVER where it is seen to have none."""
        if number == self._shapes.any_value:
            return Reference(ANY_VALUE)
        shape = self._shapes.table[number]
        ways = self._scalars(shape)
        ways += [self._array(array, shape.path, depth + 1) for array in shape.arrays]
        ways += [self._object(an_object, shape.path, depth + 1) for an_object in shape.objects]
        ways = [way for way in ways if way is not NEVER]
        return any_of(ways) if ways else NEVER

    def _scalars(self, shape: Shape) -> list[Expression]:
        ways: list[Expression] = []
        if shape.strings is not None and not shape.strings.is_empty:
            ways.append(string_text(shape.strings))
        if shape.numbers:
            ways.append(_numbers(shape.numbers, shape.path))
        ways += [TRUE if value else FALSE for value in sorted(shape.booleans)]
        if shape.has_null:
            ways.append(NULL)
        return ways

    def _array(self, array: ArrayShape, path: str, depth: int) -> Expression:
        if array.contains is not None or array.is_unique:
            return self._restricted_array(array, path, depth)
        is_bounded = array.prefix or array.rest is None or array.least or array.most is not None
        if not is_bounded and array.rest == self._shapes.any_value:
            return Reference(ANY_ARRAY)
        return array_text(self._items(array, depth), self._layout)

    def _items(self, array: ArrayShape, depth: int) -> Items:
        prefix = [self._value(item, depth) for item in array.prefix]
        rest = NEVER if array.rest is None else self._value(array.rest, depth)
        return Items(prefix, rest, array.least, array.most)

    def _restricted_array(self, array: ArrayShape, path: str, depth: int) -> Expression:
        """An array of which more is asked than what its items are and how many."""
        items = bounded(self._items(array, depth))
        is_unique = array.is_unique and items.most not in (0, 1)
        contains = None if array.contains_most is None and not array.contains_least else array.contains
        if contains is None:
            if is_unique:
                return unique_text(lambda place: self._values_at(array, place), items, self._layout, path)
            return array_text(items, self._layout)
        if is_unique:
            raise UnsupportedSchemaError("unique items beside `contains`", path=path, keyword="uniqueItems")
        match = self._value(contains, depth)
        matching = Items([NEVER] * len(items.prefix), match, items.least, items.most)
        if array.contains_most is not None:
            rest = NEVER if array.others is None else self._value(array.others, depth)
            items = Items(items.prefix, rest, items.least, items.most)
        counted = Counted(matching, items, array.contains_least, array.contains_most)
        return containing_text(counted, self._layout, path)

    def _object(self, an_object: ObjectShape, path: str, depth: int) -> Expression:
        if not an_object.properties and len(an_object.families) == 1 and not an_object.least and an_object.most is None:
            language, value = an_object.families[0]
            if language.is_any and value == self._shapes.any_value:
                return Reference(ANY_OBJECT)
        declared = [
            (self._member(key_text(name), value, depth), name in an_object.required)
            for name, value in an_object.properties.items()
        ]
        if any(member is NEVER and is_required for member, is_required in declared):
            return NEVER
        extras: list[Expression] = []
        for language, value in an_object.families:
            names = spelled_keys(language)
            if names is None:
                extras.append(self._member(string_text(language), value, depth))
            else:
                declared += [(self._member(key_text(name), value, depth), False) for name in names]
        declared = [entry for entry in declared if entry[0] is not NEVER]
        extras = [member for member in extras if member is not NEVER]
        extra = any_of(extras) if extras else None
        return object_text(Members(declared, extra, an_object.least, an_object.most, path), self._layout, self._order)

    def _member(self, key: Expression | None, value: ShapeId, depth: int) -> Expression:
        """NEVER where it cannot be there."""
        written = NEVER if key is None else self._value(value, depth)
        return NEVER if key is None or written is NEVER else self._layout.member(key, written)

    # Values that are told apart

    def _values_at(self, array: ArrayShape, place: int) -> _Values | None:
        number = array.prefix[place] if place < len(array.prefix) else array.rest
        return {} if number is None else self._values(self._shapes.table[number])

    def _values(self, shape: Shape) -> _Values | None:
        """All values of a shape, by what tells each one apart; None where they are many, or cannot be listed."""
        found: _Values = {("boolean", value): TRUE if value else FALSE for value in shape.booleans}
        if shape.has_null:
            found["null"] = NULL
        for array in shape.arrays:
            if array.most != 0 and (array.prefix or array.rest is not None):
                return None
            found["array"] = array_text(Items((), NEVER, array.least, 0), self._layout)
        for an_object in shape.objects:
            if an_object.properties or an_object.families:
                return None
            found["object"] = object_text(Members([], None, an_object.least, 0, shape.path), self._layout, self._order)
        strings = [] if shape.strings is None else shape.strings.strings(MAX_VALUES)
        numbers = _listed_numbers(shape.numbers)
        if strings is None or numbers is None or len(numbers) > MAX_VALUES:
            return None
        for text in strings:
            found["string", text] = string_text(Language.of_strings([text]))
        for number in numbers:
            found["number", number] = _numbers((NumberRange(number, number),), shape.path)
        return found


def _numbers(ranges: tuple[NumberRange, ...], path: str) -> Terminal:
    try:
        return number_terminal(ranges)
    except (SchemaError, TooComplexError):
        raise
    except ConstraintError as error:
        raise UnsupportedSchemaError(str(error), path=path, keyword="multipleOf") from error


def _listed_numbers(ranges: tuple[NumberRange, ...]) -> set[Fraction] | None:
    """All numbers of these ranges; None where they are many."""
    found: set[Fraction] = set()
    for each in ranges:
        if each.least is None or each.most is None:
            return None
        step = each.multiple_of or Fraction(1 if each.is_integer else 0)
        if each.is_integer:
            step = Fraction(step.numerator)
        if each.least == each.most:
            values = [each.least]
        elif not step or (each.most - each.least) / step > MAX_VALUES:
            return None
        else:
            first = -(-each.least // step)
            values = [step * times for times in range(first, each.most // step + 1)]
        found |= {value for value in values if _is_within(value, each, step)}
    return found


def _is_within(value: Fraction, of: NumberRange, step: Fraction) -> bool:
    is_excluded = (of.excludes_least and value == of.least) or (of.excludes_most and value == of.most)
    return not is_excluded and not (step and value % step) and all(value % other for other in of.not_multiples_of)
