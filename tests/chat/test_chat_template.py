"""Jinja templates in the styles of the known families: quirks, refusals, tools, and what tojson prints."""

from __future__ import annotations

import copy
import json
from datetime import datetime
from typing import Any

import pytest

from localllm.chat import ChatTemplate
from localllm.errors import TemplateError

PLAIN = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
STRICT = """{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}
{%- endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '[' + m.role + ']' + m['content'] | trim }}
{%- endfor %}"""
TOOLS = """
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
    {{- '<' + m.role + '>' + m.content }}
    {%- for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}
{%- endfor %}"""

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
USER2 = {"role": "user", "content": "v"}
ASSISTANT = {"role": "assistant", "content": "a"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "cmp_temp",
        "description": "true if t > 10 & t < 50 (user's café)",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string"}, "at": {"type": "integer"}},
            "required": ["zone"],
        },
    },
}


def calling(arguments: Any, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}, **extra}]}


def result(**extra: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "r", **extra}


def test_without_a_template_it_is_chatml() -> None:
    text = ChatTemplate(None).render([SYSTEM, USER])
    assert text == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"


def test_plain() -> None:
    template = ChatTemplate(PLAIN)
    assert template.render([SYSTEM, USER]) == "<|system|>s<|end|><|user|>u<|end|><|assistant|>"
    assert template.render([USER, ASSISTANT], add_generation_prompt=False) == "<|user|>u<|end|><|assistant|>a<|end|>"
    assert (template.supports_system, template.supports_tools, template.supports_thinking) == (True, False, False)


def test_a_last_assistant_message_is_left_open() -> None:
    assert ChatTemplate(PLAIN).render([USER, ASSISTANT]) == "<|user|>u<|end|><|assistant|>a"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([USER], "<B>[user]u"),
        ([SYSTEM, USER], "<B>[user]s\n\nu"),
        ([USER, USER2], "<B>[user]u\n\nv"),
        ([SYSTEM, USER, USER2, ASSISTANT, USER], "<B>[user]s\n\nu\n\nv[assistant]a[user]u"),
        ([SYSTEM], "<B>[user]s"),
    ],
)
def test_refused_conversations_are_folded(messages: list[dict[str, Any]], expected: str) -> None:
    assert ChatTemplate(STRICT, bos="<B>").render(messages) == expected


def test_a_refusal_that_nothing_helps_against_is_told_in_the_templates_words() -> None:
    template = ChatTemplate("{{ raise_exception('only on Sundays') }}")
    with pytest.raises(TemplateError, match=r"^only on Sundays$"):
        template.render([USER])
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate(STRICT).render([ASSISTANT, USER])


def test_a_system_text_that_would_be_dropped_is_folded_too() -> None:
    silent = "{% for m in messages if m.role != 'system' %}{{ m.content }}|{% endfor %}"
    template = ChatTemplate(silent)
    assert not template.supports_system
    assert template.render([SYSTEM, USER]) == "s\n\nu|"


def test_developer_null_and_typed_content() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        {"role": "user", "content": None},
    ]
    assert ChatTemplate(PLAIN).render(messages) == "<|system|>xy<|end|><|user|><|end|><|assistant|>"


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [USER, calling('{"a": 1}'), result()]
    before = copy.deepcopy(messages)
    greedy = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls.append(1) }}{% endif %}{% endfor %}"
    ChatTemplate(greedy).render(messages, [TOOL])
    assert messages == before


def test_tojson_prints_what_models_were_trained_on() -> None:
    source = (
        "{{ tools[0] | tojson }}|{{ tools[0] | tojson(ensure_ascii=False) }}|"
        "{{ tools[0].function.parameters.properties | tojson(indent=2) }}|{{ tools | map(attribute='type') | tojson }}"
    )
    first, second, third, fourth = ChatTemplate(source).render([USER], [TOOL]).split("|")
    assert (
        first
        == second
        == (
            '{"type": "function", "function": {"name": "cmp_temp", "description": "true if t > 10 & t < 50 (user\'s '
            'café)", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}, "at": {"type": '
            '"integer"}}, "required": ["zone"]}}}'
        )
    )
    assert third.index("\n  ") < third.index("zone") < third.index("at")
    assert fourth == '["function"]'


