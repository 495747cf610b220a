"""Ranges of numbers as automata over their JSON texts; of schemas it knows only how they write a range down."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from localllm.grammar.dfa_operations import Automaton, Intersection, Union, explore
from localllm.grammar.errors import TooComplexError
from localllm.grammar.expressions import Terminal
from localllm.grammar.numbers.bounds import SYMBOLS, Decimals
from localllm.grammar.numbers.multiples import Multiples, Others

if TYPE_CHECKING:  # the package of schemas imports this one
    from localllm.grammar.schema.shapes import NumberRange

# A NumberRange's fields.
_Fields: TypeAlias = tuple[
    "Fraction | None", "Fraction | None", bool, bool, bool, "Fraction | None", "tuple[Fraction, ...]"
]

MAX_DIGITS = 400
"""Of a bound or divisor, before and after the point; the largest number of 64 bits, 1.8e308, has 309."""


def number_terminal(ranges: Sequence[NumberRange]) -> Terminal:
    """The JSON texts of exactly the numbers that are in one of the ranges; an empty automaton where there are none.

    Integers are written without fraction, exponent and `-0`. Other numbers may have a fraction, with any number of
    zeros at its end, and an exponent if their sign's part of the range has neither a bound but 0 nor a divisor, nor
    leaves multiples out. `-0` and its like are there if negative numbers are. Equal ranges give one and the same
    object.

    Raises: ConstraintError for a divisor that is no decimal number; TooComplexError for too many remainders,
    or a bound or divisor of more than `MAX_DIGITS` digits.
    """
    return _terminal(tuple(_fields(of) for of in ranges))


def _fields(of: NumberRange) -> _Fields:
    bounds = of.least, of.most, of.excludes_least, of.excludes_most
    return *bounds, of.is_integer, of.multiple_of, of.not_multiples_of


@functools.lru_cache(maxsize=4096)
def _terminal(ranges: tuple[_Fields, ...]) -> Terminal:
    automata = [_automaton(*fields) for fields in ranges]
    return Terminal(explore(automata[0] if len(automata) == 1 else Union(automata, len(SYMBOLS)), SYMBOLS))


def _automaton(
    least: Fraction | None,
    most: Fraction | None,
    excludes_least: bool,
    excludes_most: bool,
    is_integer: bool,
    multiple_of: Fraction | None,
    not_multiples_of: tuple[Fraction, ...],
) -> Automaton:
    for number in (least, most, multiple_of, *not_multiples_of):
        if number is not None and max(abs(number.numerator), number.denominator) >= 10**MAX_DIGITS:
            raise TooComplexError(f"a bound or divisor of numbers has more than {MAX_DIGITS} digits")
    found: Automaton = Decimals(
        least, most, excludes_least=excludes_least, excludes_most=excludes_most, is_integer=is_integer
    )
    if multiple_of is not None:
        # The integers that p/q divides, in lowest terms, are those that p divides.
        divisor = Fraction(multiple_of.numerator) if is_integer else multiple_of
        if not is_integer or divisor != 1:
            found = Intersection(found, Multiples(divisor))
    for divisor in not_multiples_of:
        found = Intersection(found, Others(Multiples(divisor)))
    return found


INTEGER = _terminal(((None, None, False, False, True, None, ()),))
NUMBER = _terminal(((None, None, False, False, False, None, ()),))
