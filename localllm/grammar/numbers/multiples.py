"""The decimal texts of a number's multiples, as an automaton; bounds and what else JSON wants it does not know."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

from localllm.grammar.dfa_operations import Row, State
from localllm.grammar.errors import ConstraintError
from localllm.grammar.numbers.bounds import MINUS, POINT, SYMBOLS

N_MOST_MENDABLE = 20
# Behind digits after which no more can make it a multiple.
OTHER = "other"


class Multiples:
    """Texts of digits, with a minus and a point perhaps, that `divisor` divides exactly; no exponents.

    A multiple of p / 10^k in lowest terms has at most k decimals that are not zeros, and p divides it times 10^k. In
    the integer part the state is the remainder by what of p the last k digits cannot mend. In the fraction it is
    (decimals read, remainder of the number so far, times 10^k, by p).

    Raises: ConstraintError where the divisor has no finite decimal notation.
    """

    start: State = 0

    def __init__(self, divisor: Fraction) -> None:
        self._n_decimals = _n_decimals(divisor)
        self._scale: int = 10**self._n_decimals
        self._modulus = int(divisor * self._scale)
        self._whole_modulus = self._modulus // gcd(self._modulus, self._scale)
        # So many digits make up for the factors 2 and 5. Telling remainders that are alike costs time for each of them.
        n_mendable = 0 if self._n_decimals else _n_twos_and_fives(self._modulus)
        self._n_mendable = n_mendable if n_mendable <= N_MOST_MENDABLE else 0
        self._rest = self._modulus // gcd(self._modulus, 10**self._n_mendable)
        self._met: dict[tuple[int, ...], int] = {}

    def row(self, state: State) -> Row:
        row: list[State | None] = [None] * len(SYMBOLS)
        if isinstance(state, int):
            row[:10] = [self._same((10 * state + digit) % self._whole_modulus) for digit in range(10)]
            row[MINUS] = state
            row[POINT] = (0, state * self._scale % self._modulus)
            return row
        assert isinstance(state, tuple)
        n_read, remainder = state
        if n_read == self._n_decimals:
            row[0] = state if remainder == 0 else None
            return row
        unit = 10 ** (self._n_decimals - n_read - 1)
        row[:10] = [(n_read + 1, (remainder + digit * unit) % self._modulus) for digit in range(10)]
        return row

    def accepts(self, state: State) -> bool:
        return state == 0 if isinstance(state, int) else isinstance(state, tuple) and state[1] == 0

    def _same(self, remainder: int) -> int:
        """The first remainder met that all further digits treat like this one.

        After n more digits of the value v the number is divisible if remainder * 10^n + v is: there is at most one such
        v, and for n of `_n_mendable` or more it depends only on the remainder by what has no factor 2 or 5.
        """
        if not self._n_mendable:
            return remainder
        ends = []
        for n in range(self._n_mendable):
            value = -remainder * 10**n % self._modulus
            ends.append(value if value < 10**n else -1)
        return self._met.setdefault((remainder % self._rest, *ends), remainder)


class Others:
    """Texts of digits, with a minus and a point perhaps, that are none of the multiples; no exponents."""

    def __init__(self, multiples: Multiples) -> None:
        self._multiples = multiples
        self.start: State = multiples.start

    def row(self, state: State) -> Row:
        inner: Row = [None] * len(SYMBOLS) if state == OTHER else self._multiples.row(state)
        return [None if symbol > POINT else OTHER if to is None else to for symbol, to in enumerate(inner)]

    def accepts(self, state: State) -> bool:
        return state == OTHER or not self._multiples.accepts(state)


def _n_decimals(divisor: Fraction) -> int:
    n = _n_twos_and_fives(divisor.denominator)
    if 10**n % divisor.denominator:
        raise ConstraintError(f"a multiple of {divisor} cannot be told by its decimals (expected a decimal number)")
    return n


def _n_twos_and_fives(number: int) -> int:
    """How many factors 2, or 5 if those are more."""
    counts = []
    for prime in (2, 5):
        rest, count = number, 0
        while rest % prime == 0:
            rest, count = rest // prime, count + 1
        counts.append(count)
    return max(counts)
