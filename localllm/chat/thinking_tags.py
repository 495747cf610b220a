"""Finds out by which tags a model's thinking is told apart, from its template; it knows nothing of any one request."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Protocol

from localllm.chat.thinking import THINK, ThinkingTags
from localllm.errors import TemplateError

KNOWN = (
    ThinkingTags("<think>", "</think>", ("<response>", "</response>"), mark="<response></response>"),
    THINK,
    ThinkingTags("[THINK]", "[/THINK]"),
    ThinkingTags("<|channel>thought", "<channel|>", is_repeated=True),
    ThinkingTags("<seed:think>", "</seed:think>"),
    ThinkingTags("<mm:think>", "</mm:think>"),
    ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ThinkingTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ThinkingTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ("[END FINAL RESPONSE]",)),
    ThinkingTags("<|think|>", "<|end|>", ("<|begin|>assistant", "<|content|>")),
    ThinkingTags("<reasoning>", "</reasoning>"),
    ThinkingTags("<thinking>", "</thinking>"),
)

_PROBE = "probe_thinking"
_USER = {"role": "user", "content": "probe_user"}
_ANSWER = {"role": "assistant", "content": "probe_content", "thinking": _PROBE}
_OPEN = re.compile(r"(<[^<>\s]{1,40}>|\[[A-Z_]{1,40}\])\s*$")
_CLOSE = re.compile(r"\s*(<[^<>\s]{1,40}>|\[/?[A-Z_]{1,40}\])")


class Template(Protocol):
    """What is needed of a template."""

    def render(self, messages: list[dict[str, Any]], tools: Any = None, **variables: Any) -> str: ...


@lru_cache(64)
def thinking_tags_of(template: Template) -> ThinkingTags | None:
    """The tags, None where the template shows no sign of thinking."""
    source = str(getattr(template, "source", ""))
    given = getattr(template, "thinking_tags", None)
    if given:
        known = (tags for tags in KNOWN if (tags.open, tags.close) == tuple(given) and tags.mark in source)
        return next(known, ThinkingTags(*given))
    if (named := tags_named_in(source)) is not None:
        return named
    if (derived := _derived(template)) is not None:
        return derived
    return THINK if "</think>" in source or getattr(template, "supports_thinking", False) else None


def tags_named_in(source: str) -> ThinkingTags | None:
    """The known tags that all are in a template's source."""
    return next((tags for tags in KNOWN if all(text in source for text in (*tags.texts, tags.mark))), None)


def is_open(prompt: str, tags: ThinkingTags) -> bool:
    """Whether the model begins inside its thinking: the prompt ends with the opening tag."""
    return prompt.rstrip().endswith(tags.open)


def _derived(template: Template) -> ThinkingTags | None:
    """What stands around the thinking of an earlier answer, if it is known, or looks like tags of one name."""
    try:
        text = template.render([_USER, _ANSWER], add_generation_prompt=False)
    except TemplateError:
        return None
    before, _, after = text.partition(_PROBE)
    for tags in KNOWN[1:]:
        if before.rstrip().endswith(tags.open) and after.lstrip().startswith(tags.close):
            return tags
    opening, closing = _OPEN.search(before), _CLOSE.match(after)
    if opening is None or closing is None or _letters(opening[1]) not in _letters(closing[1]):
        return None
    return ThinkingTags(opening[1], closing[1])


def _letters(tag: str) -> str:
    return "".join(c for c in tag if c.isalpha()) or tag
