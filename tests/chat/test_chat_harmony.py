"""Channels told apart while streaming: thinking, content and calls, whatever the cuts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.chat import HarmonyReader, Part, Text, Thinking, ToolCall
from localllm.chat.harmony import history, is_harmony
from localllm.chat.parts import joined
from localllm.chat.tools import CallReader, Tools
from localllm.chat.tools.families import family_of

TOOLS = Tools([{"type": "function", "function": {"name": "look"}}, {"type": "function", "function": {"name": "now"}}])
ROME = ToolCall("look", {"city": 'Rome } " <|', "n": [1, {}]})
ARGUMENTS = '{"city": "Rome } \\" <|", "n": [1, {}]}'
C, M, S = "<|channel|>", "<|message|>", "<|start|>"
ANALYSIS = f"{C}analysis{M}I look < it <b> up.<|end|>"

GOLDEN: list[tuple[str, list[Part]]] = [
    (f"{ANALYSIS}{S}assistant{C}final{M}It is a < b.", [Thinking("I look < it <b> up."), Text("It is a < b.")]),
    (f"{C}final{M}Hello<|return|>", [Text("Hello")]),
    (
        f"{ANALYSIS}{S}assistant{C}commentary to=functions.look <|constrain|>json{M}{ARGUMENTS}<|call|>",
        [Thinking("I look < it <b> up."), ROME],
    ),
    (
        f"{ANALYSIS}{S}assistant to=functions.look{C}commentary json{M}{ARGUMENTS}",
        [Thinking("I look < it <b> up."), ROME],
    ),
    (f" to=functions.look{C}commentary <|constrain|>json{M} {ARGUMENTS} ", [ROME]),
    (f"{C}analysis to=functions.look code{M}{ARGUMENTS}", [ROME]),
    (
        f"{C}commentary{M}First I look.<|end|>{S}assistant{C}commentary to=functions.look{M}{ARGUMENTS}",
        [Text("First I look."), ROME],
    ),
    (f"{C}commentary to=functions.now{M}<|call|>", [ToolCall("now", {})]),
    (f"{C}commentary to=functions.now{M}", [ToolCall("now", {})]),
    (f"{C}commentary to=functions.seek{M}{ARGUMENTS}<|call|>", [Text(ARGUMENTS)]),
    (f"{C}commentary to=functions.look{M}not json<|call|>", [Text("not json")]),
    (f'{C}commentary to=functions.look{M}{{"city": "Ro', [Text('{"city": "Ro')]),
    (f"{C}commentary to=functions.look{M}{{bad}}<|call|>", [Text("{bad}")]),
    (f"{C}commentary to=functions.look{M}{ARGUMENTS} so<|end|>", [ROME, Text("so")]),
    (f"{C}analysis{M}cut off", [Thinking("cut off")]),
    (f"{C}analysis{M}a{C}final{M}b", [Thinking("a"), Text("b")]),
    (f"{C}analysis{M}a<|end|>{S}assistant{C}analysis{M}b<|end|>{S}assistant{C}fin", [Thinking("ab")]),
    ("no channels <|at all", [Text("no channels <|at all")]),
    ("assistants help", [Text("assistants help")]),
]


def read(pieces: list[str], tools: Tools | None = TOOLS, is_final: bool = False) -> list[Part]:
    reader = HarmonyReader(tools, is_final)
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return joined([*parts, *reader.flush()])


@pytest.mark.parametrize(("text", "expected"), GOLDEN)
def test_channels_whatever_the_cut(text: str, expected: list[Part]) -> None:
    assert read([text]) == expected
    assert read(list(text)) == expected
    for at in range(1, len(text)):
        assert read([text[:at], text[at:]]) == expected, text[:at]


@given(st.sampled_from(GOLDEN), st.data())
def test_channels_in_any_pieces(golden: tuple[str, list[Part]], data: st.DataObject) -> None:
    text, expected = golden
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    assert read([text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]) == expected


PIECES = [C, M, S, "<|end|>", "to=functions.look", "analysis", "final", ARGUMENTS, "x", " ", "<|"]


@given(st.lists(st.sampled_from(PIECES)))
def test_cuts_do_not_matter_and_no_tag_is_shown(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = read([text])
    assert read(list(text)) == whole
    shown = "".join(part.text for part in whole if not isinstance(part, ToolCall))
    assert not any(tag in shown for tag in (C, S, "<|end|>"))


def test_a_call_comes_with_its_last_brace_and_text_as_it_is_written() -> None:
    reader = HarmonyReader(TOOLS)
    assert reader.feed(f"{C}commentary to=functions.look{M}{ARGUMENTS[:-1]}") == []
    assert reader.n_held == len(ARGUMENTS) - 1
    assert reader.feed("}") == [ROME]
    reader = HarmonyReader(TOOLS)
    assert reader.feed(f"{C}final{M}Hel") == [Text("Hel")]
    assert reader.feed("lo <|e") == [Text("lo ")]


GLIMMER = (
    f" to=self{M}I look.<|eom|>{S}assistant to=look{M}<atem:function_calls>\n"
    '<atem:invoke name="look">\n<atem:parameter name="city">Rome</atem:parameter>\n</atem:invoke>\n'
    f"</atem:function_calls><|eom|>{S}assistant{M}It is <atem"
)


def test_calls_of_another_kind_inside_channels() -> None:
    expected: list[Part] = [Thinking("I look."), ToolCall("look", {"city": "Rome"}), Text("It is <atem")]
    for at in range(len(GLIMMER)):
        family = family_of("<atem:invoke")
        assert family is not None
        reader = HarmonyReader(None, calls=CallReader(family.syntaxes, TOOLS))
        assert joined([*reader.feed(GLIMMER[:at]), *reader.feed(GLIMMER[at:]), *reader.flush()]) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a", "a"), ("to", "to"), ("<", "<"), ("assistant", ""), (f"{C}final", ""), ("to=functions.x", "")],
)
def test_a_short_answer_without_channels_is_no_header(text: str, shown: str) -> None:
    assert read(list(text)) == ([Text(shown)] if shown else [])


def test_without_tools_a_call_is_content() -> None:
    assert read([f"{C}commentary to=functions.look{M}{ARGUMENTS}<|call|>"], tools=None) == [Text(ARGUMENTS)]


def test_an_answer_that_was_begun_goes_on_in_its_channel() -> None:
    assert read(["to= be", f" or<|end|>{S}assistant{C}final{M} not"], is_final=True) == [Text("to= be or not")]


def test_which_templates_have_channels() -> None:
    assert is_harmony("<|start|>{{ role }}<|message|>...<|channel|>final")
    assert not is_harmony("<|im_start|>{{ role }}")


def test_earlier_calls_come_one_by_one_and_say_one_thing() -> None:
    calls = [{"id": str(i), "function": {"name": "look", "arguments": {"n": i}}} for i in (1, 2)]
    message = {"role": "assistant", "content": "said", "thinking": "thought", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": i, "content": f"r{i}"} for i in "21"]
    told = history([message, *results])
    assert [m["content"] for m in told] == ["", "r1", "", "r2"]
    assert [m.get("thinking") for m in told] == ["thought\n\nsaid", None, None, None]
    assert message["content"] == "said"
