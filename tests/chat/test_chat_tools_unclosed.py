"""A model that begins call after call and ends none is read in time that grows with the answer's length."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.chat.parts import Part, Text, ToolCall, joined
from localllm.chat.tools import CallReader, Tools
from localllm.chat.tools.families import BARE, FAMILIES
from localllm.chat.tools.json_text import span_end
from localllm.chat.tools.syntax import Dropped, Syntax
from localllm.chat.tools.tail import Tail, closer_after, json_ends

N_CHARS = 100_000
TOOLS = Tools([{"function": {"name": "f", "parameters": {"properties": {"k": {"type": "string"}}}}}])
_DSML, _M3 = "｜DSML｜", "]<]minimax[>["
_JSON = '{"name": "f", "arguments": {'
_ELEMENTS = "<function=f>\n<parameter=k>\nx\n</parameter>\n<parameter=k>"


def _invoked(prefix: str, section: str) -> str:
    argument = f'<{prefix}parameter name="k">'
    return f'<{prefix}{section}><{prefix}invoke name="f">{argument}x</{prefix}parameter>{argument}'


UNITS: dict[str, str] = {
    "bare": _JSON,
    "Kimi K3": '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="k"<|sep|>x',
    "Kimi K2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{",
    "DeepSeek V3.2": _invoked(_DSML, "function_calls"),
    "DeepSeek V4": _invoked(_DSML, "tool_calls"),
    "DeepSeek": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{",
    "Solar": "<|tool_call:begin|>a<|tool_call:name|>f<|tool_call:args|>{",
    "MiniMax M3": f'{_M3}<tool_call>{_M3}<invoke name="f">{_M3}<k>x{_M3}</k>{_M3}<k>',
    "MiniMax M2": _invoked("", "minimax:tool_call"),
    "Glimmer": _invoked("atem:", "function_calls"),
    "MiniCPM 5": '<function name="f"><param name="k">x</param><param name="k">',
    "Seed": f"<seed:tool_call>\n{_ELEMENTS}",
    "Hy 3": "<tool_call>f<tool_sep><arg_key>k</arg_key><arg_value>".replace(">", ":opensource>"),
    "GLM": "<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>x</arg_value>\n<arg_key>k</arg_key>\n<arg_value>",
    "Qwen coder": f"<tool_call>\n{_ELEMENTS}",
    "Llama": '<|python_tag|>{"name": "f", "parameters": {',
    "functionary 3.1": "<function=f>{",
    "functionary 3.2": '>>>f\n{"k": ',
    "Gemma 4": '<|tool_call>call:f{k:<|"|>',
    "FunctionGemma": "<start_function_call>call:f{k:<escape>x<escape>,",
    "LFM2": '<|tool_call_start|>[f(k="x")\n',
    "LFM2.5": "<|tool_call_start|>[f(k=",
    "Llama 4": '<|python_start|>f(k="x"\n',
    "Gemma 3": '```tool_code\nf(k="x"\n',
    "Olmo 3": '<function_calls>f(k="x"\n',
    "Mistral": "[TOOL_CALLS]f[ARGS]{",
    "Command R7B": f"<|START_ACTION|>[{_JSON}",
    "Command R": f"Action:{_JSON}",
    "firefunction": f"functools[{_JSON}",
    "Phi 4 mini": f"<|tool_call|>[{_JSON}",
    "Granite": f"<|tool_call|>{_JSON}",
    "Nemotron": f"<TOOLCALL>[{_JSON}",
    "Apriel, MiniMax M1": f"<tool_calls>[{_JSON}",
    "Apertus": f"<|tools_prefix|>[{_JSON}",
    "GigaChat": f"<|function_call|>{_JSON}",
    "GigaChat 3": f"<|message_sep|>\n\nfunction call<|role_sep|>{_JSON}",
    "Hermes": f"<tool_call>{_JSON}",
}
FAMILY = {family.name: family.syntaxes for family in FAMILIES} | {"bare": (BARE,)}
MORE: list[tuple[str, str]] = [
    ("Hermes", '<tool_call>{"name": "f", "arguments": "{\\"k\\": '),
    ("Mistral", "[TOOL_CALLS][{"),
    ("Qwen coder", "<function="),
    ("Gemma 4", '<|tool_call>call:f{k:<|"|>x<|"|>,'),
]
LOOPS = [*UNITS.items(), *MORE]


def _read(family: str, text: str, n_piece: int) -> list[Part]:
    reader = CallReader(FAMILY[family], TOOLS)
    parts = [part for i in range(0, len(text), n_piece) for part in reader.feed(text[i : i + n_piece])]
    return joined([*parts, *reader.flush()])


def _begins_calls(syntaxes: tuple[Syntax, ...], unit: str) -> bool:
    return any(unit.startswith(s.openers) for s in syntaxes if not isinstance(s, Dropped))


def test_every_family_has_a_loop_of_calls_that_begin() -> None:
    assert set(UNITS) == set(FAMILY)
    assert all(_begins_calls(FAMILY[family], unit) for family, unit in LOOPS)


@pytest.mark.parametrize("n_piece", [4, N_CHARS])
@pytest.mark.parametrize(("family", "unit"), LOOPS, ids=[f"{f}-{u[:12]!r}" for f, u in LOOPS])
def test_calls_that_never_close_are_text_before_long(family: str, unit: str, n_piece: int) -> None:
    text = (unit * (N_CHARS // len(unit) + 1))[:N_CHARS]
    started_s = time.process_time()
    assert _read(family, text, n_piece) == [Text(text)]
    assert time.process_time() - started_s < 3.0


def test_a_call_among_ones_that_never_close_is_found() -> None:
    whole = '<tool_call>{"name": "f", "arguments": {"k": "x"}}</tool_call>'
    loop = "<tool_call>{" * 20
    assert _read("Hermes", loop + whole + loop, 4) == [Text(loop), ToolCall("f", {"k": "x"}), Text(loop)]
    loop, whole = "<function_calls>f(\n" * 20, '<function_calls>f(k="x")</function_calls>'
    assert _read("Olmo 3", loop + whole + loop, 4) == [Text(loop.rstrip()), ToolCall("f", {"k": "x"}), Text(loop)]


@given(st.text('{}[]"\\ a', max_size=40))
def test_all_ends_of_objects_at_once(text: str) -> None:
    starts = [i for i, letter in enumerate(text) if letter in "{["]
    assert json_ends(text) == {i: end for i in starts if (end := span_end(text, i)) is not None}


@given(st.text("q)] ", max_size=20))
def test_closers_outside_quotes_at_once(text: str) -> None:
    after = closer_after(text, "q", (")", "]"))
    for at in range(len(text)):
        outside = (i for i in range(at, len(text)) if text[i] in ")]" and text.count("q", at, i) % 2 == 0)
        assert after(at) == next(outside, None)


@given(st.text("ab", min_size=1, max_size=20), st.lists(st.integers(0, 20)))
def test_searching_again_finds_the_same(text: str, cuts: list[int]) -> None:
    tail = Tail()
    for cut in cuts:
        assert tail.find(text[cut:], "ab", cut % 3) == text[cut:].find("ab", cut % 3)
