"""Formats are what their documents say: dates those of the calendar, addresses those that Python reads."""

import datetime
import ipaddress
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.grammar.dfa import DEAD
from localllm.grammar.expressions import NEVER
from localllm.grammar.regular import Language, json_string
from localllm.grammar.regular.charsets import code_point
from localllm.grammar.regular.formats import RESTRICTIONS
from localllm.grammar.regular.parser import parse


def _has(name: str, text: str) -> bool:
    language = Language.of_format(name)
    assert language is not None
    return language.contains(text)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9999) | st.sampled_from([1900, 2000, 2024, 2100, 400]), st.integers(0, 13), st.integers(0, 32))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    try:
        datetime.date(year, month, day)
        is_date = True
    except ValueError:
        is_date = False
    text = f"{year:04}-{month:02}-{day:02}"
    assert _has("date", text) == is_date
    assert _has("date-time", f"{text}T00:00:00Z") == is_date


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1439), st.integers(0, 95), st.sampled_from("+-"), st.booleans())
def test_the_leap_second_is_the_last_of_a_day_in_utc(minute: int, quarter: int, sign: str, is_last: bool) -> None:
    offset = 15 * quarter if sign == "+" else -15 * quarter
    if is_last:
        minute = (1439 + offset) % 1440
    text = f"{minute // 60:02}:{minute % 60:02}:60{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    assert _has("time", text) == ((minute - offset) % 1440 == 1439)
    assert _has("time", text.replace(":60", ":59"))


_HEX = st.sampled_from(["0", "1", "ffff", "Ab", "00a", "", "12345", "g", "1.2.3.4", "1.2.3.256", "01.2.3.4"])


@settings(max_examples=500, deadline=None)
@given(
    st.lists(_HEX, min_size=1, max_size=9), st.sampled_from(["", "", "::", ":"]), st.sampled_from(["", "", "::", "%1"])
)
def test_addresses_are_those_that_python_reads(groups: list[str], before: str, after: str) -> None:
    text = before + ":".join(groups) + after
    try:
        ipaddress.IPv6Address(text)
        is_address = "%" not in text
    except ValueError:
        is_address = False
    assert _has("ipv6", text) == is_address


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["0", "9", "10", "99", "199", "249", "255", "256", "01", "", "1 "]), min_size=3, max_size=5
    )
)
def test_addresses_of_four_bytes_are_those_that_python_reads(parts: list[str]) -> None:
    text = ".".join(parts)
    try:
        ipaddress.IPv4Address(text)
        is_address = True
    except ValueError:
        is_address = False
    assert _has("ipv4", text) == is_address


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ax-n1_", max_size=4) | st.integers(60, 65).map("b".__mul__), min_size=1, max_size=5))
def test_names_of_hosts_are_labels_of_some_length(labels: list[str]) -> None:
    text = ".".join(labels)
    counted = sum(-(-(len(label) + 1) // 8) * 8 for label in labels[:-1]) + len(labels[-1])
    is_name = counted <= 253 and all(
        0 < len(label) < 64
        and label.replace("-", "a").isalnum()
        and label[0] + label[-1] == (label[0] + label[-1]).replace("-", "")
        and not label.startswith("xn--")
        for label in labels
    )
    assert _has("hostname", text) == is_name


def test_names_of_hosts_are_not_longer_than_the_system_of_names_permits() -> None:
    label = "a" * 63
    assert _has("hostname", ".".join([label, label, label, "a" * 61]))
    assert not _has("hostname", ".".join([label, label, label, "a" * 62]))
    assert _has("hostname", ".".join("1" * 30))


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("date", ["2000-02-29", "0000-01-01"], ["1900-02-29", "2023-02-29", "2023-1-1", "2023-01-01 ", "12023-01-01"]),
        (
            "time",
            ["00:00:00z", "23:59:59.123456+14:00", "23:59:60Z"],
            ["24:00:00Z", "1:00:00Z", "00:00:00", "00:00:60Z", "00:00:00+24:00"],
        ),
        (
            "date-time",
            ["2016-12-31t23:59:60.5Z", "2024-02-29T12:00:00-03:30"],
            ["2024-02-29 12:00:00Z", "2024-02-29", "2024-02-29T12:00Z"],
        ),
        ("duration", ["P3W", "P1Y2M", "PT1H2M3S", "P1DT0S"], ["P", "PT", "P1Y1D", "PT1H1S", "P1W1D", "PT1.5S", "1D"]),
        (
            "uuid",
            ["00000000-0000-0000-0000-00000000000F"],
            ["0000000000000000000000000000000F", "{00000000-0000-0000-0000-00000000000F}"],
        ),
        (
            "email",
            ["a.b+c@d.e", '"a\\" b"@d', "a@[::1]".replace("[", "[IPv6:"), "a" * 64 + "@b"],
            ["a", "a@", "a..b@c", "a@-b", "a" * 65 + "@b", "a@[1.2.3]", "é@b"],
        ),
        (
            "idn-email",
            ["é\u0301@b", "a@münchen.de", "名@例子.例", "a@b"],
            ["a@\u0301b", "a＠b", "a@\u302e", "é" * 65 + "@b"],
        ),
        (
            "uri",
            ["a:", "http://u:p@[::1]:80/a/b?c=d/e?#f", "urn:a:b", "x+1://%41"],
            ["//a", "a", "http://a b", "http://[::g]", "a:#b#c", "http://ä", "a:%4"],
        ),
        ("uri-reference", ["", "../a?b#c", "//h:1", "#", "a:b"], ["1:b", "a\\b", "#a#b", "/é"]),
        ("iri", ["http://ä.example/☃?\ue000"], ["http://a/\ue000", "ä", "http://\ufdd0"]),
        ("iri-reference", ["", "ä/b#☃"], ["1ä:b", "<"]),
        ("uri-template", ["", "{?a,b*,c:3}/x", "{+a.b}", "ä"], ["{", "{a", "{:3}", "{a:0}", "a b", "{a b}"]),
        ("json-pointer", ["", "/", "/a~0~1/é"], ["a", "/~", "/~2"]),
        ("relative-json-pointer", ["0", "10#", "1/a"], ["", "01", "-1", "0##", "1#/a"]),
        (
            "regex",
            ["^(a|[^b-z]{2,3}?)+$", "(?=a)\\d", "[]", "a{1,20}"],
            ["(", "a)", "[b", "a**", "[z-a]", "a{3,2}", "(?i)a", "\\a"],
        ),
    ],
)
def test_examples(name: str, valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if not _has(name, text)] == []
    assert [text for text in invalid if _has(name, text)] == []


