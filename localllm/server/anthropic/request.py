"""The body of a Messages request as the body of a native chat request; it knows nothing of what becomes of that.

Of our own are `options`, `keep_alive`, `truncate`, `shift` and `lora`, with the meaning that they have in /api/chat. A
conversation that is too long is refused rather than cut, as Anthropic does, unless `truncate` allows it, and an answer
ends where the context does, unless `shift` lets it go on.
"""

import json
from dataclasses import dataclass
from typing import Any

from localllm.server.anthropic.conversation import native_messages, refuse, system_text
from localllm.server.binding import Anything, Bool, Int, List, Map, Place, String, Struct
from localllm.server.chat import CHAT_REQUEST
from localllm.server.errors import APIError
from localllm.server.inference import FIELDS

MESSAGES_REQUEST = Struct(
    "anthropic.MessagesRequest",
    {
        "model": String(),
        "max_tokens": Int(),
        "messages": List(Anything(), go_name="[]anthropic.MessageParam"),
        "system": Anything(),
        "stream": Bool(),
        "temperature": Anything(),
        "top_p": Anything(),
        "top_k": Anything(),
        "stop_sequences": List(String()),
        "tools": List(Anything(), go_name="[]anthropic.Tool"),
        "tool_choice": Map(go_name="anthropic.ToolChoice"),
        "thinking": Map(go_name="anthropic.ThinkingConfig"),
        "output_config": Map(go_name="anthropic.OutputConfig"),
        "options": Map(),
        "keep_alive": Anything(),
        "truncate": Bool(),
        "shift": Bool(),
        "lora": FIELDS["lora"],
    },
)
_THINK = {"enabled": True, "disabled": False, "adaptive": None, "between_tools": None}
_LEVELS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "max", "max": "max"}


@dataclass(frozen=True)
class Asked:
    """A native chat `body`, bound; what it has no field for; and the texts that end an answer beside the model's."""

    body: dict[str, Any]
    tool_choice: Any
    parallel_tool_calls: bool
    stop_sequences: list[str]


def translated(body: dict[str, Any], *, needs_max_tokens: bool = True) -> Asked:
    """A request, as bound to MESSAGES_REQUEST. Raises: APIError with status 400, BindError."""
    if not body["model"].strip():
        raise APIError(400, "model is required")
    if needs_max_tokens and body["max_tokens"] <= 0:
        raise APIError(400, "max_tokens is required and must be positive")
    if not body["messages"]:
        raise APIError(400, "messages is required")
    tools = [_tool(tool, f"tools.{number}") for number, tool in enumerate(body["tools"] or [])]
    tool_choice, is_parallel = _tool_choice(body["tool_choice"], tools)
    native = {
        "model": body["model"],
        "messages": _messages(body),
        "tools": tools,
        "think": _think(body["thinking"], body["output_config"] or {}),
        "format": _format(body["output_config"] or {}),
        "options": _options(body),
        "keep_alive": body["keep_alive"],
        "truncate": body["truncate"],
        "shift": body["shift"],
    }
    bound = {**CHAT_REQUEST.bind(native, Place("MessagesRequest")), "lora": body["lora"]}
    return Asked(bound, tool_choice, is_parallel, [text for text in body["stop_sequences"] or [] if text])


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    system = system_text(body["system"])
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *native_messages(body["messages"])]


def _options(body: dict[str, Any]) -> dict[str, Any]:
    limit = {"num_predict": body["max_tokens"]} if body["max_tokens"] else {}
    return {**(body["options"] or {}), **limit, **{key: body[key] for key in ("temperature", "top_p", "top_k")}}


def _tool(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise refuse(path, "an object", tool)
    if (kind := tool.get("type")) not in (None, "custom"):
        text = f"{path}.type: {json.dumps(kind)} is not supported: only tools with an input_schema are"
        raise APIError(400, text, hint="this tool runs or is known at Anthropic's only; describe one of your own")
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise refuse(f"{path}.name", "a name", name)
    if not isinstance(schema, dict):
        raise refuse(f"{path}.input_schema", "a JSON schema", schema)
    described = {"description": tool["description"]} if tool.get("description") else {}
    strict = {"strict": True} if tool.get("strict") is True else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": schema, **strict}}


def _tool_choice(choice: dict[str, Any] | None, tools: list[dict[str, Any]]) -> tuple[Any, bool]:
    """The choice as the runner knows it, and whether several calls may come at once."""
    if choice is None:
        return None, True
    is_parallel = choice.get("disable_parallel_tool_use") is not True
    kind = choice.get("type")
    if kind in ("any", "tool") and not tools:
        raise APIError(400, f'tool_choice: "{kind}" needs tools')
    if kind == "tool":
        return {"name": _known_name(choice.get("name"), tools)}, is_parallel
    choices = {"auto": None, "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in choices:
        raise refuse("tool_choice.type", '"auto", "any", "tool" or "none"', kind)
    return choices[kind], is_parallel


def _known_name(name: Any, tools: list[dict[str, Any]]) -> str:
    names = [tool["function"]["name"] for tool in tools]
    if not isinstance(name, str) or name not in names:
        raise refuse("tool_choice.name", f"one of the tools ({', '.join(names)})", name)
    return name


def _think(thinking: dict[str, Any] | None, output: dict[str, Any]) -> bool | str | None:
    """Whether and how hard to think. Not said, or left to the model, is None: its own habit."""
    kind = (thinking or {}).get("type")
    if thinking is not None and (not isinstance(kind, str) or kind not in _THINK):
        raise refuse("thinking.type", '"enabled", "disabled" or "adaptive"', kind)
    think = _THINK[kind] if kind else None
    effort = output.get("effort")
    if effort is None or think is False:
        return think
    if not isinstance(effort, str) or effort not in _LEVELS:
        raise refuse("output_config.effort", "one of " + ", ".join(_LEVELS), effort)
    return _LEVELS[effort]


def _format(output: dict[str, Any]) -> Any:
    wanted = output.get("format")
    if wanted is None:
        return None
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    if not isinstance(schema, dict) or wanted.get("type") != "json_schema":
        raise refuse("output_config.format", '{"type": "json_schema", "schema": {...}}', wanted)
    return schema
