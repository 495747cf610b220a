"""Where families stop: at texts that their authors' own chat templates write."""

import json
import os
import re
from pathlib import Path

import pytest

from localllm.modelfile import decode, parse, read
from modelfiles import family_modelfile

FOLDER_VARIABLE = "LLAMA_CPP_TEMPLATES"
SOURCES = {
    "command-r": "CohereForAI-c4ai-command-r-plus-tool_use",
    "deepseek-r1": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "gemma2": "google-gemma-2-2b-it",
    "llama3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "llama3.2": "meta-llama-Llama-3.2-3B-Instruct",
    "llama3.3": "meta-llama-Llama-3.3-70B-Instruct",
    "mistral": "mistralai-Mistral-Nemo-Instruct-2407",
    "phi3": "microsoft-Phi-3.5-mini-instruct",
    "qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3": "Qwen-Qwen3-0.6B",
    "smollm3": "HuggingFaceTB-SmolLM3-3B",
}
# The start token, which the template prints by the name `bos_token`.
BY_NAME = {"deepseek-r1": {"<｜begin▁of▁sentence｜>"}}


CONTROL_TEXT = re.compile(r"<[|｜][^|｜<>\s]+[|｜]>|\[/?[A-Z_]+\]|<\w+_of_turn>")


@pytest.fixture(scope="module")
def recorded(fixtures_dir: Path) -> dict[str, list[str]]:
    """The control texts in the templates of SOURCES."""
    content: dict[str, list[str]] = json.loads((fixtures_dir / "templates/control_texts.json").read_text("utf-8"))
    return content


@pytest.mark.parametrize("name", SOURCES)
def test_stops_are_in_the_authors_template(name: str, recorded: dict[str, list[str]]) -> None:
    content = family_modelfile(name)
    assert content is not None
    stops = read(parse(decode(content))).parameters["stop"]
    assert set(stops) - set(recorded[name]) == BY_NAME.get(name, set())


@pytest.mark.parametrize("name", SOURCES)
def test_the_record_is_true(name: str, recorded: dict[str, list[str]]) -> None:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        pytest.skip(f"{FOLDER_VARIABLE} does not name llama.cpp's folder models/templates")
    source = (Path(folder) / f"{SOURCES[name]}.jinja").read_text("utf-8")
    assert sorted(set(CONTROL_TEXT.findall(source))) == recorded[name]
