"""What requests are refused for before anything is rendered; it knows nothing of templates and tokens.

Constraints fail closed: what would have to be constrained and cannot be is refused, never generated freely.
"""

from __future__ import annotations

import json
from typing import Any

from localllm.errors import RequestError
from localllm.messages import GenerateRequest

FREE_CHOICES = (None, "auto", "none")
OWN_VARIABLES = frozenset({"messages", "tools", "functions", "add_generation_prompt", "bos_token", "eos_token", "self"})


def check_constraints(request: GenerateRequest) -> None:
    """Refuse what asks for a constraint. Raises: RequestError."""
    if request.format not in (None, ""):
        raise RequestError("structured output is not supported yet")
    if request.grammar:
        raise RequestError("grammar is not supported yet")
    _check_choice(request)
    if strict := [_name(tool) for tool in shown_tools(request) or [] if _is_strict(tool)]:
        raise RequestError(f'tools: "strict" of "{strict[0]}" is not supported yet')


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


def _check_choice(request: GenerateRequest) -> None:
    choice = request.tool_choice
    if choice in FREE_CHOICES:
        return
    wanted = choice.get("name") if isinstance(choice, dict) else None
    if choice != "required" and not isinstance(wanted, str):
        shown = json.dumps(choice, ensure_ascii=False, default=str)
        raise RequestError(f'tool_choice: expected "none", "auto", "required" or a function\'s name, not {shown}')
    names = [_name(tool) for tool in request.tools or []]
    if not names:
        raise RequestError("tool_choice: there are no tools to choose from")
    if wanted is not None and wanted not in names:
        raise RequestError(f'tool_choice: there is no tool "{wanted}" (tools: {", ".join(names)})')
    raise RequestError('tool_choice: "required" and named functions are not supported yet')


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, dict) else tool


def _name(tool: dict[str, Any]) -> str:
    return str(_function(tool).get("name"))


def _is_strict(tool: dict[str, Any]) -> bool:
    return bool(_function(tool).get("strict") or tool.get("strict"))
