"""Ranges of numbers: their automata against exact arithmetic on the texts."""

import dataclasses
import re
import time
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localllm.grammar.errors import ConstraintError, TooComplexError
from localllm.grammar.numbers import INTEGER, NUMBER, number_terminal
from localllm.grammar.schema.shapes import NumberRange

JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
SMALL_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?")
INTEGER_TEXT = re.compile(r"-?[1-9][0-9]*|0")

decimals = st.builds(lambda n, k: Fraction(n, 10**k), st.integers(-3000, 3000), st.integers(0, 3))
big_decimals = st.builds(lambda n, k: Fraction(n, 10**k), st.integers(-(10**22), 10**22), st.integers(0, 25))
divisors = st.none() | st.sampled_from(
    ["1", "2", "3", "7", "10", "25", "40", "0.1", "0.01", "0.5", "2.5", "0.75", "12.8"]
)


def ranges_between(bounds: st.SearchStrategy[Fraction]) -> st.SearchStrategy[NumberRange]:
    return st.builds(
        NumberRange,
        least=st.none() | bounds,
        most=st.none() | bounds,
        excludes_least=st.booleans(),
        excludes_most=st.booleans(),
        is_integer=st.booleans(),
        multiple_of=divisors.map(lambda text: text and Fraction(text)),
    )


