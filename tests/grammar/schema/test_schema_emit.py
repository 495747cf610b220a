"""Grammars of hand-made shapes, run by the plain matcher: the texts of exactly the valid values."""

import itertools
import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.grammar import twin
from localllm.grammar.errors import GrammarError, TooComplexError, UnsatisfiableSchemaError, UnsupportedSchemaError
from localllm.grammar.expressions import Grammar
from localllm.grammar.lowering import lower
from localllm.grammar.regular import Language
from localllm.grammar.schema.emit import emit
from localllm.grammar.schema.shapes import ArrayShape, NumberRange, ObjectShape, Shape, Shapes

ANY = Shape(
    has_null=True,
    booleans=frozenset((False, True)),
    numbers=(NumberRange(),),
    strings=Language.any(),
    arrays=(ArrayShape(rest=0),),
    objects=(ObjectShape(families=((Language.any(), 0),)),),
)
NOTHING = Shape()
TRUE = Shape(booleans=frozenset((True,)))
NULL = Shape(has_null=True)
STRING = Shape(strings=Language.any())
INTEGER = Shape(numbers=(NumberRange(is_integer=True),))


def shapes(*table: Shape) -> Shapes:
    """Shape 0 is any value, the last one the root."""
    return Shapes((ANY, *table), len(table), 0)


def strings(*words: str) -> Shape:
    return Shape(strings=Language.of_strings(words))


def integers(least: int, most: int) -> Shape:
    return Shape(numbers=(NumberRange(Fraction(least), Fraction(most), is_integer=True),))


def an_object(*table: Shape, **fields: Any) -> Grammar:
    return emit(shapes(*table, Shape(objects=(ObjectShape(**fields),))))


def an_array(*table: Shape, **fields: Any) -> Grammar:
    return emit(shapes(*table, Shape(arrays=(ArrayShape(**fields),))))


def accepted(grammar: Grammar, *texts: str) -> list[bool]:
    return [twin.matches(grammar, text.encode()) for text in texts]


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# Values


def test_any_value_is_all_of_json() -> None:
    texts = [
        "null",
        "true",
        "-1.5e+3",
        '"\\u00e9"',
        "[]",
        '[1,[[{}]],"a"]',
        '{"a":{"b":[null]},"":0}',
        "[" * 50 + "]" * 50,
    ]
    assert all(accepted(emit(shapes()), *texts))
    broken = ["", "nul", "01", "[1,]", "[,1]", '{"a"}', '{"a":1,}', "{a:1}", '"\n"', "[ ]", "[[]", "1 "]
    assert not any(accepted(emit(shapes()), *broken))


def test_a_shape_is_any_of_its_kinds_of_values() -> None:
    grammar = emit(
        shapes(Shape(True, frozenset((False,)), (NumberRange(is_integer=True),), Language.of_strings(["a"])))
    )
    assert accepted(grammar, "null", "false", "12", '"a"') == [True] * 4
    assert accepted(grammar, "true", "1.5", '"b"', "{}", "[]") == [False] * 5


def test_a_shape_without_values_is_refused() -> None:
    for table in ((NOTHING,), (NOTHING, Shape(objects=(ObjectShape({"a": 1}, frozenset("a")),)))):
        with pytest.raises(UnsatisfiableSchemaError):
            emit(shapes(*table))


def test_a_recursive_shape_goes_as_deep_as_its_values() -> None:
    tree = Shape(objects=(ObjectShape({"left": 1, "right": 1}),), path="#/$defs/tree")
    grammar = emit(shapes(tree))
    assert accepted(grammar, "{}", '{"left":{"right":{}},"right":{}}', '{"left":[]}') == [True, True, False]


def test_a_schema_may_be_deeper_than_python_recurses() -> None:
    depth = 3000
    table = [Shape(arrays=(ArrayShape(rest=number + 2),)) for number in range(depth)]
    grammar = emit(Shapes((ANY, *table, TRUE), 1, 0))
    right = "[" * depth + "true" + "]" * depth
    assert accepted(grammar, right, right[1:-1]) == [True, False]


# Objects


def test_properties_come_in_declared_order_each_at_most_once() -> None:
    grammar = an_object(TRUE, properties={"a": 1, "b": 1, "c": 1}, required=frozenset("b"))
    assert accepted(grammar, '{"b":true}', '{"a":true,"b":true}', '{"b":true,"c":true}') == [True] * 3
    wrong = ["{}", '{"a":true}', '{"b":true,"a":true}', '{"b":true,"b":true}', '{"a":true,,"b":true}', '{,"b":true}']
    assert not any(accepted(grammar, *wrong, '{"b":true,}', '{"b":true "c":true}'))


