"""The table of options: precedence, types, texts of errors, Modelfile parameters."""

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import OptionError
from localllm.options import BY_NAME, IGNORED, OPTIONS, parse_parameter, resolve

JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text() | st.integers())


@given(st.dictionaries(st.sampled_from(sorted(BY_NAME)) | st.text(max_size=5), JSON))
def test_any_request_resolves_or_names_the_option(request_options: dict[str, Any]) -> None:
    try:
        values = resolve({}, request_options)
    except OptionError as error:
        assert any(f'option "{name}" must be' in str(error) for name in request_options)
    else:
        assert set(values) == set(BY_NAME)


@given(st.dictionaries(st.sampled_from(sorted(BY_NAME)), JSON))
def test_resolving_is_idempotent(request_options: dict[str, Any]) -> None:
    try:
        values = resolve({}, request_options)
    except OptionError:
        return
    finite = {name: value for name, value in values.items() if name != "logit_bias"}
    assert resolve({}, finite) | {"logit_bias": None} == values | {"logit_bias": None}


def test_precedence() -> None:
    values = resolve({"temperature": 0.5, "top_k": 7, "stop": ["a"]}, {"temperature": 1, "top_k": None})
    assert (values["temperature"], values["top_k"], values["stop"]) == (1.0, 7, ["a"])
    assert isinstance(values["temperature"], float) and values["top_p"] == 0.9


def test_defaults_are_valid_and_not_shared() -> None:
    values = resolve({}, {})
    assert resolve({}, values) == values
    values["stop"].append("x")
    assert resolve({}, {})["stop"] == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_ctx", "8", 'option "num_ctx" must be of type integer'),
        ("kv_cache_type", 8, 'option "kv_cache_type" must be of type string'),
        ("kv_cache_type", "Q8_0", "option \"kv_cache_type\" must be one of f32, f16, q8_0, q4_0, not 'Q8_0'"),
        ("num_ctx", True, 'option "num_ctx" must be of type integer'),
        ("temperature", 10**350, 'option "temperature" must be of type float32'),
        ("temperature", 1e39, 'option "temperature" must be of type float32'),
        ("seed", 1e30, 'option "seed" must be of type integer'),
        ("seed", float("nan"), 'option "seed" must be of type integer'),
        ("temperature", "hot", 'option "temperature" must be of type float32'),
        ("temperature", False, 'option "temperature" must be of type float32'),
        ("use_mmap", 1, 'option "use_mmap" must be of type boolean'),
        ("stop", "x", 'option "stop" must be of type array'),
        ("stop", [1], 'option "stop" must be of an array of strings'),
        ("num_ctx", -1, 'option "num_ctx" must be at least 0, not -1'),
        ("mirostat", 3, 'option "mirostat" must be in 0..2, not 3'),
        *(
            ("logit_bias", bias, 'option "logit_bias" must be an object of token: bias, or an array of [token, bias]')
            for bias in (5, {"A": 1e39}, [["A", -1e39]])
        ),
        ("logit_bias", "A", 'option "logit_bias" must be an object of token: bias, or an array of [token, bias]'),
    ],
)
def test_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolve({}, {name: value})
    assert str(caught.value) == text


def test_integers_take_floats() -> None:
    assert resolve({}, {"num_predict": 5.9, "seed": -2.0})["num_predict"] == 5


def test_logit_bias_forms() -> None:
    wanted = {"15": 1.5, "hello": -math.inf}
    assert resolve({}, {"logit_bias": {"15": 1.5, "hello": False}})["logit_bias"] == wanted
    assert resolve({}, {"logit_bias": [[15, 1.5], ["hello", False]]})["logit_bias"] == wanted


def test_unknown_names_are_logged_once_and_never_their_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            resolve({}, {"frobnicate": "the value", "low_vram": True})
    assert caplog.text.count("frobnicate") == 1
    assert "the value" not in caplog.text and "low_vram" not in caplog.text


@pytest.mark.parametrize(
    ("name", "texts", "value"),
    [
        ("temperature", ["0.7"], 0.7),
        ("num_ctx", ["1", "4096"], 4096),
        ("stop", ["a", "b"], ["a", "b"]),
        ("ignore_eos", ["true"], True),
        ("use_mmap", ["0"], False),
        ("kv_cache_type", ["q8_0"], "q8_0"),
        ("low_vram", ["true"], True),
        ("low_vram", ["some"], "some"),
        ("logit_bias", ['{"1": false}'], {"1": False}),
    ],
)
def test_parameters(name: str, texts: list[str], value: Any) -> None:
    assert parse_parameter(name, texts) == value


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("temprature", "1", "unknown parameter 'temprature'", "did you mean `temperature`?"),
        ("Temperature", "1", "unknown parameter 'Temperature'", "did you mean `temperature`?"),
        ("zzz", "1", "unknown parameter 'zzz'", None),
        ("num_ctx", "1.5", "invalid int value [1.5]", None),
        ("num_ctx", "1_000", "invalid int value [1_000]", None),
        ("top_p", "high", "invalid float value [high]", None),
        ("top_p", "nan", "invalid float value [nan]", None),
        ("ignore_eos", "yes", "invalid bool value [yes]", None),
        ("mirostat", "3", 'option "mirostat" must be in 0..2, not 3', None),
        ("kv_cache_type", "q5", "option \"kv_cache_type\" must be one of f32, f16, q8_0, q4_0, not 'q5'", None),
    ],
)
def test_bad_parameters(name: str, text: str, message: str, hint: str | None) -> None:
    with pytest.raises(OptionError) as caught:
        parse_parameter(name, [text])
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_the_table_is_complete() -> None:
    assert len(BY_NAME) == len(OPTIONS) and not IGNORED & set(BY_NAME)
    assert all(option.meaning for option in OPTIONS)