def decimal_text(value: Fraction, zeros: int = 0) -> str:
    """The decimal notation of a value whose denominator divides a power of ten, with zeros at its end."""
    n_decimals = next(n for n in range(60) if 10**n % value.denominator == 0)
    digits = str(abs(value.numerator) * 10**n_decimals // value.denominator).rjust(n_decimals + 1, "0")
    whole, fraction = digits[: len(digits) - n_decimals], digits[len(digits) - n_decimals :] + "0" * zeros
    return ("-" if value < 0 else "") + whole + ("." + fraction if fraction else "")


def is_member(of: NumberRange, text: str) -> bool:
    """What `number_terminal` promises, said with arithmetic."""
    if not (INTEGER_TEXT if of.is_integer else JSON_NUMBER).fullmatch(text):
        return False
    value = Fraction(text)
    if of.least is not None and (value < of.least or (value == of.least and of.excludes_least)):
        return False
    if of.most is not None and (value > of.most or (value == of.most and of.excludes_most)):
        return False
    if of.multiple_of is not None and value % of.multiple_of:
        return False
    if text.startswith("-") and of.least is not None and of.least >= 0:
        return False
    if "e" in text.lower():
        inner, outer = (of.most, of.least) if text.startswith("-") else (of.least, of.most)
        inner_is_far = inner is not None and (inner < 0 if text.startswith("-") else inner > 0)
        return outer is None and not inner_is_far and of.multiple_of is None
    return True


def accepts(of: NumberRange, text: str) -> bool:
    return number_terminal([of]).dfa.accepts(text.encode())


@given(ranges_between(decimals | big_decimals), st.data())
@example(NumberRange(least=Fraction(0), excludes_least=True), None)
@example(NumberRange(most=Fraction(0), excludes_most=True), None)
def test_members_are_those_of_arithmetic(of: NumberRange, data: st.DataObject | None) -> None:
    texts = [
        "",
        "-",
        "0",
        "-0",
        "0.0",
        "-0.0",
        "00",
        "01",
        "1.",
        ".5",
        "-.5",
        "1e",
        "1e5",
        "0e0",
        "-1E+05",
        "0.0e-1",
        "+1",
    ]
    if data is not None:
        near = st.builds(
            lambda value, n, k, zeros: decimal_text(value + Fraction(n, 10**k), zeros),
            st.sampled_from([value for value in (of.least, of.most, Fraction(0)) if value is not None]),
            st.integers(-20, 20),
            st.integers(0, 27),
            st.integers(0, 3),
        )
        scaled = st.builds(
            lambda n, zeros: decimal_text(n * (of.multiple_of or 1), zeros), st.integers(-999, 999), st.integers(0, 2)
        )
        texts += data.draw(
            st.lists(near | scaled | st.from_regex(SMALL_NUMBER, fullmatch=True), min_size=5, max_size=30)
        )
    for text in texts:
        assert accepts(of, text) == is_member(of, text), text


@given(st.integers(-1200, 1200), st.integers(0, 400), st.sampled_from([None, 1, 3, 7, 10, 64]))
def test_every_integer_of_a_range_and_no_other(least: int, width: int, divisor: int | None) -> None:
    of = NumberRange(
        least=Fraction(least),
        most=Fraction(least + width),
        is_integer=True,
        multiple_of=None if divisor is None else Fraction(divisor),
    )
    dfa = number_terminal([of]).dfa
    accepted = [n for n in range(-1700, 1700) if dfa.accepts(b"%d" % n)]
    assert accepted == [n for n in range(least, least + width + 1) if n % (divisor or 1) == 0]


@given(st.lists(ranges_between(decimals), max_size=3), st.lists(decimals.map(decimal_text), max_size=10))
def test_a_union_has_the_members_of_each(several: list[NumberRange], texts: list[str]) -> None:
    dfa = number_terminal(several).dfa
    for text in [*texts, *(decimal_text(of.least) for of in several if of.least is not None)]:
        assert dfa.accepts(text.encode()) == any(is_member(of, text) for of in several)


@pytest.mark.parametrize(
    ("of", "members", "others"),
    [
        # llama.cpp's cases of integer schemas
        (("0", None), "0 10 12 10000", "-1 -10 00 01 -0"),
        (("2", None), "2 3 20 1234567890000000 123456789012345678901234567890", "0 1 -1 01 02"),
        (("456", None), "456 4560 460", "455 356 50 050 -1 -456"),
        (("-123", None), "-123 -122 -11 -1 0 1 123 1234 2345", "-1234 -124 -0"),
        ((None, "9999"), "-99999 0 9999", "10000 99991"),
        ((None, "-9999"), "-10000 -9999", "-9998 0 9999"),
        (("5", "30"), "5 10 30", "05 4 -1 31 123 0123"),
        (("-1", "1"), "-1 0 1", "-11 -10 -2 2 10 11 -0"),
        (("1.5", "9.5"), "2 9", "1 10 2.0"),
        (("7", "7"), "7", "6 8 70 07 7.0"),
        (("8", "7"), "", "7 8 7.5"),
        (("-1", "-0.5"), "-1", "0 -0 -2"),
    ],
)
def test_integers(of: tuple[str | None, str | None], members: str, others: str) -> None:
    least, most = (None if bound is None else Fraction(bound) for bound in of)
    chosen = NumberRange(least=least, most=most, is_integer=True)
    assert [text for text in members.split() if not accepts(chosen, text)] == []
    assert [text for text in others.split() if accepts(chosen, text)] == []


@pytest.mark.parametrize(
    ("of", "members", "others"),
    [
        (NumberRange(Fraction(0), Fraction(1)), "0 1 0.0 1.000 0.999999999999999999999", "-0 -0.0 1.01 2 1e0 0.5e0 01"),
        (
            NumberRange(Fraction("0.1"), Fraction("0.3"), True, True),
            "0.11 0.1000001 0.2999 0.20",
            "0.1 0.10 0.3 0.300 0 1",
        ),
        (NumberRange(Fraction("-1.5"), Fraction("2.25")), "-1.5 -1.50 -0 -0.0 2.25 2.250 0", "-1.51 2.2501 -2 3"),
        (NumberRange(Fraction(0)), "0 1e-06 3E+20 0.5e3", "-0 -1 -1e5"),
        (NumberRange(Fraction(0), None, True), "1e-06 0.01 10", "0 0.0 0e5 0.00e7 -1"),
        (NumberRange(None, Fraction(0), False, True), "-1e-06 -0.01 -10", "0 -0 -0.0 -0e5 1"),
        (NumberRange(Fraction(5)), "5 5.0 500", "4 5e1 4.99 -5"),
        (NumberRange(Fraction(-5)), "-5 0 1e9 -0.5", "-5.1 -1e0"),
        (
            NumberRange(Fraction(1, 7), Fraction(1, 3)),
            "0.142857142857143 0.3333333333",
            "0.142857142857142 0.3333333334 1",
        ),
        (NumberRange(Fraction("0.5"), Fraction("0.5")), "0.5 0.50", "0.51 0.05 5"),
    ],
)
def test_numbers(of: NumberRange, members: str, others: str) -> None:
    assert [text for text in members.split() if not accepts(of, text)] == []
    assert [text for text in others.split() if accepts(of, text)] == []


@pytest.mark.parametrize(
    ("divisor", "is_integer", "members", "others"),
    [
        ("7", True, "0 7 -7 14 700 7007", "1 8 -6 7.0 -0"),
        ("1000000", True, "0 1000000 -23000000", "1 100000 1000001 10000"),
        ("0.01", False, "0 1 1.5 1.50 1.55 1.5500 -3.14", "1.555 0.001 1e0"),
        ("2.5", False, "0 2.5 5 5.0 7.50 -10", "1 2.4 2.55 0.5"),
        ("0.00000001", False, "0.00000075 12", "0.000000005"),
        ("2.5", True, "0 5 10", "2 3 7"),
        ("0.5", True, "0 1 2 -7", "0.5 1.0"),
        ("1.5", False, "1.5 3.0 4.5 -1.50", "2.5 1 3.5"),
    ],
)
def test_multiples(divisor: str, is_integer: bool, members: str, others: str) -> None:
    of = NumberRange(is_integer=is_integer, multiple_of=Fraction(divisor))
    assert [text for text in members.split() if not accepts(of, text)] == []
    assert [text for text in others.split() if accepts(of, text)] == []


def test_large_bounds_are_exact() -> None:
    bound = 10**300 + 7
    of = NumberRange(least=Fraction(-bound), most=Fraction(bound), is_integer=True)
    for value in (bound, -bound, 10**299, 0):
        assert accepts(of, str(value))
    for value in (bound + 1, -bound - 1, 10**301):
        assert not accepts(of, str(value))


def test_a_large_divisor_costs_what_the_range_has() -> None:
    few = NumberRange(Fraction(0), Fraction(100), is_integer=True, multiple_of=Fraction(10**9 + 7))
    assert number_terminal([few]).dfa.n_states == 2
    with pytest.raises(TooComplexError, match="20000 states"):
        number_terminal([NumberRange(is_integer=True, multiple_of=Fraction(10**9 + 7))])


@pytest.mark.parametrize("number", [Fraction(10**5000), Fraction(-(10**400)), Fraction(1, 10**400)])
def test_numbers_of_too_many_digits_are_refused(number: Fraction) -> None:
    for of in (NumberRange(least=number), NumberRange(most=number), NumberRange(multiple_of=abs(number))):
        with pytest.raises(TooComplexError, match="400 digits"):
            number_terminal([of])


@pytest.mark.parametrize("divisor", [901 * 10**298, 3 * 2**500])
def test_a_huge_divisor_is_refused_soon(divisor: int) -> None:
    ranges = [NumberRange(None, Fraction(0), excludes_most=True), NumberRange(Fraction(0), excludes_least=True)]
    begin = time.monotonic()
    with pytest.raises(TooComplexError):
        number_terminal([dataclasses.replace(of, multiple_of=Fraction(divisor)) for of in ranges])
    assert time.monotonic() - begin < 20  # it was minutes


def test_a_divisor_that_is_no_decimal_is_refused() -> None:
    with pytest.raises(ConstraintError, match="1/3"):
        number_terminal([NumberRange(multiple_of=Fraction(1, 3))])
    assert accepts(NumberRange(is_integer=True, multiple_of=Fraction(1, 3)), "5")


def test_many_single_values() -> None:
    values = [7 * n * n for n in range(1000)]
    dfa = number_terminal([NumberRange(Fraction(v), Fraction(v), is_integer=True) for v in values]).dfa
    assert [n for n in range(30_000) if dfa.accepts(b"%d" % n)] == [v for v in values if v < 30_000]


def test_equal_ranges_are_one_object() -> None:
    assert number_terminal([NumberRange(is_integer=True)]) is INTEGER
    assert number_terminal([NumberRange()]) is NUMBER


def test_equal_languages_have_equal_tables() -> None:
    upper = NumberRange(Fraction(5), is_integer=True)
    lower = NumberRange(None, Fraction(4), is_integer=True)
    assert number_terminal([lower, upper]).dfa.key == INTEGER.dfa.key


def test_no_range_has_no_number() -> None:
    dfa = number_terminal([]).dfa
    assert dfa.is_empty and dfa.n_states == 1 and not dfa.accepts(b"")


@pytest.mark.parametrize(
    "of",
    [
        NumberRange(not_multiples_of=(Fraction(1),)),
        NumberRange(Fraction(-3, 2), Fraction(7), not_multiples_of=(Fraction(1), Fraction(1, 4))),
        NumberRange(is_integer=True, not_multiples_of=(Fraction(3), Fraction(5, 2))),
        NumberRange(Fraction(0), multiple_of=Fraction(1, 2), not_multiples_of=(Fraction(6),)),
    ],
)
def test_multiples_that_are_left_out(of: NumberRange) -> None:
    dfa = number_terminal([of]).dfa
    for quarters in range(-50, 200):
        value = Fraction(quarters, 4)
        text = str(value) if value.denominator == 1 else str(float(value))
        is_in = (of.least is None or value >= of.least) and (of.most is None or value <= of.most)
        is_in = is_in and (not of.is_integer or value.denominator == 1)
        is_in = is_in and (of.multiple_of is None or not value % of.multiple_of)
        assert dfa.accepts(text.encode()) == (is_in and all(value % step for step in of.not_multiples_of)), text
    assert not dfa.accepts(b"1.0") or of.not_multiples_of == (Fraction(6),)