def test_other_names_follow_the_declared_ones() -> None:
    families = ((Language.of_regex("^x") - Language.of_strings(["a"]), 2),)
    grammar = an_object(TRUE, NULL, properties={"a": 1}, families=families)
    assert accepted(grammar, "{}", '{"xy":null}', '{"a":true,"x":null,"xx":null}') == [True] * 3
    assert accepted(grammar, '{"xy":true}', '{"b":null}', '{"x":null,"a":true}', '{"x":null,}') == [False] * 4


def test_a_declared_name_has_no_second_spelling() -> None:
    grammar = an_object(TRUE, properties={"a": 1}, families=((Language.any() - Language.of_strings(["a"]), 0),))
    assert accepted(grammar, '{"a":1}', '{"\\u0061":1}', '{"aa":1}') == [False, False, True]


@pytest.mark.parametrize("name", ["", 'say "hi"', "back\\slash", "line\nfeed", "\x01\x7f", "käse 🧀", "~1/"])
def test_names_may_hold_anything(name: str) -> None:
    grammar = an_object(TRUE, properties={name: 1}, required=frozenset((name,)))
    assert accepted(grammar, compact({name: True}), "{}") == [True, False]


def test_a_name_that_has_no_text_is_never_there() -> None:
    assert accepted(an_object(TRUE, properties={"\ud800": 1, "b": 1}), "{}", '{"b":true}') == [True, True]
    with pytest.raises(UnsatisfiableSchemaError):
        an_object(TRUE, properties={"\ud800": 1}, required=frozenset(("\ud800",)))


def test_a_property_that_permits_nothing_is_never_there() -> None:
    grammar = an_object(TRUE, NOTHING, properties={"a": 2, "b": 1, "c": 2}, required=frozenset("b"))
    assert accepted(grammar, '{"b":true}', '{"a":null,"b":true}', "{}") == [True, False, False]


def subsets(names: str) -> Iterator[tuple[str, ...]]:
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)


@settings(max_examples=60, deadline=None)
@given(
    required=st.sets(st.sampled_from("abcd")),
    least=st.integers(0, 5),
    most=st.none() | st.integers(0, 6),
    kind=st.sampled_from(["closed", "few", "open"]),
    order=st.sampled_from(["declared", "any"]),
)
def test_counts_and_required_names_hold_in_every_combination(
    required: set[str], least: int, most: int | None, kind: str, order: Any
) -> None:
    family = {"closed": None, "few": Language.of_strings("xyz"), "open": Language.of_regex("^[xyz]+$")}[kind]
    families = () if family is None else ((family, 1),)
    shape = ObjectShape(dict.fromkeys("abcd", 1), frozenset(required), families, least, most)
    table = shapes(TRUE, Shape(objects=(shape,)))
    if kind == "open" and least - len(required) > 1:
        with pytest.raises((UnsupportedSchemaError, UnsatisfiableSchemaError)):
            emit(table, order=order)
        return

    def is_valid(names: tuple[str, ...]) -> bool:
        return required <= set(names) and least <= len(names) and (most is None or len(names) <= most)

    candidates = list(subsets("abcdxyz" if families else "abcd"))
    try:
        grammar = emit(table, order=order)
    except UnsatisfiableSchemaError:
        assert not any(map(is_valid, candidates))
        return
    if not any(map(is_valid, candidates)):
        return  # which the lowering tells
    automaton = twin.Automaton(lower(grammar))
    for names in candidates:
        turned = names if order == "declared" else names[::-1]
        text = compact(dict.fromkeys(turned, True)).encode()
        assert automaton.after_bytes(automaton.start(), text).is_complete is is_valid(names), names


def test_any_order_takes_each_property_once() -> None:
    shape = Shape(objects=(ObjectShape({"a": 1, "b": 2}, frozenset("a"), ((Language.of_strings(["x"]), 1),)),))
    grammar = emit(shapes(TRUE, NULL, shape), order="any")
    texts = ['{"b":null,"a":true}', '{"x":true,"a":true,"b":null}', '{"a":true}']
    assert all(accepted(grammar, *texts))
    assert not any(accepted(grammar, '{"b":null}', '{"a":true,"b":null,"a":true}', '{"a":null}', '{"a":true,}'))


def test_any_order_of_many_properties_is_refused() -> None:
    shape = Shape(objects=(ObjectShape({f"p{n}": 1 for n in range(9)}),))
    with pytest.raises(UnsupportedSchemaError, match="any order"):
        emit(shapes(TRUE, shape), order="any")


def test_an_object_of_many_properties_needs_few_expressions() -> None:
    optional = {f"p{n}": 1 for n in range(2000)}
    grammar = an_object(TRUE, properties=optional)
    assert accepted(grammar, "{}", '{"p0":true,"p7":true,"p1999":true}', '{"p7":true,"p0":true}') == [True, True, False]
    with pytest.raises(TooComplexError):
        an_object(TRUE, properties=optional, least=900)


