"""What a model may write around its content: free text, marks, thinking, channels, calls. No model is involved."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.chat import ChatTemplate, ThinkingTags
from localllm.errors import RequestError
from localllm.gguf import open_gguf
from localllm.grammar.dfa import Dfa
from localllm.grammar.expressions import Grammar, Literal, Terminal, TokenSet, choice
from localllm.grammar.twin import Matcher
from localllm.runner.constraints.answers import Calls, answer_grammar
from localllm.runner.constraints.call_forms import CallForm, Elements, Parts, call_form
from localllm.runner.constraints.element_arguments import element_arguments
from localllm.runner.constraints.frame import Frame
from localllm.runner.constraints.free_text import Marks, blanks, text_up_to, text_without
from localllm.runner.constraints.wanted import wanted_of_schema
from localllm.tokenizer import Tokenizer, load_tokenizer

ENDS = ("<|end|>", "<|im_end|>", "</s>", "<|eot_id|>")
YES = Grammar({"root": choice([Literal(b"yes"), Literal(b"no")])})
THINK = ThinkingTags()
HEAD = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
TAIL = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{# tools #}"
CALLS = {
    "<tool_call>": "<tool_call>\n{{ c.function | tojson }}\n</tool_call>",
    "[TOOL_CALLS]": "[TOOL_CALLS]NAME[CALL_ID]{{ c.id }}[ARGS]ARGUMENTS</s>",
    "{": '{"name": "NAME", "parameters": ARGUMENTS}<|eot_id|>{# <|python_tag|> #}',
    "<function=": "<function=NAME>ARGUMENTS</function>",
}
XML = (
    "<tool_call>\n<function=NAME>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n"
    "</parameter>\n{% endfor %}</function>\n</tool_call>"
)


@pytest.fixture
def tokenizer(tmp_path: Path, tiny_models: ModuleType) -> Tokenizer:
    tiny_models.script_model(tmp_path / "m.gguf", ["a"])
    with open_gguf(tmp_path / "m.gguf") as gguf:
        return load_tokenizer(gguf)


def template_of(call: str) -> ChatTemplate:
    call = call.replace("NAME", "{{ c.function.name }}").replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    return ChatTemplate(HEAD + "{% for c in m.tool_calls or [] %}" + call + "{% endfor %}" + TAIL, "", "")


def accepts(expression: Any, text: str) -> bool:
    assert isinstance(expression, Terminal)
    dfa: Dfa = expression.dfa
    assert all((row != -1).any() or accepting for row, accepting in zip(dfa.next, dfa.accepting, strict=True))
    return dfa.accepts(text.encode())


def taken(grammar: Grammar, tokenizer: Tokenizer, text: str) -> tuple[bool, bool]:
    """Whether an answer may begin so, and whether it may be this. Control tokens are spelled as they are."""
    pieces = [None if tokenizer.is_control(t) else tokenizer.piece(t) for t in range(tokenizer.n_vocab)]
    matcher = Matcher(grammar, pieces)
    fits = all(matcher.accept(token) for token in tokenizer.encode(text, add_special=False))
    return fits, fits and matcher.is_complete()


@pytest.mark.parametrize(
    ("text", "is_without", "is_up_to"),
    [
        ("", True, False),
        ("abab", True, False),
        ("ababa", True, False),
        ("ababc", False, True),
        ("xabababc", False, True),
        ("ababcx", False, False),
        ("q", True, False),
        ("xqq", False, False),
        ("é", True, False),
    ],
)
def test_free_text(text: str, is_without: bool, is_up_to: bool) -> None:
    assert accepts(text_without(["ababc", "qq"]), text) is is_without
    assert accepts(text_up_to("ababc"), text) is is_up_to


@pytest.mark.parametrize(
    ("text", "fits"),
    [("", True), (" \n", True), (" {", False), ("[", False), ("a{", True), ("<<", False), (" <", True)],
)
def test_free_text_that_begins_otherwise(text: str, fits: bool) -> None:
    assert accepts(text_without(["<<"], ["{", "["]), text) is fits


def test_marks_are_control_tokens_where_there_are_some(tokenizer: Tokenizer) -> None:
    marks = Marks(tokenizer)
    (token,) = tokenizer.encode("<|end|>", add_special=False)
    found = marks.expression("<|end|>")
    assert isinstance(found, TokenSet) and found.ids == {token}
    assert marks.is_control("<|end|>") and not marks.is_control("</think>")
    assert isinstance(marks.expression("</think>"), Literal)
    assert blanks()


@pytest.mark.parametrize(
    ("frame", "text", "is_whole"),
    [
        (Frame(tags=THINK, may_think=True), "yes", True),
        (Frame(tags=THINK, may_think=True), "<think>any { text</think>\n\nno", True),
        (Frame(tags=THINK, may_think=True), "<think>any text", False),
        (Frame(tags=THINK, may_think=True), "maybe", None),
        (Frame(tags=THINK, may_think=True), "<think>x</think>maybe", None),
        (Frame(tags=THINK), "<think>x</think>yes", None),
        (Frame(tags=THINK), "yes", True),
        (Frame(tags=THINK, is_thinking=True), "yes", False),
        (Frame(tags=THINK, is_thinking=True), "hm</think>yes", True),
        (Frame(tags=THINK, is_thinking=True), "<think>hm</think>yes", True),
        (Frame(tags=THINK, may_think=True, begun="x"), "<think>", None),
        (Frame(tags=ThinkingTags("<|user|>", "<|end|>"), may_think=True), "<|user|>a<|end|>no", True),
        (Frame(tags=ThinkingTags("<|user|>", "<|end|>"), may_think=True), "<|user|>a<|tool|>", None),
        (
            Frame(tags=ThinkingTags(wrappers=("<response>", "</response>")), may_think=True),
            "<think></think><response>no",
            True,
        ),
        (Frame(has_channels=True), "<|channel|>final<|message|>yes", True),
        (Frame(has_channels=True), "<|channel|>final <|constrain|>json<|message|>yes", True),
        (
            Frame(has_channels=True),
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>no",
            True,
        ),
        (Frame(has_channels=True), "<|channel|>analysis<|message|>hm<|end|><|start|>assistant", False),
        (Frame(has_channels=True), "yes", None),
        (Frame(has_channels=True), "<|channel|>final<|message|>maybe", None),
        (Frame(has_channels=True, begun="x"), "yes", True),
    ],
)
def test_content_in_its_frame(tokenizer: Tokenizer, frame: Frame, text: str, is_whole: bool | None) -> None:
    grammar = answer_grammar(Marks(tokenizer), frame, YES, None)
    assert taken(grammar, tokenizer, text) == (is_whole is not None, bool(is_whole))


def test_content_without_a_frame_is_the_grammar_itself(tokenizer: Tokenizer) -> None:
    assert answer_grammar(Marks(tokenizer), Frame(), YES, None) is YES


@pytest.mark.parametrize("opener", CALLS)
def test_forms_are_told_from_templates(opener: str) -> None:
    form = call_form(template_of(CALLS[opener]), "", ENDS)
    assert form is not None
    example = form.parts.example("f")
    assert example.startswith(opener) and '{"probe_key":"probe_value"}' in example
    assert not example.endswith(ENDS)
    assert form.parts.is_name_json == (opener in ("<tool_call>", "{"))


def test_forms_with_an_element_for_each_argument() -> None:
    form = call_form(template_of(XML), "", ENDS)
    assert form is not None and form.parts.elements == Elements("<parameter=", ">\n", "\n</parameter>\n")
    assert form.parts == Parts("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", form.parts.elements)


def test_forms_of_other_kinds_are_none() -> None:
    assert (
        call_form(template_of("<|tool_call_start|>[NAME(probe_key='probe_value')]<|tool_call_end|>"), "", ENDS) is None
    )


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("OPEN<parameter=q>\nany <b>text\n</parameter>\nCLOSE", True),
        ("OPEN<parameter=q>\nx\n</parameter>\n<parameter=n>\n12\n</parameter>\nCLOSE", True),
        ("OPEN<parameter=q>\nx\n</parameter>\n<parameter=n>\nno", None),
        ("OPEN<parameter=n>", None),
        ("OPENCLOSE", None),
    ],
)
def test_calls_with_an_element_for_each_argument(tokenizer: Tokenizer, text: str, is_whole: bool | None) -> None:
    form = call_form(template_of(XML), "", ENDS)
    schema = {"properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}
    arguments, warnings = element_arguments(schema, wanted_of_schema)
    assert warnings == ()
    grammar = answer_grammar(Marks(tokenizer), Frame(), None, Calls({"f": arguments}, form, True, True))
    text = text.replace("OPEN", "<tool_call>\n<function=f>\n").replace("CLOSE", "</function>\n</tool_call>")
    assert taken(grammar, tokenizer, text) == (is_whole is not None, bool(is_whole))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "x"}}}, "#/properties/a/pattern"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, "#/properties/a/type"),
        ({"minProperties": 1}, "#/minProperties"),
        ({"required": ["a"]}, '"a" is not among'),
    ],
)
def test_what_elements_cannot_enforce(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        element_arguments(schema, wanted_of_schema)


def test_the_usual_form_where_a_template_shows_none() -> None:
    form = call_form(ChatTemplate(HEAD + TAIL, "", ""), "", ENDS)
    assert form is not None
    text = '<tool_call>\n{"name": "f", "arguments": {"probe_key":"probe_value"}}\n</tool_call>'
    assert form.parts.example("f") == text


def calls(form: CallForm | None, *, is_required: bool, is_single: bool) -> Calls:
    digit = Grammar({"root": choice([Literal(b'{"n":1}'), Literal(b'{"n":2}')])})
    return Calls({"f": digit, 'g"h': digit}, form, is_required, is_single)


@pytest.mark.parametrize(
    ("text", "required", "single", "free"),
    [
        ("CALL", True, True, True),
        ("CALLCALL", True, None, True),
        ("CALL\nCALL", True, None, True),
        ("", False, False, True),
        ("Well, { <tool_", None, None, True),
        ("Well. CALL", None, None, True),
        ("CALL and", None, None, None),
        ("<tool_call>", False, False, False),
        ("<tool_call>x", None, None, None),
        ('<tool_call>\n{"name": "e', None, None, None),
        ('<tool_call>\n{"name": "f", "arguments": {"n":3', None, None, None),
    ],
)
def test_calls_between_tags(
    tokenizer: Tokenizer, text: str, required: bool | None, single: bool | None, free: bool | None
) -> None:
    form = call_form(template_of(CALLS["<tool_call>"]), "", ENDS)
    call = '<tool_call>\n{"name": "g\\"h", "arguments": {"n":2}}\n</tool_call>'
    assert form is not None
    for is_required, is_single, is_whole in ((True, False, required), (True, True, single), (False, False, free)):
        wanted = calls(form, is_required=is_required, is_single=is_single)
        grammar = answer_grammar(Marks(tokenizer), Frame(), None, wanted)
        assert taken(grammar, tokenizer, text.replace("CALL", call)) == (is_whole is not None, bool(is_whole))


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ('{"name": "f", "parameters": {"n":1}}', True),
        ("Well.", True),
        (" {", None),
        ('{"answer": 1}', None),
        ("Well <|python_tag|>", None),
    ],
)
def test_calls_without_tags_begin_the_answer(tokenizer: Tokenizer, text: str, is_whole: bool | None) -> None:
    form = call_form(template_of(CALLS["{"]), "", ENDS)
    grammar = answer_grammar(Marks(tokenizer), Frame(), None, calls(form, is_required=False, is_single=True))
    assert taken(grammar, tokenizer, text) == (is_whole is not None, bool(is_whole))


def test_ids_are_made_up(tokenizer: Tokenizer) -> None:
    form = call_form(template_of(CALLS["[TOOL_CALLS]"]), "", ENDS)
    grammar = answer_grammar(Marks(tokenizer), Frame(), None, calls(form, is_required=True, is_single=True))
    text = '[TOOL_CALLS]f[CALL_ID]@@[ARGS]{"n":1}'
    assert taken(grammar, tokenizer, text.replace("@@", "aB3xyz019")) == (True, True)
    assert taken(grammar, tokenizer, text.replace("@@", "short")) == (False, False)


def test_calls_or_content(tokenizer: Tokenizer) -> None:
    form = call_form(template_of(CALLS["<tool_call>"]), "", ENDS)
    wanted = calls(form, is_required=False, is_single=True)
    grammar = answer_grammar(Marks(tokenizer), Frame(tags=THINK, may_think=True), YES, wanted)
    call = '<tool_call>\n{"name": "f", "arguments": {"n":2}}\n</tool_call>'
    assert taken(grammar, tokenizer, "<think>a</think>yes") == (True, True)
    assert taken(grammar, tokenizer, f"<think>a</think>{call}") == (True, True)
    assert taken(grammar, tokenizer, "maybe") == (False, False)


def test_calls_in_channels(tokenizer: Tokenizer) -> None:
    analysis = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n":2}'
    text = "<|channel|>final<|message|>any text"
    for is_required in (True, False):
        wanted = calls(None, is_required=is_required, is_single=True)
        grammar = answer_grammar(Marks(tokenizer), Frame(has_channels=True), None, wanted)
        assert taken(grammar, tokenizer, analysis + call) == (True, True)
        assert taken(grammar, tokenizer, analysis + text) == (not is_required, not is_required)
        assert taken(grammar, tokenizer, call.replace("2", "3")) == (False, False)
