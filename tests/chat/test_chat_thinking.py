"""Thinking told apart from content, whatever the cuts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.chat import ChatTemplate, ThinkingSplitter, ThinkingTags, thinking_arguments, thinking_tags_of
from localllm.chat.thinking import THINK
from localllm.chat.thinking_tags import KNOWN, is_open


def split(pieces: list[str], is_open: bool = False, tags: ThinkingTags = THINK) -> tuple[str, str]:
    splitter = ThinkingSplitter(is_open, tags)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.flush()]
    return "".join(t for t, _ in parts), "".join(c for _, c in parts)


CASES = [
    ("<think>\na b\n</think>\n\nanswer", False, ("a b", "answer")),
    ("plain answer", False, ("", "plain answer")),
    ("  plain", False, ("", "  plain")),
    ("\n<think>t</think>c", False, ("t", "c")),
    ("<think></think>c", False, ("", "c")),
    ("<thin air", False, ("", "<thin air")),
    ("t</think>\nc", True, ("t", "c")),
    ("\nt without end", True, ("t without end", "")),
    ("<think>a < b </thin </think>c", False, ("a < b </thin", "c")),
    ("say <think> later", False, ("", "say <think> later")),
    ("<think>t</think>c</think>d", False, ("t", "c</think>d")),
    ("<th", False, ("", "<th")),
    ("<th", True, ("<th", "")),
    ("<think>\nt</think>c", True, ("t", "c")),
    ("<think>t</thi", False, ("t</thi", "")),
]


@pytest.mark.parametrize(("text", "is_open", "expected"), CASES)
def test_cases_whole_and_by_character(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split([text], is_open) == expected
    assert split(list(text), is_open) == expected


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "a", " ", "\n", "</thi", "nk>"]), max_size=10), st.booleans()
)
def test_the_cuts_do_not_matter(pieces: list[str], is_open: bool) -> None:
    whole = split(["".join(pieces)], is_open)
    assert split(pieces, is_open) == whole
    assert split(list("".join(pieces)), is_open) == whole


def test_arguments_for_templates() -> None:
    assert thinking_arguments(None) == {}
    assert thinking_arguments(False) == {"enable_thinking": False, "thinking": False}
    assert thinking_arguments("high") == {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}


@pytest.mark.parametrize("tags", KNOWN, ids=lambda tags: tags.open)
def test_every_kind_of_tags(tags: ThinkingTags) -> None:
    text = f"\n{tags.open}\nwhy < not [x]\n{tags.close}\n\nso: <b> [i]"
    for at in range(len(text) + 1):
        assert split([text[:at], text[at:]], tags=tags) == ("why < not [x]", "so: <b> [i]")
    assert split(list(text[len(tags.open) + 1 :]), True, tags) == ("why < not [x]", "so: <b> [i]")


def test_thinking_that_comes_again() -> None:
    tags = next(tags for tags in KNOWN if tags.is_repeated)
    text = f"{tags.open}a{tags.close}b\n{tags.open}\nc{tags.close}d"
    for pieces in ([text], list(text)):
        assert split(pieces, tags=tags) == ("ac", "bd")
    assert split([f"{tags.open}a{tags.close} b <|chan"], tags=tags) == ("a", "b <|chan")


WRITES = (
    "{% for m in messages %}{{ m.role }}:{% if m.thinking %}OPEN\n{{ m.thinking }}\nCLOSE{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}assistant:END{% endif %}"
)


def writing(opening: str, closing: str, end: str = "") -> ChatTemplate:
    return ChatTemplate(WRITES.replace("OPEN", opening).replace("CLOSE", closing).replace("END", end))


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<muse>", "</muse>"), ("<|idea_begin|>", "<|idea_begin_end|>")],
)
def test_tags_are_what_a_template_writes_around_thinking(opening: str, closing: str) -> None:
    tags = thinking_tags_of(writing(opening, closing))
    assert tags is not None
    assert (tags.open, tags.close) == (opening, closing)
    prompt = writing(opening, closing, f"{opening}\n").render([{"role": "user", "content": closing}])
    assert is_open(prompt, tags)
    assert not is_open(f"what is {opening}?\nassistant:", tags)


@pytest.mark.parametrize(("opening", "closing"), [("", ""), ("<a>", "<b>"), ("analysis: ", ".")])
def test_what_is_no_tag(opening: str, closing: str) -> None:
    assert thinking_tags_of(writing(opening, closing)) is None


def test_tags_that_are_only_in_the_source() -> None:
    assert thinking_tags_of(ChatTemplate("{# <seed:think> </seed:think> #}{{ messages[0].content }}")) == KNOWN[4]
    assert thinking_tags_of(ChatTemplate("{{ messages[0].content.split('</think>')[-1] }}")) == THINK
    wrapped = thinking_tags_of(ChatTemplate("{# <think></think> and <response></response> #}{{ messages[0].content }}"))
    assert wrapped == KNOWN[0]
