"""The decimal texts of the numbers between two bounds, as an automaton; divisors it does not know.

A text is compared with a bound while it is read. Of the integer part only the digits so far are known, not how many
will come: a comparison is (digits read, how they compare with as many digits of the bound) until there are more than
the bound has. Of the fraction it is the remainder of the bound: what is left of it, times a power of ten, where the
digits read are the bound's own; the digits of a rational number repeat, so there are finitely many.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

from localllm.grammar.dfa_operations import Row, State

# Symbols, by place: the digits, minus, point, the exponent's letter, plus.
MINUS, POINT, EXPONENT, PLUS = 10, 11, 12, 13
SYMBOLS = (*(b"%d" % digit for digit in range(10)), b"-", b".", b"eE", b"+")

BELOW, ABOVE = "below", "above"
# How what was read compares with a bound: for good, (digits read, -1, 0 or 1), or a remainder's numerator.
Comparison: TypeAlias = "str | tuple[int, int] | int"


class _Bound:
    """A bound of magnitudes: they are beyond it (`ABOVE` or `BELOW`), or it itself unless it is excluded."""

    def __init__(self, value: Fraction, beyond: str, *, excludes: bool) -> None:
        whole, self._remainder = divmod(value.numerator, value.denominator)
        self._digits = [int(digit) for digit in str(whole)]
        self._denominator = value.denominator
        self._beyond = beyond
        self._excludes = excludes
        self.is_least_of_all = beyond == ABOVE and not value

    def read_whole(self, comparison: Comparison, digit: int) -> Comparison:
        """After one more digit of the integer part."""
        if not isinstance(comparison, tuple):
            return comparison
        n_read, order = comparison
        if n_read == len(self._digits):
            return ABOVE
        order = order or (digit > self._digits[n_read]) - (digit < self._digits[n_read])
        return n_read + 1, order

    def end_whole(self, comparison: Comparison) -> Comparison:
        """Where the integer part has ended."""
        if not isinstance(comparison, tuple):
            return comparison
        n_read, order = comparison
        if n_read < len(self._digits) or order < 0:
            return BELOW
        return ABOVE if order > 0 else self._remainder

    def read_fraction(self, comparison: Comparison, digit: int) -> Comparison:
        """After one more digit of the fraction."""
        if not isinstance(comparison, int):
            return comparison
        own, remainder = divmod(10 * comparison, self._denominator)
        return remainder if digit == own else (ABOVE if digit > own else BELOW)

    def narrowed(self, comparison: tuple[int, int], fewest: int, most: int | None) -> tuple[int, int | None]:
        """From how many to how many digits the integer part of a number beyond the bound has, if others allow these."""
        n_read, order = comparison
        fewest = max(fewest, n_read)
        if self._beyond == ABOVE:
            return max(fewest, len(self._digits) + (order < 0)), most
        longest = len(self._digits) - (order > 0)
        return fewest, longest if most is None else min(most, longest)

    def is_passed(self, comparison: Comparison) -> bool:
        """Whether no number that begins so is beyond the bound; where only its length can tell, False."""
        return isinstance(comparison, str) and comparison != self._beyond

    def permits(self, comparison: Comparison) -> bool:
        """Whether a number that compares so may end."""
        comparison = self.end_whole(comparison)
        if comparison == 0:
            return not self._excludes
        return (BELOW if isinstance(comparison, int) else comparison) == self._beyond


class _Half:
    """The magnitudes of the numbers of one sign."""

    def __init__(self, *bounds: _Bound) -> None:
        self._bounds = bounds
        self.start: tuple[Comparison, ...] = ((0, 0),) * len(bounds)
        # Whether a member times any power of ten is one.
        self.has_exponents = all(bound.is_least_of_all for bound in bounds)

    def read_whole(self, compared: tuple[Comparison, ...], digit: int) -> tuple[Comparison, ...]:
        return tuple([bound.read_whole(c, digit) for bound, c in zip(self._bounds, compared, strict=True)])

    def end_whole(self, compared: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
        return tuple([bound.end_whole(c) for bound, c in zip(self._bounds, compared, strict=True)])

    def read_fraction(self, compared: tuple[Comparison, ...], digit: int) -> tuple[Comparison, ...]:
        return tuple([bound.read_fraction(c, digit) for bound, c in zip(self._bounds, compared, strict=True)])

    def is_passed(self, compared: tuple[Comparison, ...]) -> bool:
        """Whether no number that begins so is a member; in the fraction it may say False too often."""
        fewest, most = 0, None
        for bound, comparison in zip(self._bounds, compared, strict=True):
            if bound.is_passed(comparison):
                return True
            if isinstance(comparison, tuple):
                fewest, most = bound.narrowed(comparison, fewest, most)
        return most is not None and fewest > most

    def permits(self, compared: tuple[Comparison, ...]) -> bool:
        return all(bound.permits(c) for bound, c in zip(self._bounds, compared, strict=True))


# Where in a number a text is.
START, SIGN, ZERO, WHOLE, POINT_READ, FRACTION, EXPONENT_READ, EXPONENT_SIGN, EXPONENT_DIGITS = range(9)
ENDS = (ZERO, WHOLE, FRACTION, EXPONENT_DIGITS)


class Decimals:
    """JSON texts of the numbers between two bounds, None being no bound.

    With `is_integer` digits alone, and no `-0`; else a fraction may follow, and an exponent where it cannot lead out of
    the bounds: if its sign's numbers have no bound but 0. There is a minus only if there are negative numbers.
    """

    start: State = (START, False, ())

    def __init__(
        self,
        least: Fraction | None,
        most: Fraction | None,
        *,
        excludes_least: bool,
        excludes_most: bool,
        is_integer: bool,
    ) -> None:
        self._is_integer = is_integer
        self._halves: dict[bool, _Half] = {}  # by whether there is a minus
        if most is None or most > 0 or (most == 0 and not excludes_most):
            lower = [_Bound(least, ABOVE, excludes=excludes_least)] if least is not None and least >= 0 else []
            upper = [_Bound(most, BELOW, excludes=excludes_most)] if most is not None else []
            self._halves[False] = _Half(*lower, *upper)
        if least is None or least < 0:
            lower = [_Bound(-most, ABOVE, excludes=excludes_most)] if most is not None and most <= 0 else []
            upper = [_Bound(-least, BELOW, excludes=excludes_least)] if least is not None else []
            if is_integer:
                lower.append(_Bound(Fraction(0), ABOVE, excludes=True))
            self._halves[True] = _Half(*lower, *upper)

    def row(self, state: State) -> Row:
        assert isinstance(state, tuple)
        place, is_negative, compared = state
        if place in (START, SIGN):
            return self._first(place, is_negative)
        half = self._halves[is_negative]
        row: list[State | None] = [None] * len(SYMBOLS)
        if place == WHOLE:
            row[:10] = [self._state(WHOLE, is_negative, half.read_whole(compared, digit)) for digit in range(10)]
        elif place in (POINT_READ, FRACTION):
            row[:10] = [self._state(FRACTION, is_negative, half.read_fraction(compared, digit)) for digit in range(10)]
        elif place >= EXPONENT_READ:
            row[:10] = [(EXPONENT_DIGITS, is_negative, compared)] * 10
            if place == EXPONENT_READ:
                row[MINUS] = row[PLUS] = (EXPONENT_SIGN, is_negative, compared)
        if place in (ZERO, WHOLE) and not self._is_integer:
            row[POINT] = self._state(POINT_READ, is_negative, half.end_whole(compared))
        if place in (ZERO, WHOLE, FRACTION) and not self._is_integer and half.has_exponents:
            row[EXPONENT] = (EXPONENT_READ, is_negative, compared)
        return row

    def accepts(self, state: State) -> bool:
        assert isinstance(state, tuple)
        place, is_negative, compared = state
        return place in ENDS and self._halves[is_negative].permits(compared)

    def _first(self, place: int, is_negative: bool) -> Row:
        """What follows before any digit."""
        row: list[State | None] = [None] * len(SYMBOLS)
        half = self._halves.get(is_negative)
        if half is not None:
            row[:10] = [
                self._state(WHOLE if digit else ZERO, is_negative, half.read_whole(half.start, digit))
                for digit in range(10)
            ]
        if place == START and True in self._halves:
            row[MINUS] = (SIGN, True, ())
        return row

    def _state(self, place: int, is_negative: bool, compared: tuple[Comparison, ...]) -> State | None:
        """A state, or None where no number begins so."""
        return None if self._halves[is_negative].is_passed(compared) else (place, is_negative, compared)
