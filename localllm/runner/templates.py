"""The templates of one model and which of them a request is rendered with; it knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from localllm.chat import ChatTemplate, GoTemplate
from localllm.errors import TemplateError

KEY = "tokenizer.chat_template"
TOOLS_KEY = f"{KEY}.tool_use"

# Models that answer in channels, and what shows that a Go template writes them.
HARMONY_ARCHITECTURES = ("gptoss", "gpt-oss")
HARMONY_MARKS = ("<|start|>", "<|end|>")
CHATML_END = "<|im_end|>"

Template = ChatTemplate | GoTemplate
T = TypeVar("T", ChatTemplate, GoTemplate)


class Templates:
    """The GGUF's Jinja templates and the model's Go template, of which one is in use; without any, it is ChatML.

    The Go template counts, except where the Jinja one does more. Does more: has more capabilities, while it does not
    lose the turns of tools that the Go template keeps; or has the same, tools among them, and alone keeps their turns.
    A template that does not compile counts only where there is no other, and is then an error of the requests that
    need it, not of the model.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        go_source: str | None,
        bos: str,
        eos: str,
        *,
        prefers_go: bool | None = None,
    ) -> None:
        """`prefers_go` settles the choice where there are both; None leaves it to the rule."""
        self._jinja = _jinja(metadata.get(KEY), bos, eos)
        self._tools = _jinja(metadata.get(TOOLS_KEY), bos, eos)
        self._go = _compiled(lambda: GoTemplate(go_source)) if go_source else None
        self._fallback = ChatTemplate(None, bos, eos)
        self._sources = (str(metadata.get(KEY) or metadata.get(TOOLS_KEY) or ""), go_source or "")
        self._prefers_go = prefers_go
        self._is_harmony = metadata.get("general.architecture") in HARMONY_ARCHITECTURES

    @property
    def is_missing(self) -> bool:
        """The model has no template of its own."""
        return self._jinja is None and self._go is None

    @property
    def source(self) -> str:
        """The text of the template in use, "" where the model has none."""
        return self._sources[self.uses_go]

    @cached_property
    def uses_go(self) -> bool:
        """The Go template is in use, not the GGUF's own."""
        go, jinja = self._go, self._jinja
        if go is None or jinja is None:
            return go is not None
        if isinstance(go, TemplateError) or isinstance(jinja, TemplateError):
            return isinstance(jinja, TemplateError)
        if self._prefers_go is not None:
            return self._prefers_go
        if self._is_harmony and all(mark in go.source for mark in HARMONY_MARKS):
            return True
        return not self._jinja_does_more(go, jinja)

    def _jinja_does_more(self, go: GoTemplate, jinja: ChatTemplate) -> bool:
        with_tools = self._tools if isinstance(self._tools, ChatTemplate) else jinja
        jinja_abilities = {name for name in _abilities(jinja) if name != "tools"}
        jinja_abilities |= {"tools"} if with_tools.supports_tools else set()
        go_abilities = _abilities(go) | ({"insert"} if go.supports_insert else set())
        if len(jinja_abilities) > len(go_abilities):
            return with_tools.keeps_tool_turns or not go.keeps_tool_turns
        is_same = jinja_abilities == go_abilities and "tools" in go_abilities
        return is_same and with_tools.keeps_tool_turns and not go.keeps_tool_turns

    def choose(self, override: str | None, has_tools: bool) -> Template:
        """The template for a request; `override` is a Go template of the request's own.

        Raises:
            TemplateError: the template does not compile.
        """
        if override is not None:
            return GoTemplate(override)
        own = [self._go] if self.uses_go else [self._tools if has_tools else None, self._jinja]
        chosen = next(c for c in [*own, self._fallback] if c is not None)
        if isinstance(chosen, TemplateError):
            raise chosen
        return chosen

    def stops(self, template: Template) -> tuple[str, ...]:
        """Texts that end an answer: a model that knows no ChatML may spell its end mark in ordinary tokens."""
        return (CHATML_END,) if template is self._fallback else ()

    def for_insert(self, override: str | None) -> GoTemplate | None:
        """A Go template that says where the text after the hole goes, if there is one."""
        template = self._go if override is None else GoTemplate(override)
        return template if isinstance(template, GoTemplate) and template.supports_insert else None

    @property
    def capabilities(self) -> list[str]:
        """`tools` and `thinking`, as far as the templates support them."""
        found = []
        for name, has_tools in (("tools", True), ("thinking", False)):
            try:
                if getattr(self.choose(None, has_tools), f"supports_{name}"):
                    found.append(name)
            except TemplateError:
                continue
        return found


def _abilities(template: Template) -> set[str]:
    return {name for name in ("tools", "thinking") if getattr(template, f"supports_{name}")}


def _jinja(source: Any, bos: str, eos: str) -> ChatTemplate | TemplateError | None:
    return _compiled(lambda: ChatTemplate(source, bos, eos)) if isinstance(source, str) and source else None


def _compiled(make: Callable[[], T]) -> T | TemplateError:
    try:
        return make()
    except TemplateError as error:
        return error
