"""What an answer has around its content: thinking before it, channels, calls instead; it knows no grammar."""

from __future__ import annotations

from dataclasses import dataclass

from localllm.chat import ThinkingTags
from localllm.runner.templates import Template


@dataclass(frozen=True)
class Frame:
    """How a model's answer to one prompt is made, as far as a constraint must know; that to a raw prompt is content.

    `tags` are those of thinking, with which the answer may begin if it `may_think` and is begun by the prompt where
    `is_thinking`. `has_channels`: it is one in gpt-oss's channels. `begun` is content that the prompt ended with, so
    that nothing comes before the rest, and `call_begun` what it ended with of a call. `template` tells how calls are
    written, where there are tools. `problem` says why content cannot be told from what is around it.
    """

    tags: ThinkingTags | None = None
    may_think: bool = False
    is_thinking: bool = False
    has_channels: bool = False
    begun: str = ""
    call_begun: str = ""
    template: Template | None = None
    problem: str = ""