def test_tojson_of_an_undefined_value_is_refused() -> None:
    with pytest.raises(TemplateError, match="nothing"):
        ChatTemplate("{{ nothing | tojson }}").render([USER])


def test_tools() -> None:
    template = ChatTemplate(TOOLS)
    assert template.supports_tools
    text = template.render([USER, calling('{"a": 1}'), result(tool_name="f")], [TOOL])
    assert text.startswith("[" + json.dumps(TOOL, ensure_ascii=False))
    assert text.endswith('<user>u<assistant>f{"a": 1}<tool>r')


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
@pytest.mark.parametrize(
    ("printing", "expected"),
    [
        ("{{ call.function.arguments | tojson }}", '{"a": 1}'),
        ("{{ call.function.arguments }}", '{"a": 1}'),
        ("{% for k, v in call.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}", "<a>1"),
    ],
)
def test_arguments_reach_each_kind_of_template_in_its_form(arguments: Any, printing: str, expected: str) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}" + printing + "{% endfor %}"
        "{% endfor %}"
    )
    assert ChatTemplate(source).render([USER, calling(arguments), result()]) == f"u{expected}r"


def test_calls_that_a_template_with_tools_would_drop_are_written_as_text() -> None:
    listing = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    turns = [USER, calling({"a": 1}), result()]
    assert ChatTemplate(listing + PLAIN).render(turns) == (
        f"<|user|>u<|end|><|assistant|>{call}<|end|><|tool|>r<|end|><|assistant|>"
    )
    no_results = listing + "{% for m in messages if m.role != 'tool' %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}"
    assert ChatTemplate(no_results).render(turns) == f"u:u|a:{call}|u:r|"


def test_a_template_without_tools_drops_calls_unless_it_refuses_them() -> None:
    turns = [USER, calling({"a": 1}), result()]
    assert ChatTemplate(PLAIN).render(turns) == "<|user|>u<|end|><|assistant|><|end|><|tool|>r<|end|><|assistant|>"
    assert ChatTemplate(STRICT).render(turns).endswith("</tool_call>[user]r")


def test_ids_of_calls_are_given_matched_and_shortened_where_needed() -> None:
    wants_nine = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}{{ c.id }} {{ c.function.arguments | tojson }} {% endfor %}"
        "{% if m.role == 'tool' %}{{ m.tool_call_id }} {{ m.content }}{% endif %}{% endfor %}"
    )
    template = ChatTemplate(wants_nine)
    assert template.render([USER, calling({}), result()]) == "call00000 {} call00000 r"
    assert template.render([USER, calling({}, id="call_abc"), result(tool_call_id="call_abc")]) == (
        "call00000 {} call00000 r"
    )


def test_an_empty_list_of_calls_is_no_list() -> None:
    source = "{% for m in messages %}{{ 'tool_calls' in m }}{% endfor %}"
    assert ChatTemplate(source).render([{**ASSISTANT, "tool_calls": []}, USER]) == "FalseFalse"


def test_type_lists_in_tool_schemas_become_one_type() -> None:
    tool = copy.deepcopy(TOOL)
    tool["function"]["parameters"]["properties"]["zone"]["type"] = ["string", "null"]
    source = "{% for p in tools[0].function.parameters.properties.values() %}{{ p.type | upper }} {% endfor %}"
    assert ChatTemplate(source).render([USER], [tool]) == "STRING INTEGER "


def test_templates_that_iterate_over_tools_unasked() -> None:
    assert ChatTemplate("{% for t in tools %}{{ t }}{% endfor %}{{ messages[0].content }}").render([USER]) == "u"


