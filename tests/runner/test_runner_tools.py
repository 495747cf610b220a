"""Tool calls and thinking in the chunks of a request; what is refused; how answers that were begun go on."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

from localllm.chat import Text, Thinking, ToolCall
from localllm.messages import Rendered
from localllm.runner.chunks import Chunks

USER = {"role": "user", "content": "go"}
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": WEATHER}]
HEAD = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}THINKINGCALLS<|end|>{% endfor %}<|assistant|>OPEN"
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
HERMES = HEAD + TURNS.replace("CALLS", CALLS).replace("THINKING", "").replace("OPEN", "")
THINKING = HEAD + TURNS.replace("CALLS", CALLS).replace("THINKING", "<think>{{ m.thinking }}</think>")
HARMONY = (
    HEAD + "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% if m.content and m.thinking %}{{ raise_exception('two texts') }}{% endif %}"
    " to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{{ reasoning_effort }}<|start|>assistant"
)


def calls(result: Any) -> list[tuple[str, Any]]:
    return [(function["name"], function["arguments"]) for function in result.functions]


def rendered(runner: Any, **fields: Any) -> str:
    request_id = runner.submit("", kind="chat", debug_render_only=True, **fields)
    (message,) = runner.result(request_id).messages
    assert isinstance(message, Rendered), message
    return message.prompt


def pieces_of(text: str) -> list[str]:
    """The text in pieces that are all different, as a scripted model needs them."""
    pieces: list[str] = []
    while text:
        n = next(n for n in range(3, len(text) + 1) if text[:n] not in pieces) if len(text) > 3 else len(text)
        while text[:n] in pieces:
            n -= 1
        pieces.append(text[:n])
        text = text[n:]
    return pieces


SEEK = '{"name":"seek","arguments":{}}'
OUTPUTS: list[tuple[str, dict[str, Any], str, list[tuple[str, Any]]]] = [
    ('{"name":"Alice","age":3}', {}, '{"name":"Alice","age":3}', []),
    (
        'Let me look. <tool_call>{"name":"get_weather","arguments":{"q":"a } b { \\" ]"}}</tool_call>',
        {},
        "Let me look.",
        [("get_weather", {"q": 'a } b { " ]'})],
    ),
    (
        '<tool_call>{"name":"get_weather","arguments":{"q":"x"}}</tool_call>'
        '<tool_call>{"name":"get_weather","arguments":{"q":"y","n":{"k":[{}]}}}</tool_call>',
        {},
        "",
        [("get_weather", {"q": "x"}), ("get_weather", {"q": "y", "n": {"k": [{}]}})],
    ),
    (
        '<tool_call>{"name":"get_weather","arguments":{"q":',
        {"options": {"num_predict": 9}},
        '<tool_call>{"name":"get_weather","arguments":{"q":',
        [],
    ),
    ("<tool_call>not json</tool_call>", {}, "<tool_call>not json</tool_call>", []),
    ('{"name":"Alice","age":3}', {"tools": None}, '{"name":"Alice","age":3}', []),
    (
        '<tool_call>{"name":"seek","arguments":{}}</tool_call>',
        {},
        '<tool_call>{"name":"seek","arguments":{}}</tool_call>',
        [],
    ),
]


@pytest.mark.parametrize(("output", "fields", "text", "expected"), OUTPUTS)
def test_what_counts_as_a_call(
    script_runner: Any, output: str, fields: dict[str, Any], text: str, expected: list[tuple[str, Any]]
) -> None:
    runner = script_runner(pieces_of(output), template=HERMES)
    fields = {"tools": TOOLS, **fields}
    if "options" in fields:
        fields["options"] = {"num_predict": len(pieces_of(output))}
    result = runner.chat([USER], **fields)
    assert (result.text, calls(result)) == (text, expected)
    assert result.done.done_reason == ("length" if "options" in fields else "stop")
    assert result.done.stats.eval_count == len(pieces_of(output)) + ("options" not in fields)
    assert all("tool_call" not in chunk.text or not expected for chunk in result.chunks)


ADD = {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}
ADDING = ['<tool_call>{"name": "add", ', '"arguments": {"b": "x", "a": 1}}', "</tool_call>", " done"]


def test_a_call_is_one_chunk_with_an_id_and_its_arguments_in_order(script_runner: Any) -> None:
    result = script_runner(ADDING, template=HERMES).chat([USER], tools=[{"function": ADD}])
    first, second = result.chunks
    (call,) = first.tool_calls
    assert re.fullmatch("call_[a-z0-9]{8}", call["id"])
    assert call["function"] == {"index": 0, "name": "add", "arguments": {"a": 1, "b": "x"}}
    assert list(call["function"]["arguments"]) == ["b", "a"]
    assert (first.text, second.text, second.tool_calls) == ("", "done", [])


def test_with_one_call_at_most_the_answer_ends_after_it(script_runner: Any) -> None:
    result = script_runner(ADDING, template=HERMES).chat([USER], tools=[{"function": ADD}], parallel_tool_calls=False)
    assert calls(result) == [("add", {"b": "x", "a": 1})]
    assert result.text == ""
    assert result.done.stats.eval_count == 2
    assert (result.done.done_reason, result.done.stop) == ("stop", None)


def test_calls_are_numbered_and_chunks_keep_their_order() -> None:
    chunks = Chunks("7")
    parts = [Thinking("t"), Text("a"), ToolCall("f"), ToolCall("g", id="own"), Text("b"), Thinking("u")]
    sent = list(chunks.of(parts, [{"token": "x"}]))
    assert [(c.thinking, c.text, len(c.tool_calls), len(c.logprobs)) for c in sent] == [
        ("t", "a", 0, 1),
        ("", "", 2, 0),
        ("", "b", 0, 0),
        ("u", "", 0, 0),
    ]
    assert [call["id"] for call in sent[1].tool_calls][1] == "own"
    (last,) = chunks.of([ToolCall("h")], [])
    assert [c["function"]["index"] for c in [*sent[1].tool_calls, *last.tool_calls]] == [0, 1, 2]
    assert [c.logprobs for c in chunks.of([], [{"token": "y"}])] == [[{"token": "y"}]]
    assert list(chunks.of([], [])) == []


def test_without_a_choice_tools_are_not_shown_and_nothing_is_a_call(script_runner: Any) -> None:
    runner = script_runner(ADDING, template=HERMES)
    fields = {"tools": [{"function": ADD}], "tool_choice": "none"}
    assert rendered(runner, messages=[USER], **fields) == "<|user|>go<|end|><|assistant|>"
    result = runner.chat([USER], **fields)
    assert (result.text, calls(result)) == ("".join(ADDING), [])
    assert calls(runner.chat([USER], tools=[{"function": ADD}], tool_choice="auto"))


STRICT = [{"function": {**ADD, "parameters": {"type": "object", "properties": {"a": {"type": "x"}}}, "strict": True}}]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": TOOLS, "tool_choice": {"name": "seek"}}, '"seek" (tools: get_weather)'),
    ({"tool_choice": "required"}, "no tools"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, 'not "sometimes"'),
    ({"tools": TOOLS, "tool_choice": {"type": "x"}}, 'not {"type": "x"}'),
    ({"tools": STRICT}, "tools.add.parameters: #/properties/a/type"),
    *(({"template_arguments": {name: []}}, f'"{name}" is given') for name in ("messages", "tools", "self")),
    ({"tokens": [1, 10**6]}, "not 1000000"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED)
def test_what_cannot_be_kept_is_refused(script_runner: Any, fields: dict[str, Any], text: str) -> None:
    error = script_runner(template=HERMES).chat([USER], **fields).error
    assert error.kind == "RequestError"
    assert text in error.error


def test_variables_for_the_template(script_runner: Any) -> None:
    template = "{{ messages[0].content }}{{ enable_thinking }}{{ extra }}</think>"
    runner = script_runner(template=template)
    assert rendered(runner, messages=[USER], template_arguments={"extra": 7}) == "goTrue7</think>"
    assert rendered(runner, messages=[USER], think=False).startswith("goFalse")
    assert rendered(runner, messages=[USER], template_arguments={"enable_thinking": "no"}).startswith("gono")


@pytest.mark.parametrize("name", ["documents", "datetime"])
def test_variables_with_a_default_can_be_given(script_runner: Any, name: str) -> None:
    runner = script_runner(template=f"{{{{ messages[0].content }}}} {{{{ {name} }}}}")
    assert rendered(runner, messages=[USER], template_arguments={name: "given"}) == "go given"


def test_a_prompt_of_tokens(script_runner: Any) -> None:
    runner = script_runner()
    tokens = runner.tokenizer.encode("x<|assistant|>")
    result = runner.generate("", raw=False, tokens=tokens)
    assert (result.text, result.done.context) == ("abcdef", None)
    assert result.done.stats.prompt_eval_count == len(tokens)
    assert runner.generate("", raw=False, tokens=[]).error.error == "the prompt is empty"


@pytest.mark.parametrize(("stop", "told"), [(["cd"], "cd"), (["zz"], None), (["f", "ef"], "ef")])
def test_the_stop_string_is_told(script_runner: Any, stop: list[str], told: str | None) -> None:
    assert script_runner().generate(options={"stop": stop}).done.stop == told


def test_thinking_then_a_call(script_runner: Any) -> None:
    pieces = ["<thi", "nk>\nI ", "add <tool_call>", "\n</thi", "nk>\n", "\nNow", *ADDING[:2]]
    result = script_runner(pieces, template=THINKING.replace("OPEN", "")).chat([USER], tools=[{"function": ADD}])
    assert (result.thinking, result.text) == ("I add <tool_call>", "Now")
    assert calls(result) == [("add", {"b": "x", "a": 1})]
    assert result.done.stats.eval_count == len(pieces) + 1 and result.done.stats.thinking_count == 3


def test_thinking_that_the_prompt_begins(script_runner: Any) -> None:
    runner = script_runner([" I wo", "nder</th", "ink> ye", "s"], template=THINKING.replace("OPEN", "{# <think> #}"))
    assert runner.chat([USER]).thinking == ""
    template = "<|{{ messages[0].role }}|>{{ messages[0].content }}</think><|assistant|>"
    plain = script_runner(["a"], template=template).chat([USER])
    assert plain.text == "a" and plain.done.stats.thinking_count == 0
    open_template = "{{ messages[0].content }}<|assistant|><think>{# </think> #}"
    runner = script_runner([" I wo", "nder</th", "ink> ye", "s"], template=open_template)
    runner.engine.logits_of = after(runner, ">", [" I wo", "nder</th", "ink> ye", "s"])
    result = runner.chat([USER])
    assert (result.thinking, result.text) == ("I wonder", "yes") and result.done.stats.thinking_count == 2
    asked = runner.chat([{"role": "user", "content": "what is <think>"}])
    assert (asked.thinking, asked.text) == ("I wonder", "yes")


def after(runner: Any, last: str, pieces: list[str]) -> Any:
    """Logits of a model that says the pieces after the token `last`."""
    ids = {runner.tokenizer.piece(i, special=True): i for i in reversed(range(runner.tokenizer.n_vocab))}
    chain = [ids[piece.encode()] for piece in (last, *pieces, "<|eos|>")]

    def logits_of(tokens: Any) -> np.ndarray:
        logits = np.zeros(runner.tokenizer.n_vocab, np.float32)
        logits[dict(itertools.pairwise(chain)).get(tokens[-1], chain[-1])] = 20
        return logits

    return logits_of


VISIBLE = ["Hm ", "<|system|>", '{"name": "add", "arg', 'uments": {"a": 1}}', "<|user|>", "bye"]
BETWEEN_CONTROL_TOKENS = (
    HEAD + "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<|system|>{{ c.function | tojson }}<|user|>{% endfor %}{% endfor %}<|assistant|>"
)


def test_control_tokens_of_the_syntax_reach_the_parser_and_are_not_shown(script_runner: Any) -> None:
    runner = script_runner(VISIBLE, template=BETWEEN_CONTROL_TOKENS)
    result = runner.chat([USER], tools=[{"function": ADD}])
    assert (result.text, calls(result)) == ("Hmbye", [("add", {"a": 1})])
    assert runner.chat([USER]).text == 'Hm {"name": "add", "arguments": {"a": 1}}bye'
    assert runner.chat([USER], tools=TOOLS).text == 'Hm {"name": "add", "arguments": {"a": 1}}bye'


def test_logprobs_come_with_the_text_or_the_call(script_runner: Any) -> None:
    pieces = ["Hi ", "the", "re <tool", '_call>{"name": "add", ', '"arguments": {}}', "</tool_call>", " done", "!"]
    result = script_runner(pieces, template=HERMES).chat([USER], tools=[{"function": ADD}], logprobs=True)
    told = [("".join(entry["token"] for entry in c.logprobs), c.text, len(c.tool_calls)) for c in result.chunks]
    assert "".join(tokens for tokens, *_ in told) == "".join(pieces)
    (call,) = [tokens for tokens, _, n_calls in told if n_calls]
    assert call == 're <tool_call>{"name": "add", "arguments": {}}'
    shown = ""
    for tokens, text, n_calls in told:
        shown += text
        if not n_calls:
            assert tokens.replace("</tool_call>", "").strip() in shown


def test_logprobs_of_what_was_no_call_after_all(script_runner: Any) -> None:
    pieces = ["a <tool_", "call>", "{no", " thing", "STOP here"]
    runner = script_runner(pieces, template=HERMES)
    result = runner.chat([USER], tools=TOOLS, logprobs=True, options={"stop": ["STOP"]})
    assert result.text == "a <tool_call>{no thing" == "".join(entry["token"] for entry in result.logprobs)
    text = told = ""
    for chunk in result.chunks:
        text += chunk.text
        told += "".join(entry["token"] for entry in chunk.logprobs)
        assert text.startswith(told)


def test_an_answer_that_was_begun_goes_on_after_its_thinking(script_runner: Any) -> None:
    begun = {"role": "assistant", "content": "The "}
    runner = script_runner(["end"], template=THINKING.replace("OPEN", "<think>\n"))
    head = "<|user|>go<think></think><|end|><|assistant|><think>\n"
    assert rendered(runner, messages=[USER, begun]) == f"{head}\n</think>\n\nThe "
    assert rendered(runner, messages=[USER, {**begun, "thinking": "why"}]) == f"{head}why\n</think>\n\nThe "
    closed = {**begun, "content": "why</think>The "}
    assert rendered(runner, messages=[USER, closed]) == f"{head.rstrip()}why</think>The "
    plain = script_runner(["end"], template=HERMES)
    assert rendered(plain, messages=[USER, begun]) == "<|user|>go<|end|><|assistant|>The "


CALLING = {"role": "assistant", "content": "Hm", "thinking": "so", "tool_calls": [{"id": "1", "function": ADD}]}


def call(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def test_channels(script_runner: Any) -> None:
    pieces = [
        "<|channel|>analysis<|message|>",
        "I add",
        "<|end|><|start|>assistant",
        "<|channel|>commentary to=",
        "functions",
    ]
    pieces += [".add <|constrain|>json<|message|>", '{"b": "x",', ' "a": 1}']
    last = "<|assistant|>"
    runner = script_runner(pieces, template=HARMONY + last)
    result = runner.chat([USER], tools=[{"function": ADD}])
    assert (result.thinking, result.text) == ("I add", "")
    assert calls(result) == [("add", {"b": "x", "a": 1})]
    assert list(result.functions[0]["arguments"]) == ["b", "a"]


def test_the_history_of_channels(script_runner: Any) -> None:
    runner = script_runner(template=HARMONY)
    both = {**CALLING, "tool_calls": [call("add", "1", a=1), call("add", "2", a=2)]}
    results = [{"role": "tool", "tool_call_id": i, "content": f"r{i}"} for i in "21"]
    prompt = rendered(runner, messages=[USER, both, *results, {"role": "user", "content": "and"}], tools=TOOLS)
    assert prompt == (
        "get_weather<|start|>user<|message|>go<|end|>"
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        "<|start|>tool<|message|>r1<|end|>"
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 2}<|call|>'
        "<|start|>tool<|message|>r2<|end|>"
        "<|start|>user<|message|>and<|end|>medium<|start|>assistant"
    ).replace("medium", "")
    begun = {"role": "assistant", "content": "The ", "thinking": "t"}
    assert rendered(runner, messages=[USER, begun]).endswith(
        "<|start|>assistant<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final<|message|>The "
    )


@pytest.mark.parametrize(("think", "level"), [(False, "low"), ("max", "high"), ("high", "high"), ("low", "low")])
def test_levels_of_thinking_with_channels(script_runner: Any, think: Any, level: str) -> None:
    assert rendered(script_runner(template=HARMONY), messages=[USER], think=think).endswith(
        f"{level}<|start|>assistant"
    )


def test_a_template_for_one_call_a_message_gets_them_one_by_one(script_runner: Any) -> None:
    template = HERMES.replace(
        "{% for c in",
        "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}{% for c in",
    )
    both = {"role": "assistant", "content": "", "tool_calls": [call("add", "1", a=1), call("add", "2", a=2)]}
    results = [{"role": "tool", "tool_name": "add", "content": text} for text in ("r1", "r2")]
    prompt = rendered(script_runner(template=template), messages=[USER, both, *results], tools=TOOLS)
    order = [prompt.index(text) for text in ('"a": 1', "r1", '"a": 2', "r2")]
    assert order == sorted(order)


def test_results_of_tools_reach_the_template_whole(script_runner: Any) -> None:
    fields = "{{ m.role }}/{{ m.name }}/{{ m.tool_call_id }}/{{ m.content }};"
    template = "{% for m in messages %}" + fields + "{% endfor %}<|assistant|>{# <tool_call> tools #}"
    asking = {"role": "assistant", "content": "", "tool_calls": [call("add", "call_abcdefgh", a=1)]}
    answer = {"role": "tool", "tool_name": "add", "tool_call_id": "call_abcdefgh", "content": "3"}
    prompt = rendered(script_runner(template=template), messages=[USER, asking, answer])
    assert "tool/add/call_abcdefgh/3;" in prompt
