"""Templates of families: they write what their makers' own write (see record_families.py), and do no less."""

from __future__ import annotations

import json
import os
from datetime import datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm.chat import GoTemplate
from localllm.chat.harmony import is_harmony
from localllm.chat.known import KNOWN
from localllm.chat.thinking_tags import thinking_tags_of
from localllm.chat.tools import syntaxes_of
from localllm.modelfile import Modelfile, decode, parse, read
from localllm.runner.templates import KEY, TOOLS_KEY, Templates
from modelfiles import families, family_modelfile

FOLDER_VARIABLE = "LLAMA_CPP_TEMPLATES"
FIXTURES = Path(__file__).parents[1] / "fixtures" / "templates"
RECORDED: dict[str, dict[str, Any]] = json.loads((FIXTURES / "families.json").read_text("utf-8"))
EMBEDDERS = {"all-minilm", "nomic-embed-text"}
CASES = [(family, title) for family, entry in RECORDED.items() for title in entry["prompts"]]

START = "\x02"
CALLED = "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
# Texts of the maker's prompts and what stands there instead.
INSTEAD = {
    "command-r": {"List[Union[]]": "List[str]"},  # theirs asks a mapping for `items` and gets Python's method
    "deepseek-r1": {f"{CALLED}<｜Assistant｜><｜end▁of▁sentence｜>": CALLED},  # an empty answer after each call
    "granite3.3": {"July 26, 2024": "2024-07-26"},  # Ollama's templates have one form of dates
    "llama3.2": {"26 Jul 2024": "2024-07-26"},
    "mixtral": {f"{START} [INST]": f"{START}[INST]"},  # the tokenizer adds the first blank
}
# Llama's takes one call at a time, so that each is followed by its result; here the calls of an answer stay together.
# DeepSeek's writes what was said before a call after it, as an answer of its own. Falcon's tells the model to write a
# call's name and arguments, but writes earlier ones with their ids and types.
UNLIKE = {("llama3.1", "calls"), ("llama3.2", "calls"), ("llama3.3", "calls"), ("deepseek-r1", "text and call")} | {
    ("falcon3", title) for title in ("text and call", "calls")
}
SAME_FORMAT = {
    "codellama": "llama2-chat",
    "command-r": "command-r",
    "gemma3": "gemma3-instruct",
    "phi3": "phi-3",
    "smollm2": "chatml",
    "tinyllama": "zephyr",
}
QUESTION = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Where?"}]
TURNS = [*QUESTION, {"role": "assistant", "content": "Here."}, {"role": "user", "content": "When?"}]
BEGUN = {"role": "assistant", "content": "It is"}


def modelfile(family: str) -> Modelfile:
    content = family_modelfile(family)
    assert content is not None
    return read(parse(decode(content)))


@cache
def template(family: str) -> GoTemplate:
    return GoTemplate(modelfile(family).template, now=lambda: datetime(2024, 7, 26, 12))


def test_all_are_recorded() -> None:
    assert set(families()) == {*RECORDED, *EMBEDDERS}


@pytest.mark.parametrize(("family", "title"), CASES)
def test_prompts(family: str, title: str, recorder: ModuleType) -> None:
    entry = RECORDED[family]
    expected = START + entry["prompts"][title]
    for theirs, ours in INSTEAD.get(family, {}).items():
        expected = expected.replace(theirs, ours)
    same = START + recorder.prompt(template(family), title, bool(entry["thinking"])) == expected
    assert same is ((family, title) not in UNLIKE)


@pytest.mark.parametrize("family", RECORDED)
def test_stops_stand_between_messages(family: str, recorder: ModuleType) -> None:
    entry = RECORDED[family]
    marks = entry["bos"] + entry["prompts"]["system turns"]
    for message in recorder.CONVERSATIONS["system turns"]["messages"]:
        marks = marks.replace(message["content"], "")
    assert [stop for stop in modelfile(family).parameters.get("stop", []) if stop not in marks] == []


