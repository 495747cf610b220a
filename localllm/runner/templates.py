"""The templates of one model and which of them a request is rendered with; it knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from localllm.chat import ChatTemplate, GoTemplate
from localllm.errors import TemplateError

KEY = "tokenizer.chat_template"
TOOLS_KEY = f"{KEY}.tool_use"

CHATML_END = "<|im_end|>"

Template = ChatTemplate | GoTemplate
T = TypeVar("T", ChatTemplate, GoTemplate)


class Templates:
    """The GGUF's Jinja templates come first, then the model's Go template, then ChatML.

    A template that does not compile is an error of the requests that need it, not of the model.
    """

    def __init__(self, metadata: Mapping[str, Any], go_source: str | None, bos: str, eos: str) -> None:
        self._jinja = _jinja(metadata.get(KEY), bos, eos)
        self._tools = _jinja(metadata.get(TOOLS_KEY), bos, eos)
        self._go = _compiled(lambda: GoTemplate(go_source)) if go_source else None
        self._fallback = ChatTemplate(None, bos, eos)

    @property
    def is_missing(self) -> bool:
        """The model has no template of its own."""
        return self._jinja is None and self._go is None

    def choose(self, override: str | None, has_tools: bool) -> Template:
        """The template for a request; `override` is a Go template of the request's own.

        Raises:
            TemplateError: the template does not compile.
        """
        if override is not None:
            return GoTemplate(override)
        candidates = [self._tools if has_tools else None, self._jinja, self._go, self._fallback]
        chosen = next(c for c in candidates if c is not None)
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


def _jinja(source: Any, bos: str, eos: str) -> ChatTemplate | TemplateError | None:
    return _compiled(lambda: ChatTemplate(source, bos, eos)) if isinstance(source, str) and source else None


def _compiled(make: Callable[[], T]) -> T | TemplateError:
    try:
        return make()
    except TemplateError as error:
        return error