# Arrays


def test_items_are_counted() -> None:
    grammar = an_array(TRUE, rest=1, least=2, most=3)
    texts = [compact([True] * n) for n in range(5)]
    assert accepted(grammar, *texts, "[true,true,]", "[truetrue]") == [False, False, True, True, False, False, False]
    assert accepted(an_array(TRUE, rest=1, most=100_000), compact([True] * 300)) == [True]


@settings(max_examples=60, deadline=None)
@given(
    n_prefix=st.integers(0, 3),
    has_rest=st.booleans(),
    least=st.integers(0, 4),
    most=st.none() | st.integers(0, 5),
    contains=st.none() | st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3)),
)
def test_items_are_what_their_places_say(
    n_prefix: int, has_rest: bool, least: int, most: int | None, contains: tuple[int, int | None] | None
) -> None:
    """The first items are null, later ones null or true; of those true is what is contained."""
    fields: dict[str, Any] = {"prefix": (1,) * n_prefix, "rest": 2 if has_rest else None, "least": least, "most": most}
    if contains and has_rest:
        fields |= {"contains": 3, "others": 1, "contains_least": contains[0], "contains_most": contains[1]}

    def is_valid(items: tuple[bool | None, ...]) -> bool:
        later = items[n_prefix:]
        if True in items[:n_prefix] or (later and not has_rest):
            return False
        if (
            contains
            and has_rest
            and not contains[0] <= later.count(True) <= (9 if contains[1] is None else contains[1])
        ):
            return False
        return least <= len(items) and (most is None or len(items) <= most)

    candidates = [items for n in range(6) for items in itertools.product((None, True), repeat=n)]
    table = shapes(NULL, Shape(True, frozenset((True,))), TRUE, Shape(arrays=(ArrayShape(**fields),)))
    try:
        automaton = twin.Automaton(lower(emit(table)))
    except (UnsatisfiableSchemaError, GrammarError):
        assert not any(map(is_valid, candidates))
        return
    for items in candidates:
        text = compact(items).encode()
        assert automaton.after_bytes(automaton.start(), text).is_complete is is_valid(items), items


def test_unique_items_of_few_values() -> None:
    grammar = an_array(strings("a", "b", "c"), rest=1, is_unique=True, least=1)
    right = [compact(list(p)) for n in (1, 2, 3) for p in itertools.permutations("abc", n)]
    assert all(accepted(grammar, *right))
    assert not any(accepted(grammar, "[]", '["a","a"]', '["a","b","a"]', '["a","b","c","a"]'))


def test_unique_items_differ_as_values() -> None:
    both = Shape(True, frozenset((True,)), (NumberRange(Fraction(0), Fraction(1), is_integer=True),))
    grammar = an_array(both, rest=1, is_unique=True)
    assert accepted(grammar, "[1,true,0,null]", "[1,1]", "[null,null]", "[true,1,true]") == [True, False, False, False]


def test_unique_items_of_many_values_are_refused_unless_there_is_one() -> None:
    for item in (STRING, INTEGER, integers(1, 100), Shape(arrays=(ArrayShape(rest=0),))):
        with pytest.raises(UnsupportedSchemaError, match="told apart"):
            an_array(item, rest=1, is_unique=True)
    assert accepted(an_array(STRING, rest=1, is_unique=True, most=1), '["a"]', '["a","a"]') == [True, False]
    assert accepted(an_array(integers(1, 40), rest=1, is_unique=True, most=2), "[7,40]", "[7,7]") == [True, False]


# Blanks


def test_blanks_are_one_space_or_a_line_with_few() -> None:
    shape = Shape(objects=(ObjectShape({"a": 1, "b": 1}),))
    grammar = emit(shapes(Shape(arrays=(ArrayShape(rest=0),)), shape), whitespace="flexible")
    value = {"a": [1, {}, [], {"x": [None]}], "b": []}
    assert accepted(grammar, json.dumps(value), compact(value), json.dumps(value, indent=4)) == [True] * 3
    assert accepted(grammar, '{ "a" : [ ] }', "{ }", "{\n\t}", "{\n" + " " * 20 + "}") == [True] * 4
    assert (
        accepted(grammar, '{  "a":[]}', '{"a":[]  }', "{\n\n}", "{\n" + " " * 21 + "}", "{ \n}", " {}") == [False] * 6
    )


def test_compact_texts_hold_no_blanks() -> None:
    grammar = an_object(TRUE, properties={"a": 1, "b": 1})
    assert accepted(grammar, '{"a":true, "b":true}', '{"a": true}', "{ }") == [False] * 3
