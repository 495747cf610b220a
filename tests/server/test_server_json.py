"""JSON bodies read as Go reads them: error texts, tolerance, and agreement with Python's own decoder."""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.server import go_json
from localllm.server.binding import Bool, Int, List, Place, String, Struct
from localllm.server.go_json import GoJSONError, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_whatever_python_writes_is_read(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse(text.encode("utf-8", "surrogatepass")) == value or "\ud800" <= max(text, default="") <= "\udfff"


@given(VALUES, st.integers(min_value=1))
def test_a_cut_text_is_an_unexpected_end_or_shorter_scalar(value: Any, cut: int) -> None:
    text = json.dumps([value])
    with pytest.raises(GoJSONError, match=r"^unexpected EOF$"):
        parse(text[: cut % len(text)].encode() or b"[")


@given(st.binary(max_size=40))
def test_any_bytes_give_a_value_or_a_go_error(body: bytes) -> None:
    try:
        parse(body)
    except GoJSONError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "missing request body"),
        (" \r\n\t", "missing request body"),
        ("{", "unexpected EOF"),
        ('{"a', "unexpected EOF"),
        ("nul", "unexpected EOF"),
        ("hello", "invalid character 'h' looking for beginning of value"),
        ("{'a':1}", r"invalid character '\'' looking for beginning of object key string"),
        ('{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ('{"a":1 "b":2}', "invalid character '\"' after object key:value pair"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ("[1 2]", "invalid character '2' after array element"),
        ('{"a":NaN}', "invalid character 'N' looking for beginning of value"),
        ('{"a":-Infinity}', "invalid character 'I' in numeric literal"),
        ('{"a":01}', "invalid character '1' after object key:value pair"),
        ('{"a":1.}', "invalid character '}' after decimal point in numeric literal"),
        ('{"a":1ex}', "invalid character 'x' in exponent of numeric literal"),
        ('{"a":trux}', "invalid character 'x' in literal true (expecting 'e')"),
        ('{"a":"b\nc"}', r"invalid character '\n' in string literal"),
        (r'{"a":"\q"}', "invalid character 'q' in string escape code"),
        (r'{"a":"\u12g4"}', r"invalid character 'g' in \u hexadecimal character escape"),
        ("[" * 20_000, "exceeded max depth"),
        ("[" * 5_000 + "]" * 5_000, "exceeded max depth"),
    ],
)
def test_texts(body: str, text: str) -> None:
    with pytest.raises(GoJSONError) as caught:
        parse(body.encode())
    assert str(caught.value) == text


def test_tolerance() -> None:
    assert parse(b'{"a":1} trailing') == {"a": 1}
    assert parse(b'{"a":"\xff"}') == {"a": "\ufffd"}
    assert parse(rb'{"a":"\ud83e\udd99 \ud800"}') == {"a": "\U0001f999 \ufffd"}
    assert parse(b'{"a":1,"a":2}') == {"a": 2}
    assert parse(b"1" * 5000) == float("inf")


STRUCT = Struct("api.Thing", {"name": String(), "flag": Bool(default=None), "ids": List(Int())})


def test_binding() -> None:
    place = Place("Thing")
    assert STRUCT.bind({}, place) == {"name": "", "flag": None, "ids": None}
    bound = STRUCT.bind({"NAME": "x", "Flag": None, "ids": [1, None], "more": []}, place)
    assert bound == {"name": "x", "flag": None, "ids": [1, 0]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"name": 1}, "json: cannot unmarshal number into Go struct field Thing.name of type string"),
        ({"name": {}}, "json: cannot unmarshal object into Go struct field Thing.name of type string"),
        ({"flag": "x"}, "json: cannot unmarshal string into Go struct field Thing.flag of type bool"),
        ({"ids": "x"}, "json: cannot unmarshal string into Go struct field Thing.ids of type []int"),
        ({"ids": [True]}, "json: cannot unmarshal bool into Go struct field Thing.ids of type int"),
        ({"ids": [2**63]}, f"json: cannot unmarshal number {2**63} into Go struct field Thing.ids of type int"),
        ("x", "json: cannot unmarshal string into Go value of type api.Thing"),
    ],
)
def test_binding_errors(value: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        STRUCT.bind(value, Place("Thing"))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'"' + b"a" * 3_000_000, "unexpected EOF"),
        (b"[" + b"1," * 500_000, "invalid JSON: Expecting value: line 1 column 1000002 (char 1000001)"),
        (b"{" + b'"a":1,' * 300_000 + b"x", "invalid JSON: Expecting property name"),
        (b'["' + b"\\n" * 900_000, "invalid JSON: Unterminated string"),
        (b"1" * 3_000_000 + b"x", None),
        (b"[" + b"1," * 30_000 + b"[" * 100_000, "exceeded max depth"),
    ],
)
def test_a_large_body_that_is_no_json_is_told_soon(body: bytes, text: str | None) -> None:
    """Looking at each character would hold up every other client for a second a megabyte."""
    started_s = time.process_time()
    if text is None:
        parse(body)
    else:
        with pytest.raises(GoJSONError) as caught:
            parse(body)
        assert str(caught.value).startswith(text)
    assert time.process_time() - started_s < 0.5


@pytest.mark.anyio
@pytest.mark.parametrize(("n_characters", "is_elsewhere"), [(10, False), (1_100_000, True)])
async def test_large_bodies_are_read_beside_the_loop(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, n_characters: int, is_elsewhere: bool
) -> None:
    threads = []

    def noting(body: bytes) -> Any:
        threads.append(threading.current_thread())
        return parse(body)

    monkeypatch.setattr(go_json, "parse", noting)
    async with running() as r:
        answer = await r.post("/api/generate", {"model": "nope", "prompt": "x" * n_characters})
    assert answer.status_code == 404
    assert [thread is not threading.main_thread() for thread in threads] == [is_elsewhere]


@pytest.mark.parametrize("element", [b"1.5", b"1", b'{"a": "b"}'])
def test_other_threads_get_their_turn_while_a_body_is_read(element: bytes) -> None:
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        parse(b"[" + b",".join([element] * 1000) + b"]")
    finally:
        sys.setprofile(None)
    assert calls.count("call") >= 1000
