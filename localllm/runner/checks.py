"""What requests are refused for before anything is rendered; it knows nothing of templates and tokens."""

from __future__ import annotations

import json
from typing import Any

from localllm.errors import RequestError
from localllm.messages import GenerateRequest

FREE_CHOICES = (None, "auto", "none")
OWN_VARIABLES = frozenset({"messages", "tools", "functions", "add_generation_prompt", "bos_token", "eos_token", "self"})


def check_variables(request: GenerateRequest) -> None:
    """Variables for a template may not replace what a prompt is made of. Raises: RequestError."""
    if taken := sorted(OWN_VARIABLES & request.template_arguments.keys()):
        raise RequestError(f'template arguments: "{taken[0]}" is given by the request itself')


def check_ids(name: str, tokens: list[int] | None, n_vocab: int) -> None:
    """Ids must be in the vocabulary. Raises: RequestError."""
    if bad := [token for token in tokens or [] if not 0 <= token < n_vocab]:
        raise RequestError(f"{name}: token ids must be in 0..{n_vocab - 1}, not {bad[0]}")


def shown_tools(request: GenerateRequest) -> list[dict[str, Any]] | None:
    """The tools that the model is told of. With a `tool_choice` of "none" there are none, so that none is called; what
    an answer then looks like makes no difference, it is text."""
    return None if request.tool_choice == "none" else request.tools or None


def check_choice(request: GenerateRequest) -> None:
    """A choice of tools must be one that there is. Raises: RequestError."""
    choice = request.tool_choice
    if choice in FREE_CHOICES:
        return
    wanted = choice.get("name") if isinstance(choice, dict) else None
    if choice != "required" and not isinstance(wanted, str):
        shown = json.dumps(choice, ensure_ascii=False, default=str)
        raise RequestError(f'tool_choice: expected "none", "auto", "required" or a function\'s name, not {shown}')
    names = [str(function_of(tool).get("name")) for tool in request.tools or []]
    if not names:
        raise RequestError("tool_choice: there are no tools to choose from")
    if wanted is not None and wanted not in names:
        raise RequestError(f'tool_choice: there is no tool "{wanted}" (tools: {", ".join(names)})')


def function_of(tool: dict[str, Any]) -> dict[str, Any]:
    """What a tool is described by: its `function`, or itself."""
    function = tool.get("function")
    return function if isinstance(function, dict) else tool


def is_strict(tool: dict[str, Any]) -> bool:
    """Whether the arguments of its calls must obey its schema."""
    return bool(function_of(tool).get("strict") or tool.get("strict"))
