"""Sets of numbers: intersections, unions and complements against membership, number by number."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.grammar.schema import ranges
from localllm.grammar.schema.shapes import NumberRange

VALUES = [Fraction(number, 4) for number in range(-20, 41)] + [Fraction(number) for number in (-900, 77, 1000)]
BOUNDS = st.none() | st.sampled_from(VALUES)
STEPS = st.sampled_from([None, Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3)])


@st.composite
def _ranges(draw: st.DrawFn) -> ranges.Ranges:
    step = draw(STEPS)
    return ranges.canonical(
        NumberRange(
            least=draw(BOUNDS),
            most=draw(BOUNDS),
            excludes_least=draw(st.booleans()),
            excludes_most=draw(st.booleans()),
            is_integer=step is not None and step.denominator == 1,
            multiple_of=step,
            not_multiples_of=draw(st.sampled_from([(), (Fraction(1),), (Fraction(2), Fraction(3, 2))])),
        )
    )


SETS = st.lists(_ranges(), max_size=3).map(lambda found: ranges.unite(part for each in found for part in each))


def _has(numbers: ranges.Ranges, value: Fraction) -> bool:
    return any(_is_in(part, value) for part in numbers)


def _is_in(part: NumberRange, value: Fraction) -> bool:
    if part.least is not None and (value < part.least or (part.excludes_least and value == part.least)):
        return False
    if part.most is not None and (value > part.most or (part.excludes_most and value == part.most)):
        return False
    steps = [Fraction(1)] * part.is_integer + [part.multiple_of] * (part.multiple_of is not None)
    return all((value / step).denominator == 1 for step in steps) and all(
        (value / step).denominator != 1 for step in part.not_multiples_of
    )


@settings(deadline=None, max_examples=300)
@given(SETS, SETS)
def test_sets_of_numbers(a: ranges.Ranges, b: ranges.Ranges) -> None:
    both, either, others = ranges.intersect(a, b), ranges.unite((*a, *b)), ranges.complement(a)
    for value in VALUES:
        in_a, in_b = _has(a, value), _has(b, value)
        assert _has(both, value) == (in_a and in_b)
        assert _has(either, value) == (in_a or in_b)
        assert _has(others, value) != in_a


@settings(deadline=None, max_examples=300)
@given(_ranges())
def test_few_numbers_are_listed(numbers: ranges.Ranges) -> None:
    for part in numbers:
        listed = ranges.listed(part, 50)
        if listed is not None:
            assert all(_is_in(part, value) for value in listed)
            assert set(listed) >= {value for value in VALUES if _is_in(part, value)}


def test_ranges_without_numbers_are_none() -> None:
    one = Fraction(1)
    assert ranges.canonical(NumberRange(least=one, most=one, excludes_most=True)) == ()
    assert ranges.canonical(NumberRange(least=one / 3, most=one / 2, is_integer=True)) == ()
    assert ranges.canonical(NumberRange(is_integer=True, not_multiples_of=(one / 2,))) == ()
