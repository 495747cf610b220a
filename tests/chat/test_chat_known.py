"""Known prompt formats: what they write, and how they are found in a template's source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.chat import GoTemplate
from localllm.chat.known import KNOWN, KnownTemplate, detect
from localllm.chat.known.distance import edit_distance

BY_NAME = {known.name: known for known in KNOWN}
MESSAGES = [
    {"role": "system", "content": "SYS"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]

# The prompt of MESSAGES in each format.
PROMPTS = json.loads((Path(__file__).parents[1] / "fixtures" / "templates" / "known_prompts.json").read_text("utf-8"))


def test_all_are_there() -> None:
    assert sorted(BY_NAME) == sorted(PROMPTS)


@pytest.mark.parametrize("name", PROMPTS)
def test_what_a_format_writes(name: str) -> None:
    assert GoTemplate(BY_NAME[name].template).render(MESSAGES) == PROMPTS[name]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_last_answer_is_left_open(known: KnownTemplate) -> None:
    text = GoTemplate(known.template).render(MESSAGES[:3])
    assert text.endswith("two") and PROMPTS[known.name].startswith(text)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_options_of_a_format(known: KnownTemplate) -> None:
    assert known.params["stop"] == list(known.stops) and known.stops
    assert known.params.get("temperature") == (0.1 if known.name == "gemma3-instruct" else None)


def jinja_of(known: KnownTemplate) -> str:
    """The format as a Jinja template would write it."""
    opening = known.answer[0] if known.opening is None else known.opening
    is_begun = "loop.index0 == 1 and messages[0].role == 'system'" if known.begins_turn else "false"
    user = f"{{{{ '' if {is_begun} else {known.user[0]!r} }}}}{{{{ m.content + {known.user[1]!r} }}}}"
    system, answer = (f"{{{{ {a!r} + m.content + {b!r} }}}}" for a, b in (known.system, known.answer))
    turns = f"{{% if m.role == 'system' %}}{system}{{% elif m.role == 'user' %}}{user}{{% else %}}{answer}{{% endif %}}"
    return f"{{{{ bos_token }}}}{{% for m in messages %}}{turns}{{% endfor %}}{{{{ {opening!r} }}}}"


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_format_is_found(known: KnownTemplate) -> None:
    found = detect(jinja_of(known))
    assert found is not None and (found.name, found.is_native) == (known.name, True)


CHATML = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}\n{% if m.role == 'user' %}\n{{ '<|user|>\n' + m.content + eos_token }}\n"
    "{% elif m.role == 'system' %}\n{{ '<|system|>\n' + m.content + eos_token }}\n{% elif m.role == 'assistant' %}\n"
    "{{ '<|assistant|>\n' + m.content + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set text = '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + "
    "message.content | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}"
    "{{ text }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
OWN = "{% for m in messages %}[[{{ m.role }}]] {{ m.content }} ;; {% endfor %}[[assistant]]"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (CHATML, "chatml"),
        (GEMMA, "gemma-instruct"),
        (ZEPHYR, "zephyr"),
        (LLAMA3, "llama3-instruct"),
        ("<s>" + LLAMA3 + "<s>", "llama3-instruct"),
        (OWN, None),
        ("", None),
        ("{{ messages[-1].content }}", None),
        ("{% for %}", None),
    ],
)
def test_sources_found(source: str, name: str | None) -> None:
    found = detect(source)
    assert (found and found.name) == name


def test_a_source_that_does_not_work_is_told_by_its_marks() -> None:
    for source, name in ((CHATML, "chatml"), (LLAMA3, "llama3-instruct"), (GEMMA, None), (OWN, None)):
        found = detect(source + "{% unknown %}")
        assert (found and (found.name, found.is_native)) == (name and (name, False))


def naive(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(previous[j - 1] + (x != y), previous[j] + 1, row[-1] + 1))
    return row[-1]


@given(st.text("ab", max_size=12), st.text("abc", max_size=12), st.integers(0, 14))
def test_distance(a: str, b: str, most: int) -> None:
    assert edit_distance(a, b, most) == min(naive(a, b), most + 1)
