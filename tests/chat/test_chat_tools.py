"""Tool calls of every family found in streamed text, whatever the cuts; what is no call stays text."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.chat.parts import Part, Text, ToolCall, joined
from localllm.chat.tools import CallReader, Tools
from localllm.chat.tools.families import BARE, FAMILIES, HERMES
from localllm.chat.tools.syntax import Syntax


def declared(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    declared("look", city=STRING, days=INTEGER, deep={"type": "object"}, all={"type": "boolean"}),
    declared("note.add", text=STRING),
    declared("now"),
]
FAMILY = {family.name: family.syntaxes for family in FAMILIES} | {"bare": (BARE,)}
ROME, OSLO = ToolCall("look", {"city": "Rome", "days": 3}), ToolCall("look", {"city": "Oslo"})
NOW = ToolCall("now", {})
HARD = 'a } b { " ] </x> \\ ü🦙\n2'
DEEP = {"k": [{}, {"s": HARD}], "n": None}


def read(family: str | tuple[Syntax, ...], pieces: list[str] | str, begun: str = "") -> list[Part]:
    syntaxes = FAMILY[family] if isinstance(family, str) else family
    reader = CallReader(syntaxes, Tools(TOOLS), begun)
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return joined([*parts, *reader.flush()])


def said(*parts: Part | str) -> list[Part]:
    return [Text(part) if isinstance(part, str) else part for part in parts]


def named(call: ToolCall, call_id: str) -> ToolCall:
    return ToolCall(call.name, call.arguments, call_id)


R, O = '{"city": "Rome", "days": 3}', '{"city":"Oslo"}'  # noqa: E741
CALL_R, CALL_O = f'{{"name": "look", "arguments": {R}}}', f'{{"name": "look", "arguments": {O}}}'
XML_R = "<function=look>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
XML_O = "<function=look><parameter=city>Oslo</parameter></function>"
GLM_R = "look\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>"
HY_R = f"<tool_call>{GLM_R.replace('look', 'look<tool_sep>')}\n</tool_call>".replace(">", ":opensource>")
K2, K2_ARGS, K2_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
DS, DS_SEP, DS_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
DSML, M3 = "｜DSML｜", "]<]minimax[>["


def invoked(prefix: str, section: str) -> str:
    begin, end, argument = f"<{prefix}", f"</{prefix}", f"<{prefix}parameter name="
    rome = f'{argument}"city">Rome{end}parameter>\n{argument}"days">3{end}parameter>'
    oslo = f'{argument}"city">Oslo{end}parameter>'
    calls = "\n".join(f'{begin}invoke name="look">\n{a}\n{end}invoke>' for a in (rome, oslo))
    return f"Well.\n{begin}{section}>\n{calls}\n{end}{section}> Done"


GOLDEN: list[tuple[str, str, list[Part]]] = [
    ("Hermes", f"<tool_call>\n{CALL_R}\n</tool_call>\n<tool_call>\n{CALL_O}\n</tool_call>", said(ROME, OSLO)),
    ("Hermes", f"Let me see.\n\n<tool_call>{CALL_R}</tool_call>\nand so on ", said("Let me see.", ROME, "and so on ")),
    ("Hermes", f"<tool_call>[{CALL_R}, {CALL_O}]</tool_call>", said(ROME, OSLO)),
    ("Hermes", f"<tool_call>{CALL_R}}}</tool_call>!", said(ROME, "!")),
    ("Hermes", f"<tool_call>{CALL_R}", said(ROME)),
    ("Hermes", '<tool_call>{"name": "functions.now", "arguments": ""}</tool_call>', said(NOW)),
    ("Hermes", '<tool_call>{"name": "now"}</tool_call>', said(NOW)),
    ("Hermes", f'<tool_call>{{"type": "function", "function": {CALL_O}}}</tool_call>', said(OSLO)),
    (
        "Hermes",
        '<tool_call>{"name":"look","arguments":"{\\"city\\":\\"Oslo\\"}"}</tool_call>',
        said(OSLO),
    ),
    ("bare", f"{CALL_R}", said(ROME)),
    ("bare", '\n{"name": "look", "parameters": {"city": "Oslo"}}; ' + CALL_R, said(OSLO, ROME)),
    ("bare", f"[{CALL_R}, {CALL_O}]", said(ROME, OSLO)),
    ("bare", f"{CALL_R} That is it", said(ROME, "That is it")),
    ("Llama", f"<|python_tag|>{CALL_R}", said(ROME)),
    ("Llama", '<|python_tag|>{"name": "look", "parameters": ' + R + "}", said(ROME)),
    ("Llama", '<|python_tag|>look.call(city="Oslo")', said(OSLO)),
    ("Llama", f"<function=look>{R}</function><function=look>{O}</function>", said(ROME, OSLO)),
    ("Qwen coder", f"So\n<tool_call>\n{XML_R}\n</tool_call>\n<tool_call>{XML_O}</tool_call>", said("So", ROME, OSLO)),
    ("Qwen coder", f"{XML_R}\n{XML_O}", said(ROME, OSLO)),
    ("Qwen coder", f"<tool_call>\n{CALL_R}\n</tool_call>", said(ROME)),
    ("Qwen coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", said(NOW)),
    ("Seed", f"<seed:tool_call>\n{XML_R}\n</seed:tool_call>", said(ROME)),
    ("GLM", f"Hm\n<tool_call>{GLM_R}\n</tool_call>\n<tool_call>now\n</tool_call>", said("Hm", ROME, NOW)),
    ("Hy 3", f"<tool_calls:opensource>\n{HY_R}\n</tool_calls:opensource>so", said(ROME, "so")),
    ("GLM", f"<tool_call>{GLM_R.replace(chr(10), '')}</tool_call>", said(ROME)),
    (
        "MiniMax M2",
        invoked("", "minimax:tool_call").replace("</minimax", "</minimax"),
        said("Well.", ROME, OSLO, "Done"),
    ),
    ("Glimmer", invoked("atem:", "function_calls"), said("Well.", ROME, OSLO, "Done")),
    ("DeepSeek V3.2", invoked(DSML, "function_calls"), said("Well.", ROME, OSLO, "Done")),
    ("DeepSeek V4", invoked(DSML, "tool_calls"), said("Well.", ROME, OSLO, "Done")),
    (
        "DeepSeek V4",
        f'<{DSML}tool_calls><{DSML}invoke name="note.add"><{DSML}parameter name="text" string="true">3'
        f"</{DSML}parameter></{DSML}invoke></{DSML}tool_calls>",
        said(ToolCall("note.add", {"text": "3"})),
    ),
    (
        "MiniMax M3",
        f'x{M3}<tool_call>\n{M3}<invoke name="look">{M3}<city>Rome{M3}</city>{M3}<days>3{M3}</days>{M3}</invoke>\n'
        f"{M3}</tool_call>",
        said("x", ROME),
    ),
    (
        "MiniCPM 5",
        '<function name="look"><param name="city">Rome</param><param name="days">3</param></function>\n'
        '<function name="now"></function>',
        said(ROME, NOW),
    ),
    (
        "Kimi K3",
        '<|open|>response<|sep|>Hi<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="look" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        said("Hi", ROME),
    ),
    (
        "Kimi K2",
        f"Ok<|tool_calls_section_begin|>{K2}functions.look:0{K2_ARGS}{R}{K2_END}{K2}functions.look:1{K2_ARGS}{O}{K2_END}"
        "<|tool_calls_section_end|>",
        said("Ok", named(ROME, "functions.look:0"), named(OSLO, "functions.look:1")),
    ),
    (
        "DeepSeek",
        f"<｜tool▁calls▁begin｜>{DS}function{DS_SEP}look\n```json\n{R}\n```{DS_END}\n{DS}function{DS_SEP}look\n```json\n{O}"
        f"\n```{DS_END}<｜tool▁calls▁end｜>",
        said(ROME, OSLO),
    ),
    (
        "DeepSeek",
        f"Fine<｜tool▁calls▁begin｜>{DS}look{DS_SEP}{R}{DS_END}{DS}now{DS_SEP}{{}}{DS_END}<｜tool▁calls▁end｜>",
        said("Fine", ROME, NOW),
    ),
    (
        "Solar",
        f"<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>look<|tool_call:args|>{R}<|tool_call:end|>",
        said(named(ROME, "a1")),
    ),
    ("functionary 3.2", f"look\n{R}>>>look\n{O}", said(ROME, OSLO)),
    ("functionary 3.2", f"all\nLet me look.\n>>>look\n{R}", said("Let me look.", ROME)),
    ("functionary 3.2", "all\nNothing to do", said("Nothing to do")),
    ("Gemma 4", '<|tool_call>call:look{city:<|"|>Rome<|"|>,days:3}<tool_call|>fine', said(ROME, "fine")),
    (
        "Gemma 4",
        '<|tool_call>call:look{deep:{list:[1,<|"|>b: {c}<tool_call|><|"|>],x:true}}<tool_call|>',
        said(ToolCall("look", {"deep": {"list": [1, "b: {c}<tool_call|>"], "x": True}})),
    ),
    (
        "FunctionGemma",
        "<start_function_call>call:look{city:<escape>Rome<escape>,days:3}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        said(ROME, NOW),
    ),
    (
        "LFM2",
        'Yes<|tool_call_start|>[look(city="Rome", days=3), now()]<|tool_call_end|>So.',
        said("Yes", ROME, NOW, "So."),
    ),
    ("Llama 4", '<|python_start|>[look("Rome", days=3)]<|python_end|>', said(ROME)),
    ("Gemma 3", "```tool_code\nlook(city='Oslo')\n```", said(OSLO)),
    ("Olmo 3", '<function_calls>look(city="Rome", days=3)\nnow()</function_calls>', said(ROME, NOW)),
    ("Mistral", f"[TOOL_CALLS][{CALL_R}, {CALL_O}]", said(ROME, OSLO)),
    ("Mistral", f'[TOOL_CALLS] [{{"name":"look","arguments":{O},"id":"abc123def"}}]', said(named(OSLO, "abc123def"))),
    ("Mistral", f"Hm [TOOL_CALLS]look[ARGS]{R}[TOOL_CALLS]now[ARGS]{{}}", said("Hm", ROME, NOW)),
    ("Mistral", f"[TOOL_CALLS]look[CALL_ID]c00000001[ARGS]{R}", said(named(ROME, "c00000001"))),
    (
        "Command R7B",
        f'<|START_ACTION|>[\n{{"tool_call_id": "0", "tool_name": "look", "parameters": {R}}}\n]<|END_ACTION|>',
        said(ROME),
    ),
    (
        "Command R",
        f'Plan: look\nAction:\n```json\n[\n  {{"tool_name": "look", "parameters": {R}}},\n'
        f'  {{"tool_name": "now", "parameters": {{}}}}\n]```\n',
        said("Plan: look", ROME, NOW),
    ),
    ("firefunction", f" functools[{CALL_R}, {CALL_O}]", said(ROME, OSLO)),
    ("Phi 4 mini", f"<|tool_call|>[{CALL_R}]<|/tool_call|>", said(ROME)),
    ("Granite", f"<|tool_call|>[{CALL_R}, {CALL_O}]", said(ROME, OSLO)),
    ("Nemotron", f"<TOOLCALL>[{CALL_R}, {CALL_O}]</TOOLCALL>", said(ROME, OSLO)),
    ("Apriel, MiniMax M1", f"<tool_calls>\n{CALL_R}\n{CALL_O}\n</tool_calls>", said(ROME, OSLO)),
    ("Apriel, MiniMax M1", f"<tool_calls>[{CALL_R}]</tool_calls>", said(ROME)),
    ("Apertus", f'<|tools_prefix|>[{{"look": {R}}}, {{"now": {{}}}}]<|tools_suffix|>', said(ROME, NOW)),
    ("GigaChat", f"Да<|function_call|>{CALL_R}", said("Да", ROME)),
    ("GigaChat 3", f"x<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL_R}", said("x", ROME)),
]
IDS = [f"{family}-{i}" for i, (family, *_) in enumerate(GOLDEN)]


def begun(family: str) -> str:
    return ">>>" if family == "functionary 3.2" else ""


def has_dropped(text: str) -> bool:
    """Tags that are dropped although there is no call: they say that content follows."""
    return "<|open|>" in text or "all\n" in text


def test_every_family_has_a_stream() -> None:
    alike = {"functionary 3.1", "LFM2.5"}
    assert {family.name for family in FAMILIES} - {family for family, *_ in GOLDEN} == alike


@pytest.mark.parametrize(("family", "text", "expected"), GOLDEN, ids=IDS)
def test_calls_whatever_the_cut(family: str, text: str, expected: list[Part]) -> None:
    assert read(family, [text], begun(family)) == expected
    assert read(family, list(text), begun(family)) == expected
    for at in range(1, len(text)):
        assert read(family, [text[:at], text[at:]], begun(family)) == expected, text[:at]


@pytest.mark.parametrize(("family", "text", "expected"), GOLDEN, ids=IDS)
def test_a_call_comes_as_soon_as_it_is_whole_and_no_tag_is_shown(family: str, text: str, expected: list[Part]) -> None:
    reader = CallReader(FAMILY[family], Tools(TOOLS), begun(family))
    shown = "".join(part.text for part in expected if isinstance(part, Text))
    so_far = ""
    n_calls = 0
    for i, letter in enumerate(text):
        for part in reader.feed(letter):
            if isinstance(part, ToolCall):
                n_calls += 1
            else:
                so_far += part.text
        assert shown.startswith(so_far)
        assert reader.n_held <= i + 1
    if not text.startswith("<|python_tag|>look.call"):  # which only the end of the answer ends
        assert n_calls == sum(isinstance(part, ToolCall) for part in expected)


@pytest.mark.parametrize("family", sorted(FAMILY))
def test_an_unfinished_or_broken_call_is_text(family: str) -> None:
    for _, text, expected in (golden for golden in GOLDEN if golden[0] == family):
        for at in range(1, len(text)):
            parts = read(family, [text[:at]], begun(family))
            calls = [part for part in parts if isinstance(part, ToolCall)]
            assert calls == [p for p in expected if isinstance(p, ToolCall)][: len(calls)]
            if not calls and not has_dropped(text):
                assert parts == [Text(text[:at])]


@pytest.mark.parametrize(("family", "text", "expected"), GOLDEN, ids=IDS)
def test_unknown_names_are_text_with_everything_around_them(family: str, text: str, expected: list[Part]) -> None:
    unknown = text.replace("look", "seek").replace("now", "then")
    if any(isinstance(part, ToolCall) and part.name == "note.add" for part in expected):
        unknown = unknown.replace("note.add", "seek")
    for pieces in ([unknown], list(unknown)):
        parts = read(family, pieces, begun(family))
        assert all(isinstance(part, Text) for part in parts)
        assert has_dropped(text) or parts == [Text(unknown)]


NO_CALLS = [
    ("Hermes", '{"name":"Alice","age":3}'),
    ("Hermes", "<tool_call>not json</tool_call>"),
    ("Hermes", '<tool_call>{"name":"look","arguments":{"city":'),
    ("Hermes", '<tool_call>{"name":"look","arguments":[1]}</tool_call>'),
    ("Hermes", '<tool_call>{"name":"look","arguments":{"days":NaN}}</tool_call>'),
    ("Hermes", "the tag <tool_call> begins a call, \n  and </tool_call> ends it "),
    ("Hermes", "<tool_call"),
    ("Hermes", "a < b <tool"),
    ("Hermes", CALL_R),
    ("Hermes", '<tool_call>{"name":"look","arguments":{"deep":' + '{"a":' * 300 + "1" + "}" * 302 + "</tool_call>"),
    ("bare", '{"name":"Alice","age":3}'),
    ("bare", '{"city": "Rome"}'),
    ("bare", "{ look at that }"),
    ("bare", '[1, 2, {"a": 1}]'),
    ("bare", f"Here it is: {CALL_R}"),
    ("bare", '{"name": "look"}'),
    ("bare", '{"name": "look", "arguments": {"city": "Ro'),
    ("Llama", "<|python_tag|>print(1)"),
    ("Qwen coder", "<tool_call>\n<function=look>\n<parameter=city>\nRome"),
    ("Qwen coder", "<tool_call>\n<function=look>\nsome words\n</function></tool_call>"),
    ("LFM2", "<|tool_call_start|>[look(city=open('/x'))]<|tool_call_end|>"),
    ("LFM2", "<|tool_call_start|>[look(**{})]; import os<|tool_call_end|>"),
    ("Mistral", "[TOOL_CALLS][]"),
    ("Command R", "Action: leave the room"),
    ("Gemma 4", "<|tool_call>call:look{city:Rome<tool_call|>"),
]


@pytest.mark.parametrize(("family", "text"), NO_CALLS)
def test_what_merely_looks_like_a_call(family: str, text: str) -> None:
    for pieces in ([text], list(text)):
        assert read(family, pieces) == [Text(text)]


@pytest.mark.parametrize("text", ['{"city": "Rome", ', '{"name": "Alice", ', '{"a', "[[1, "])
def test_an_answer_in_json_streams_once_it_cannot_be_a_call(text: str) -> None:
    reader = CallReader((BARE,), Tools(TOOLS))
    text = text if text != '{"a' else '{"a": '
    assert joined(reader.feed(text)) == [Text(text.rstrip())]


def test_text_streams_up_to_what_may_begin_a_call() -> None:
    reader = CallReader((HERMES,), Tools(TOOLS))
    assert reader.feed("one two") == [Text("one two")]
    assert reader.feed(" \n<tool_") == []
    assert reader.n_held == len(" \n<tool_")
    assert reader.feed("box>") == [Text(" \n<tool_box>")]
    assert reader.n_held == 0


ARGUMENTS = {"city": HARD, "deep": DEEP, "days": -3, "all": True}


def written(family: str) -> str:
    """One call with hard arguments in the syntax of a family whose arguments are JSON."""
    text = json.dumps(ARGUMENTS, ensure_ascii=False)
    samples = [text for f, text, parts in GOLDEN if f == family and R in text and parts and parts[-1] != "x"]
    return samples[0].replace(R, text)


@pytest.mark.parametrize("family", sorted({f for f, text, _ in GOLDEN if R in text}))
def test_braces_quotes_escapes_and_order_of_arguments(family: str) -> None:
    text = written(family)
    for pieces in ([text], list(text)):
        call = next(part for part in read(family, pieces, begun(family)) if isinstance(part, ToolCall))
        assert call.arguments == ARGUMENTS
        assert list(call.arguments) == list(ARGUMENTS)


def test_values_in_elements_are_what_the_schema_says() -> None:
    values = {"city": "42", "days": "42", "deep": '{"a": [1]}', "all": "True", "other": "4", "word": "some words"}
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    (call,) = read("Qwen coder", [f"<tool_call>\n<function=look>\n{text}</function>\n</tool_call>"])
    assert isinstance(call, ToolCall)
    assert call.arguments == {
        "city": "42",
        "days": 42,
        "deep": {"a": [1]},
        "all": True,
        "other": 4,
        "word": "some words",
    }


def test_a_multi_line_value_keeps_its_indentation() -> None:
    code = "  def f():\n\n      return '<b>'\n"
    (call,) = read("Qwen coder", [f"<function=note.add>\n<parameter=text>\n{code}\n</parameter>\n</function>"])
    assert call == ToolCall("note.add", {"text": code})


def test_code_for_an_interpreter() -> None:
    tools = Tools([*TOOLS, declared("python", code=STRING)])
    reader = CallReader(FAMILY["Llama"], tools)
    assert reader.feed("<|python_tag|>import math\nprint(math.pi)") == []
    assert reader.flush() == [ToolCall("python", {"code": "import math\nprint(math.pi)"})]


def test_unpaired_surrogates_in_arguments_are_replaced() -> None:
    (call,) = read("Hermes", ['<tool_call>{"name":"look","arguments":{"city":"\\ud83d!"}}</tool_call>'])
    assert call == ToolCall("look", {"city": "\ufffd!"})


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<tool",
    "_call>",
    CALL_R,
    CALL_O[:9],
    CALL_O[9:],
    "{",
    "}",
    "]",
    ",",
    " ",
    "\n",
]
MORE = ["<function=look>", "</function>", "<parameter=city>", "</parameter>", "x", '"', "[", "look", "<|python_tag|>"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES + MORE), max_size=12), st.sampled_from(sorted(FAMILY)), st.data())
def test_the_cuts_do_not_matter_and_nothing_is_lost(pieces: list[str], family: str, data: st.DataObject) -> None:
    text = "".join(pieces)
    whole = read(family, [text])
    assert read(family, list(text)) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert read(family, parts) == whole
    if not any(isinstance(part, ToolCall) for part in whole):
        assert whole == ([Text(text)] if text else [])


@settings(max_examples=100)
@given(st.sampled_from(GOLDEN), st.data())
def test_golden_streams_in_any_pieces(golden: tuple[str, str, list[Part]], data: st.DataObject) -> None:
    family, text, expected = golden
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert read(family, pieces, begun(family)) == expected


ENDLESS: list[tuple[str, str]] = [
    ("MiniMax M2", '<minimax:tool_call><invoke name="note.add">' + '<parameter name="text">a</parameter>\n' * 2000),
    ("Qwen coder", "<tool_call><function=note.add>" + "<parameter=text>\na\n</parameter>\n" * 2000),
    ("GLM", "<tool_call>look\n" + "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n" * 1500),
    ("Gemma 4", "<|tool_call>call:look{" + 'city:<|"|>Rome<|"|>,' * 4000),
    ("Hermes", '<tool_call>{"name": "look", "arguments": {"city": "' + 'Ro\\"me { ' * 8000),
    ("Hermes", "<tool_call>" * 2000),
    ("Mistral", "[TOOL_CALLS]" * 2000),
    ("Gemma 4", "<|tool_call>" + "\n" * 30_000),
    *((family, opener + "\n" * 60_000) for family, opener in (("Kimi K2", K2), ("MiniCPM 5", ""), ("Hermes", "Well"))),
]


@pytest.mark.parametrize(("family", "text"), ENDLESS, ids=[f"{f}-{t[:12]!r}" for f, t in ENDLESS])
def test_what_grows_for_ever_is_not_read_again_with_every_token(family: str, text: str) -> None:
    started_s = time.process_time()
    read(family, [text[i : i + 4] for i in range(0, len(text), 4)])
    assert time.process_time() - started_s < 3.0


def test_a_call_that_begins_like_the_one_before_has_its_own_arguments() -> None:
    begun = '<minimax:tool_call><invoke name="look"><parameter name="city">Rome</parameter>'
    first, end = '<parameter name="days">3</parameter>', "</invoke></minimax:tool_call>"
    text = f"{begun}{first}{end}{begun}{end}"
    assert read("MiniMax M2", list(text)) == [ROME, ToolCall("look", {"city": "Rome"})]
