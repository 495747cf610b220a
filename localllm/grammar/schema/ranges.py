"""Sets of numbers as lists of ranges: intersection, union and complement, all exact; of schemas it knows nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

from localllm.grammar.errors import TooComplexError
from localllm.grammar.schema.shapes import NumberRange

Ranges = tuple[NumberRange, ...]

ALL_NUMBERS: Ranges = (NumberRange(),)
INTEGERS: Ranges = (NumberRange(is_integer=True),)

MAX_RANGES = 2000
MAX_PAIRS = 200_000
# Integers in ranges this short are listed where that makes them simpler.
MAX_LISTED = 64
_ONE = Fraction(1)


def point(value: Fraction) -> NumberRange:
    """The one number."""
    return NumberRange(least=value, most=value, is_integer=value.denominator == 1)


def is_point(numbers: NumberRange) -> bool:
    least, most = numbers.least, numbers.most
    return least is not None and (least is most or least == most)


def step_of(numbers: NumberRange) -> Fraction | None:
    """What all of them are multiples of; None where they are all the numbers between the bounds."""
    return numbers.multiple_of or (_ONE if numbers.is_integer else None)


def canonical(numbers: NumberRange) -> Ranges:
    """The same numbers with bounds that are reached, as none, one or (few integers) several ranges."""
    step = step_of(numbers)
    least, most = numbers.least, numbers.most
    if step is not None:
        least, most = _first(least, numbers.excludes_least, step), _last(most, numbers.excludes_most, step)
        numbers = _with_step(numbers, step, least, most)
    if least is None or most is None:
        return () if _is_barred(numbers, step) else (numbers,)
    if least > most:
        return ()
    if least == most:
        is_left_out = numbers.excludes_least or numbers.excludes_most or not _avoids(least, numbers.not_multiples_of)
        return () if is_left_out else (point(least),)
    if _is_barred(numbers, step):
        return ()
    if step is not None and numbers.not_multiples_of and (most - least) / step <= MAX_LISTED:
        values = (least + step * index for index in range(int((most - least) / step) + 1))
        return tuple(point(value) for value in values if _avoids(value, numbers.not_multiples_of))
    return (numbers,)


def _with_step(numbers: NumberRange, step: Fraction, least: Fraction | None, most: Fraction | None) -> NumberRange:
    is_integer = step.denominator == 1
    return NumberRange(
        least=least,
        most=most,
        is_integer=is_integer,
        multiple_of=None if step == 1 else step,
        not_multiples_of=numbers.not_multiples_of,
    )


def _first(bound: Fraction | None, is_excluded: bool, step: Fraction) -> Fraction | None:
    if bound is None:
        return None
    found = math.ceil(bound / step) * step
    return found + step if is_excluded and found == bound else found


def _last(bound: Fraction | None, is_excluded: bool, step: Fraction) -> Fraction | None:
    if bound is None:
        return None
    found = math.floor(bound / step) * step
    return found - step if is_excluded and found == bound else found


def _avoids(value: Fraction, steps: tuple[Fraction, ...]) -> bool:
    return all((value / step).denominator != 1 for step in steps)


def _is_barred(numbers: NumberRange, step: Fraction | None) -> bool:
    return step is not None and any((step / other).denominator == 1 for other in numbers.not_multiples_of)


def listed(numbers: NumberRange, limit: int) -> list[Fraction] | None:
    """The numbers of a canonical range, in order, if there are at most `limit` of them."""
    if is_point(numbers):
        return [Fraction(numbers.least or 0)]
    step = step_of(numbers)
    if step is None or numbers.least is None or numbers.most is None or numbers.not_multiples_of:
        return None
    n_steps = (numbers.most - numbers.least) / step
    return [numbers.least + step * index for index in range(int(n_steps) + 1)] if n_steps < limit else None


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """The numbers of both."""
    if a is b or b == ALL_NUMBERS:
        return a
    if a == ALL_NUMBERS:
        return b
    if all(map(is_point, b)):
        a, b = b, a
    if all(map(is_point, a)):
        values = {part.least for part in b if is_point(part)}
        wide = [part for part in b if not is_point(part)]
        return tuple(part for part in a if part.least in values or any(_contains(other, part) for other in wide))
    if len(a) * len(b) > MAX_PAIRS:
        raise TooComplexError(f"{len(a)} and {len(b)} ranges of numbers are too many to compare")
    return unite(part for one in a for other in b for part in _meet(one, other))


def _meet(a: NumberRange, b: NumberRange) -> Ranges:
    least, excludes_least = _tighter(a.least, a.excludes_least, b.least, b.excludes_least, is_upper=False)
    most, excludes_most = _tighter(a.most, a.excludes_most, b.most, b.excludes_most, is_upper=True)
    if least is not None and most is not None and least > most:
        return ()
    step = _common(step_of(a), step_of(b))
    return canonical(
        NumberRange(
            least=least,
            most=most,
            excludes_least=excludes_least,
            excludes_most=excludes_most,
            is_integer=step is not None and step.denominator == 1,
            multiple_of=step,
            not_multiples_of=tuple(dict.fromkeys((*a.not_multiples_of, *b.not_multiples_of))),
        )
    )


def _tighter(
    a: Fraction | None, excludes_a: bool, b: Fraction | None, excludes_b: bool, *, is_upper: bool
) -> tuple[Fraction | None, bool]:
    if a is None or b is None:
        return (b, excludes_b) if a is None else (a, excludes_a)
    if a == b:
        return a, excludes_a or excludes_b
    return (a, excludes_a) if (a < b) == is_upper else (b, excludes_b)


def _common(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    if a is None or b is None:
        return a or b
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def unite(ranges: Iterable[NumberRange]) -> Ranges:
    """The same numbers without ranges that others contain."""
    found = list({_key(part): part for part in ranges}.values())
    wide = [part for part in found if not is_point(part)]
    if len(wide) > MAX_RANGES:
        raise TooComplexError(f"a schema asks for {len(wide)} ranges of numbers at once (at most {MAX_RANGES})")
    kept: list[NumberRange] = []
    for part in wide:
        if not any(_contains(other, part) for other in kept):
            kept = [*(other for other in kept if not _contains(part, other)), part]
    points = (part for part in found if is_point(part))
    return (*kept, *(part for part in points if not any(_contains(other, part) for other in kept)))


def _key(part: NumberRange) -> object:
    """What equal ranges have in common; quickly found of single numbers."""
    if part.least is not None and part.least is part.most:
        return part.least.numerator, part.least.denominator
    return part


def _contains(a: NumberRange, b: NumberRange) -> bool:
    """Whether a holds all of b; may overlook it where b is no point."""
    if is_point(b) and b.least is not None:
        if not _avoids(b.least, a.not_multiples_of):
            return False
    elif a.not_multiples_of and not set(a.not_multiples_of) <= set(b.not_multiples_of):
        return False
    step = step_of(a)
    if step is not None:
        other = b.least if is_point(b) else step_of(b)
        if other is None or (other / step).denominator != 1:
            return False
    if a.least is not None and (
        b.least is None or b.least < a.least or (b.least == a.least and a.excludes_least and not b.excludes_least)
    ):
        return False
    return a.most is None or not (
        b.most is None or b.most > a.most or (b.most == a.most and a.excludes_most and not b.excludes_most)
    )


def complement(ranges: Ranges) -> Ranges:
    """All numbers that are in none of them."""
    found = _between(sorted({numbers.least for numbers in ranges if is_point(numbers) and numbers.least is not None}))
    for numbers in ranges:
        if not is_point(numbers):
            found = intersect(found, _complement_of_one(numbers))
    return found


def _between(values: list[Fraction]) -> Ranges:
    """All numbers but these, which are in order."""
    if not values:
        return ALL_NUMBERS
    gaps = (
        NumberRange(least=a, most=b, excludes_least=True, excludes_most=True) for a, b in itertools.pairwise(values)
    )
    first = NumberRange(most=values[0], excludes_most=True)
    return (first, *gaps, NumberRange(least=values[-1], excludes_least=True))


def _complement_of_one(numbers: NumberRange) -> Ranges:
    parts = []
    if numbers.least is not None:
        parts.append(NumberRange(most=numbers.least, excludes_most=not numbers.excludes_least))
    if numbers.most is not None:
        parts.append(NumberRange(least=numbers.most, excludes_least=not numbers.excludes_most))
    step = step_of(numbers)
    if step is not None and numbers.least is not None and numbers.most is not None:
        n_gaps = (numbers.most - numbers.least) / step
        if n_gaps <= MAX_LISTED:
            values = [numbers.least + step * index for index in range(int(n_gaps) + 1)]
            excluded = (point(value) for value in values if not _avoids(value, numbers.not_multiples_of))
            return (*_between(values), *excluded)
    inside = NumberRange(
        least=numbers.least,
        most=numbers.most,
        excludes_least=numbers.excludes_least,
        excludes_most=numbers.excludes_most,
    )
    if step is not None:
        parts += _meet(inside, NumberRange(not_multiples_of=(step,)))
    for other in numbers.not_multiples_of:
        parts += _meet(inside, NumberRange(multiple_of=other, is_integer=other.denominator == 1))
    return tuple(parts)
