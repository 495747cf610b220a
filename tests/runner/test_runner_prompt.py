"""Prompts: rendering, fitting into the context, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from localllm.errors import ContextLengthError
from localllm.messages import GenerateRequest, Rendered
from localllm.runner.prompt import PromptBuilder

USER = {"role": "user", "content": "u"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
WITH_TOOLS = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ messages[-1].content }}<|assistant|>"
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{{ m.content }}{% endfor %}<|assistant|>"
)


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def rendered(runner: Any, **fields: Any) -> str:
    request_id = runner.submit(**{"prompt": "", "debug_render_only": True, **fields})
    (message,) = runner.result(request_id).messages
    assert isinstance(message, Rendered), message
    return message.prompt


LONG_CHAT = [
    said("system", "S" * 20),
    *(turn for k in range(10) for turn in (said("user", f"u{k}" + "x" * 20), said("assistant", f"a{k}" + "y" * 20))),
    said("user", "LAST"),
]


def test_a_long_chat_loses_its_oldest_turns_and_says_so(script_runner: Any) -> None:
    runner = script_runner(n_ctx=128)
    text = rendered(runner, kind="chat", messages=LONG_CHAT, options={"num_predict": 1})
    assert text.startswith("<|system|>" + "S" * 20 + "<|end|><|user|>u")
    assert text.endswith("<|user|>LAST<|end|><|assistant|>")
    whole = rendered(script_runner(), kind="chat", messages=LONG_CHAT)
    assert whole.endswith(text[text.index("<|user|>") :])
    done = runner.chat(LONG_CHAT, options={"num_predict": 1}).done
    assert done.stats.prompt_eval_count == len(runner.tokenizer.encode(text)) <= 128
    n_kept = text.count("<|user|>") + text.count("<|assistant|>") - 1
    n_all = len(runner.tokenizer.encode(whole))
    assert done.truncated == {
        "messages": 21 - n_kept,
        "tokens": n_all - done.stats.prompt_eval_count,
        "shifted": 0,
    }
    # a turn less would have left less than an eighth of the context to be dropped next
    assert done.stats.prompt_eval_count + 2 * 24 > 128 - 128 // 8


def test_a_growing_chat_begins_with_the_same_turn_for_a_while(script_runner: Any) -> None:
    runner = script_runner(n_ctx=256)
    messages, begins, n_cached = LONG_CHAT[:1], [], []
    for k in range(40):
        messages = [*messages, said("user", f"u{k:02}xxxx")]
        done = runner.chat(messages, options={"num_predict": 6}).done
        assert done.stats.prompt_eval_count <= 256 - 6
        begins.append(done.truncated["messages"] if done.truncated else 0)
        n_cached.append(done.stats.prompt_eval_cached_count / done.stats.prompt_eval_count)
        messages = [*messages, said("assistant", f"a{k:02}")]
    assert begins == sorted(begins) and begins[-1] > 40
    n_moves = sum(a != b for a, b in pairwise(begins))
    n_cut = sum(begin > 0 for begin in begins)
    assert n_moves <= n_cut / 2 + 1
    assert sum(share > 0.8 for share in n_cached) > len(n_cached) / 2


@pytest.mark.parametrize(("num_predict", "room"), [(-1, 16), (0, 1), (1, 1), (20, 20), (100, 32)])
def test_what_is_shortened_leaves_room_for_an_answer(script_runner: Any, num_predict: int, room: int) -> None:
    options = {"num_predict": num_predict}
    done = script_runner(n_ctx=128).chat(LONG_CHAT, options=options).done
    assert 128 - room - 16 - 48 < done.stats.prompt_eval_count <= 128 - room
    done = script_runner(n_ctx=128).generate("p" * 200 + "<|assistant|>", truncate=True, options=options).done
    assert done.stats.prompt_eval_count == 128 - room


def test_a_turn_that_fits_is_never_shortened(script_runner: Any) -> None:
    fits, too_long = said("user", "u" * 124), said("user", "u" * 125)  # and three tags
    runner = script_runner(n_ctx=128)
    done = runner.chat([*LONG_CHAT[1:], fits]).done
    assert (done.stats.prompt_eval_count, done.truncated["messages"]) == (127, len(LONG_CHAT) - 1)
    assert runner.chat([fits]).done.truncated is None or runner.chat([fits]).done.truncated["messages"] == 0
    error = runner.chat([*LONG_CHAT[1:], too_long]).error
    assert (error.kind, error.fields) == ("ContextLengthError", {"n_prompt": 128, "n_ctx": 128})
    assert "no room for an answer" in error.error


@pytest.mark.parametrize(("n_ctx_train", "advice"), [(128, "trained for no longer"), (129, "raise num_ctx")])
def test_nobody_is_told_to_raise_what_cannot_be(script_runner: Any, n_ctx_train: int, advice: str) -> None:
    model = script_runner(n_ctx=128).model
    prompts = PromptBuilder("m", model.tokenizer, model.templates, 128, n_ctx_train)
    with pytest.raises(ContextLengthError, match=advice) as caught:
        prompts.build(GenerateRequest("1", "chat", messages=[said("user", "u" * 200)]))
    assert ("raise" in str(caught.value)) == (n_ctx_train > 128)


def test_a_tool_result_keeps_its_call(script_runner: Any) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    messages = [said("system", "S" * 20), said("user", "Q" * 20), call, said("tool", "r" * 90)]
    runner = script_runner(n_ctx=128)
    text = rendered(runner, kind="chat", messages=messages)
    assert text == f"<|system|>{'S' * 20}<|end|><|assistant|><|end|><|tool|>{'r' * 90}<|end|><|assistant|>"
    assert runner.chat(messages, options={"num_predict": 1}).done.truncated["messages"] == 1


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([said("system", "S" * 20), said("user", "z" * 400)], {}),
        ([said("user", "z" * 400), USER], {"truncate": False}),
        ([said("user", "z" * 400), said("assistant", "a")], {}),
    ],
)
def test_what_cannot_be_shortened_is_refused_with_both_lengths(
    script_runner: Any, messages: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    error = script_runner(n_ctx=128).chat(messages, **fields).error
    assert error.kind == "ContextLengthError"
    assert error.fields["n_ctx"] == 128
    assert error.fields["n_prompt"] > 400
    assert "128" in error.error and str(error.fields["n_prompt"]) in error.error


def test_of_a_long_last_turn_the_oldest_rounds_go_and_the_question_stays(script_runner: Any) -> None:
    def round_of(k: int) -> list[dict[str, Any]]:
        call = {"role": "assistant", "content": f"c{k}", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
        return [call, said("tool", f"r{k}" + "r" * 30)]

    messages = [*LONG_CHAT[:3], said("user", "QUESTION"), *(m for k in range(5) for m in round_of(k))]
    text = rendered(script_runner(n_ctx=128), kind="chat", messages=messages, options={"num_predict": 1})
    assert text.startswith(f"<|system|>{'S' * 20}<|end|><|user|>QUESTION<|end|><|assistant|>c3<|end|><|tool|>r3")
    assert text.endswith(f"r4{'r' * 30}<|end|><|assistant|>")


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("fields", [{}, {"truncate": False}])
def test_a_single_prompt_is_not_cut_in_silence(script_runner: Any, raw: bool, fields: dict[str, Any]) -> None:
    error = script_runner(n_ctx=64).generate("x" * 100, raw=raw, **fields).error
    n_prompt = 100 if raw else 103
    assert (error.kind, error.fields) == ("ContextLengthError", {"n_prompt": n_prompt, "n_ctx": 64})


@pytest.mark.parametrize("kind", ["chat", "generate"])
def test_a_text_loses_its_middle_where_that_is_allowed(script_runner: Any, kind: str) -> None:
    text = "begin" + "m" * 150 + "end"
    fields: dict[str, Any] = {"raw": False, "prompt": text, "system": "S" * 20}
    if kind == "chat":
        fields = {"messages": [*LONG_CHAT[:3], said("user", text)], "prompt": ""}
    runner = script_runner(n_ctx=128)
    fields |= {"kind": kind, "truncate": True, "options": {"num_predict": 4}}
    shown = rendered(runner, **fields)
    assert shown.startswith(f"<|system|>{'S' * 20}<|end|><|user|>begin") and "m\n[...]\nm" in shown
    assert shown.endswith("end<|end|><|assistant|>")
    done = runner.generate(**fields).done
    assert done.stats.prompt_eval_count == 124 and done.truncated["messages"] == (2 if kind == "chat" else 0)
    n_whole = len(runner.tokenizer.encode(rendered(script_runner(), **fields)))
    assert done.truncated["tokens"] == n_whole - 124
    # what cannot be cut is too long
    assert script_runner(n_ctx=32).generate(**fields).error.kind == "ContextLengthError"


def test_history_of_tokens_loses_its_beginning(script_runner: Any) -> None:
    runner = script_runner(n_ctx=64, add_bos=True)
    history = runner.tokenizer.encode("<|bos|>keep" + "h" * 100, add_special=False)
    fields: dict[str, Any] = {"raw": False, "context": history, "options": {"num_keep": 4, "num_predict": 1}}
    done = runner.generate("q", **fields).done
    assert done.stats.prompt_eval_count <= 63 and done.truncated["tokens"] == 105 + 4 - done.stats.prompt_eval_count
    assert runner.tokenizer.decode(done.context, special=True).startswith("<|bos|>keephhh")
    assert runner.generate("q", **fields, truncate=False).error.kind == "ContextLengthError"
    assert runner.generate("q" * 100, **fields).error.fields["n_prompt"] < 64 + 100


def test_an_insertion_is_cut_far_from_the_gap(script_runner: Any) -> None:
    go = "<|user|>{{ .Prompt }}<|tool|>{{ .Suffix }}<|assistant|>{{ .Response }}"
    runner = script_runner(go=go, n_ctx=64)
    fields: dict[str, Any] = {"suffix": "a" * 50 + "z" * 50, "raw": False, "options": {"num_predict": 4}}
    assert runner.generate("A" * 50 + "Z" * 50, **fields).error.fields["n_prompt"] == 203
    done = runner.generate("A" * 50 + "Z" * 50, **fields, truncate=True).done
    assert runner.tokenizer.decode(done.context, special=True).startswith(
        f"<|user|>{'Z' * 29}<|tool|>{'a' * 28}<|assis"
    )
    assert done.truncated["tokens"] == 203 - 60


def test_a_template_that_refuses_to_begin_with_an_answer(script_runner: Any) -> None:
    runner = script_runner(n_ctx=64, template=STRICT)
    messages = [said("user", "z" * 30), said("assistant", "y" * 30), said("user", "v" * 30), said("assistant", "w")]
    assert rendered(runner, kind="chat", messages=messages) == "v" * 30 + "<|assistant|>w"


def test_a_long_raw_prompt_loses_no_more_than_it_must(script_runner: Any) -> None:
    runner = script_runner(n_ctx=64)
    prompt = "".join(chr(97 + i % 26) for i in range(100)) + "<|assistant|>"
    done = runner.generate(prompt, truncate=True, options={"num_keep": 4, "num_predict": 1}).done
    assert done.stats.prompt_eval_count == 63
    assert done.truncated == {"messages": 0, "tokens": 101 - 63, "shifted": 0}
    (tokens,) = [tokens for step in runner.engine.steps for _, tokens, _ in step]
    assert runner.tokenizer.decode(tokens, special=True) == prompt[:4] + prompt[-58 - 13 :]


def test_generate_renders_system_history_and_prompt(script_runner: Any) -> None:
    runner = script_runner()
    fields: dict[str, Any] = {"raw": False, "prompt": "p", "system": "s", "messages": [USER]}
    assert rendered(runner, **fields) == "<|system|>s<|end|><|user|>u<|end|><|user|>p<|end|><|assistant|>"
    assert rendered(runner, raw=True, prompt="p") == "p"


def test_the_context_of_an_answer_goes_in_front_of_the_next_prompt(script_runner: Any) -> None:
    runner = script_runner(add_bos=True)
    first = runner.generate("p", raw=False)
    text = "<|bos|><|user|>p<|end|><|assistant|>abcdef<|eos|>"
    assert runner.tokenizer.decode(first.done.context, special=True) == text
    second = runner.generate("q", raw=False, context=first.done.context)
    assert runner.tokenizer.decode(second.done.context, special=True) == (
        text + "<|user|>q<|end|><|assistant|>abcdef<|eos|>"
    )
    assert second.done.stats.prompt_eval_cached_count == len(first.done.context) - 1


def test_context_ids_are_checked(script_runner: Any) -> None:
    error = script_runner().generate("p", raw=False, context=[1, 99999]).error
    assert (error.kind, "99999" in error.error) == ("RequestError", True)


@pytest.mark.parametrize("prompt", ["hi", "<|bos|>hi"])
def test_bos_comes_once(script_runner: Any, prompt: str) -> None:
    runner = script_runner(add_bos=True)
    runner.generate(prompt, options={"num_predict": 1})
    (tokens,) = [tokens for step in runner.engine.steps for _, tokens, _ in step]
    assert runner.tokenizer.decode(tokens, special=True) == "<|bos|>hi"


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"format": {"type": "objekt"}}, "RequestError", "objekt"),
        ({"raw": False, "tools": TOOLS}, "RequestError", "m does not support tools"),
        ({"raw": False, "think": True}, "RequestError", '"m" does not support thinking'),
        ({"raw": False, "think": "high"}, "RequestError", '"m" does not support thinking'),
        ({"suffix": "x"}, "RequestError", "m does not support insert"),
        ({"images": ["aGk="]}, "RequestError", '"m" does not support images'),
        ({"prompt": ""}, "RequestError", "the prompt is empty"),
        ({"raw": False, "template": "{{ range .Messages }}"}, "TemplateError", "template: :1: unexpected EOF"),
        ({"options": {"repeat_penalty": 0.0}}, "OptionError", "repeat_penalty"),
    ],
)
def test_what_is_refused(script_runner: Any, fields: dict[str, Any], kind: str, text: str) -> None:
    runner = script_runner()
    error = runner.generate(**{"prompt": "p", **fields}).error
    assert (error.kind, text in error.error) == (kind, True)
    assert runner.generate().text == "abcdef"


def test_absent_format_and_think_false_are_fine(script_runner: Any) -> None:
    runner = script_runner()
    assert runner.generate("p", raw=False, format="", think=False).text == "abcdef"


def test_tools_go_to_a_template_that_takes_them(script_runner: Any) -> None:
    runner = script_runner(template=WITH_TOOLS)
    assert rendered(runner, kind="chat", messages=[USER], tools=TOOLS) == "fu<|assistant|>"
    assert runner.model.templates.capabilities == ["tools"]
    special = {"tokenizer.chat_template.tool_use": WITH_TOOLS}
    assert rendered(script_runner(metadata=special), kind="chat", messages=[USER], tools=TOOLS) == "fu<|assistant|>"


def test_a_refusal_is_told_in_the_templates_words(script_runner: Any) -> None:
    error = script_runner(template="{{ raise_exception('not on Sundays') }}").chat([USER]).error
    assert (error.kind, error.error) == ("TemplateError", "not on Sundays")


@pytest.mark.parametrize(
    "fields", [{"template": "{{ '' }}"}, {"go": '{{ "" }}', "metadata": {"tokenizer.chat_template": None}}]
)
def test_a_conversation_without_tokens_is_refused(script_runner: Any, fields: dict[str, Any]) -> None:
    runner = script_runner(**fields)
    user = said("user", "" if "go" in fields else "u")
    error = runner.chat([user]).error
    assert (error.kind, error.error) == ("RequestError", "the prompt is empty")
    assert runner.generate().text == "abcdef"


def test_a_template_that_does_not_compile_leaves_raw_prompts(script_runner: Any) -> None:
    runner = script_runner(template="{% if %}")
    assert runner.chat([USER]).error.kind == "TemplateError"
    assert runner.generate().text == "abcdef"


def test_thinking_is_asked_for_unless_declined(script_runner: Any) -> None:
    template = "{{ enable_thinking }} {{ reasoning_effort }}<|assistant|>"
    runner = script_runner(template=template)
    texts = [rendered(runner, kind="chat", messages=[USER], think=t) for t in (None, True, False, "low")]
    assert texts == ["True <|assistant|>", "True <|assistant|>", "False <|assistant|>", "True low<|assistant|>"]


def test_which_template_is_used(script_runner: Any) -> None:
    go = "G{{ .Prompt }}<|assistant|>{{ .Response }}"
    none = {"tokenizer.chat_template": None}
    assert rendered(script_runner(go=go), kind="chat", messages=[USER]) == "Gu<|assistant|>"
    assert rendered(script_runner(go=go, template=WITH_TOOLS), kind="chat", messages=[USER])[0] != "G"
    assert rendered(script_runner(go=go, metadata=none), kind="chat", messages=[USER]) == "Gu<|assistant|>"
    assert rendered(script_runner(), kind="chat", messages=[USER], template=go) == "Gu<|assistant|>"
    bare = script_runner(metadata=none)
    assert rendered(bare, kind="chat", messages=[USER]).startswith("<|im_start|>user\nu")
    assert rendered(bare, raw=False, prompt="p") == "p"
    assert rendered(bare, raw=False, prompt="p", system="s").startswith("<|im_start|>system")


def test_insert_by_the_go_template(script_runner: Any) -> None:
    go = "<|user|>{{ .Prompt }}<|tool|>{{ .Suffix }}<|assistant|>{{ .Response }}"
    runner = script_runner(go=go)
    assert runner.generate("before", suffix="after", raw=False).text == "abcdef"
    tokens = runner.engine.steps[0][0][1]
    assert runner.tokenizer.decode(tokens, special=True) == "<|user|>before<|tool|>after<|assistant|>"


def test_insert_by_the_tokens_of_the_vocabulary(script_runner: Any) -> None:
    runner = script_runner(add_bos=True)
    special = runner.tokenizer.special
    special.fim_pre, special.fim_suf, special.fim_mid = (
        runner.tokenizer.encode(text, add_special=False)[0] for text in ("<|user|>", "<|tool|>", "<|assistant|>")
    )
    assert runner.generate("a", suffix="b", raw=False).text == "abcdef"
    tokens = runner.engine.steps[0][0][1]
    assert runner.tokenizer.decode(tokens, special=True) == "<|bos|><|user|>a<|tool|>b<|assistant|>"