def _words(language: Language, n: int) -> list[str]:
    """Words that a walk finds which ends at accepting states by chance."""
    automaton, source, found = language.automaton, random.Random(5), []
    while len(found) < n:
        state, word = 0, ""
        while not automaton.accepting[state] or source.random() > 0.1:
            ways = [(c, target) for c, target in enumerate(automaton.rows[state]) if target != DEAD]
            c, state = source.choice(ways)
            first, last = source.choice(automaton.charsets[c])
            word += chr(code_point(source.randint(first, min(last, first + 60))))
        found.append(word)
    return found


def test_texts_of_patterns_are_patterns() -> None:
    language = Language.of_format("regex")
    assert language is not None
    for word in _words(language, 300):
        parse(word)


def test_what_constrains_nothing_has_no_language() -> None:
    assert all(Language.of_format(name) is None for name in ("int32", "byte", "color", "unknown", "idn-hostname"))
    assert all(Language.of_format(name) is not None for name in RESTRICTIONS)


def test_what_is_in_doubt_is_neither_in_a_format_nor_in_its_complement() -> None:
    names = Language.of_format("hostname")
    assert names is not None
    others = names.complement()
    for text, is_name, is_other in [("a.b", True, False), ("a..b", False, True), ("xn--a", False, False)]:
        assert (names.contains(text), others.contains(text)) == (is_name, is_other)
    assert others.complement() == names
    assert not (Language.of_regex("^x") - names).contains("xn--a")
    assert (names | Language.of_regex("^x")).contains("xn--a")
    assert not (names & Language.of_strings(["xn--a"])).is_empty
    assert json_string(names & Language.of_strings(["xn--a"])) is NEVER
    assert not names.isdisjoint(Language.of_strings(["xn--a"]))
    assert names.isdisjoint(Language.of_regex("[^]{64}:"))
    assert (names & names) == names != Language.of_regex(".")
    assert (names | names.complement()).contains("a..b")


@pytest.mark.parametrize("name", sorted(RESTRICTIONS))
def test_what_is_left_out_may_be_in_the_format(name: str) -> None:
    language = Language.of_format(name)
    assert language is not None
    least, most = language.bounds
    assert (least - most).is_empty and not (most - least).is_empty