@pytest.mark.parametrize("family", RECORDED)
def test_an_answer_is_left_open(family: str) -> None:
    text = template(family).render([*TURNS, BEGUN])
    assert text.endswith("It is") and text[: -len("It is")].rstrip(" ") == template(family).render(TURNS).rstrip(" ")


@pytest.mark.parametrize(("family", "known"), SAME_FORMAT.items())
def test_known_formats(family: str, known: str) -> None:
    (found,) = (GoTemplate(format_.template) for format_ in KNOWN if format_.name == known)
    assert template(family).render(TURNS) == found.render(TURNS)


@pytest.mark.parametrize("family", RECORDED)
def test_it_does_what_the_makers_does(family: str) -> None:
    entry, own = RECORDED[family], template(family)
    assert own.supports_tools >= entry["tools"] and own.supports_thinking >= bool(entry["thinking"])
    assert own.keeps_tool_turns >= (entry["tools"] and entry["keeps_calls"])
    tags = None if is_harmony(own.source) else thinking_tags_of(own)
    assert tags is None or [tags.open, tags.close, *tags.wrappers] == entry["thinking"]


def test_tools_of_smollm3(recorder: ModuleType) -> None:
    """The recorded template, which its GGUFs carry, lists none: this is its makers' first one."""
    text = recorder.prompt(template("smollm3"), "calls", True)
    assert '<tools>\n{"function": ' in text and text.count("<tool_call>\n{") == 3 and "user\n18 °C<|im_end|>" in text


def test_text_between() -> None:
    assert template("starcoder2").render_insert("a", "b") == "<fim_prefix>a<fim_suffix>b<fim_middle>"
    assert not template("codellama").supports_insert  # it goes by tokens, which no text of its vocabulary becomes


@pytest.mark.parametrize("family", sorted(EMBEDDERS))
def test_text_to_embed_is_left_alone(family: str) -> None:
    assert modelfile(family).template == "{{ .Prompt }}"


@pytest.mark.parametrize("family", RECORDED)
def test_the_record_is_true(family: str, recorder: ModuleType) -> None:
    folder = Path(os.environ.get(FOLDER_VARIABLE, ""))
    entry = dict(RECORDED[family])
    if not folder.name or not all((folder / f"{entry[key]}.jinja").exists() for key in ("source", "tool_source")):
        pytest.skip(f"{FOLDER_VARIABLE} does not name a folder with the template, such as llama.cpp's models/templates")
    recorder.record(folder, entry)
    assert entry == RECORDED[family]
    theirs, with_tools = (recorder.compiled(folder, entry, title) for title in ("user", "calls"))
    if entry["tools"]:
        assert syntaxes_of(template(family)) == syntaxes_of(with_tools)
    metadata = {KEY: theirs.source, TOOLS_KEY: with_tools.source}
    both = Templates(metadata, modelfile(family).template, entry["bos"], entry["eos"])
    assert both.uses_go and set(both.capabilities) >= set(Templates(metadata, None, "", "").capabilities)


ODD = {
    "a": {"type": ["string", "null"]},
    "b": {"type": "array", "items": [1]},
    "c": {"type": "object", "properties": {"x": {"type": "string"}, "y": {}}, "required": ["x"]},
    "d": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "e": {"type": "string", "enum": ["p", "q"]},
    "f": True,
}


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            "gpt-oss",
            'a: string | null,\nb?: any[],\nc?: {\nx: string,\ny?: any },\nd?: string | number,\ne?: "p" | "q",',
        ),
        (
            "command-r",
            "def f(a: Any, b: Optional[List[Any]] = None, c: Optional[Dict[str, Any]] = None, d: Optional[Any]",
        ),
    ],
)
def test_types_of_arguments(family: str, expected: str) -> None:
    parameters = {"type": "object", "properties": ODD, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert expected in template(family).render(QUESTION, tools)