def test_features_of_the_wild() -> None:
    template = ChatTemplate(
        "{%- set ns = namespace(n=0) -%}"
        "{%- macro show(x, depth=0) -%}{{ x }}{% if depth < 2 %}{{ show(x, depth + 1) }}{% endif %}{%- endmacro -%}"
        "{%- for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% if ns.n > 2 %}{% break %}{% endif %}"
        "{{ show(m.content) }}{{ loop.revindex }}{{ loop.last }}{% endfor %}"
        "{% set block %}b{{ ns.n }}{% endset %}{{ block }}"
        "{% generation %}g{% endgeneration %}"
        "{{ strftime_now('%Y-%m-%d') }}{{ ('{\"a\": [1]}' | from_json).a[0] }}"
        "{{ 'a-b'.split('-') | join('+') }}{{ 'abc'.replace('b', 'x') }}{{ '%s:%d' % ('k', 3) }}{{ 'x' ~ 1 ~ none }}"
        "{{ bos_token }}{{ {'b': 1, 'a': 2} | dictsort }}{{ enable_thinking }}"
        "{% for m in messages recursive %}{% if loop.depth < 2 %}{{ loop([m]) }}{% endif %}.{% endfor %}",
        bos="<B>",
        now=lambda: datetime(2024, 5, 6),
    )
    text = template.render([USER, USER2, USER], enable_thinking=False)
    assert text == "uuu3Falsevvv2Falseb3g2024-05-061a+baxck:3x1None<B>[('a', 2), ('b', 1)]False......"


@pytest.mark.parametrize(
    ("source", "supports"),
    [
        (PLAIN, False),
        ("{{ '<think>' }}{{ '</think>' }}", True),
        ("{% if enable_thinking %}{% endif %}", True),
        ("{{ messages[0].content.split('</think>')[-1] }}", True),
    ],
)
def test_thinking_is_seen_in_the_source(source: str, supports: bool) -> None:
    assert ChatTemplate(source).supports_thinking == supports


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ x", "{% unknown %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"]
)
def test_what_does_not_compile(source: str) -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate(source)


def test_errors_of_python_become_template_errors() -> None:
    for source in ("{{ messages[7].content }}", "{{ 1 / 0 }}", "{{ messages.nothing() }}", "{{ 'a' + 1 }}"):
        with pytest.raises(TemplateError):
            ChatTemplate(source).render([USER])


def test_what_the_oracle_refuses_and_templates_want() -> None:
    one_call = (
        "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}"
        "{% endif %}{{ m.role[0] }}{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}"
        "{{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"
    )
    calls = [{"id": i, "function": {"name": "f", "arguments": {"k": i}}} for i in ("one", "two")]
    turns = [USER, {"role": "assistant", "content": "c", "tool_calls": calls}]
    turns += [{"role": "tool", "content": i, "tool_call_id": i} for i in ("two", "one")]
    text = ChatTemplate(one_call).render(turns)
    assert text == 'uuac(f{"k": "one"})tonea(f{"k": "two"})ttwo'
    no_empty = (
        "{% for m in messages %}{% if not m.content %}{{ raise_exception('empty') }}{% endif %}{{ m.content }}"
        "{% endfor %}"
    )
    assert ChatTemplate(no_empty).render([USER, {"role": "assistant", "content": ""}, USER2]) == "u\n\nv"
    described = (
        "{% for t in tools %}{% for p in t.function.parameters.properties.values() %}{{ p.type + p.description }}"
        "{% endfor %}{% endfor %}{{ messages[0].content }}"
    )
    assert ChatTemplate(described).render([USER], [TOOL]) == "stringintegeru"


def test_format_is_bounded_and_sandboxed() -> None:
    assert ChatTemplate("{{ '{0.a}{b:>3}'.format({'a': 1}, b='x') }}").render([USER]).endswith("  x")
    assert "class" not in ChatTemplate("{{ '{0.__class__}'.format(1) }}").render([USER])
    for source in ("{{ '{:{w}}'.format(1, w=99999) }}", "{{ '{:9999}'.format(1) }}", "{{ 'x'.format_map({}) }}"):
        with pytest.raises(TemplateError):
            ChatTemplate(source).render([USER])


def test_calls_as_text_are_written_as_the_family_does() -> None:
    listing = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ messages[1].content }}{{ messages[2].content }}"
    turns = [USER, calling({"a": 1, "b": 'x"y', "c": [True, None]}), result()]
    for mark, expected in (
        ("", '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": "x\\"y", "c": [true, null]}}\n</tool_call>r'),
        ("<|tool_call|>", '<|tool_call|>[{"name": "f", "arguments": {"a": 1, "b": "x\\"y", "c": [true, null]}}]r'),
        ("<|tool_list_start|>", '<|tool_call_start|>[f(a=1, b="x\\"y", c=[True, None])]<|tool_call_end|>r'),
    ):
        assert ChatTemplate(listing + "{# " + mark + " #}").render(turns) == expected
