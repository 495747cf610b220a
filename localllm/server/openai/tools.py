"""From OpenAI's tools and `tool_choice` to Ollama's tools and the choice that a runner knows; it knows no messages."""

from typing import Any

from localllm.server.openai.conversation import expect_object, text_of
from localllm.server.openai.errors import InvalidRequestError, told

Tools = list[dict[str, Any]]
Choice = str | dict[str, str] | None


def native_tools(tools: Any, place: str = "tools") -> Tools:
    """The functions; an entry is flat (`name` beside `type`) or has a `function` object.

    Raises: InvalidRequestError.
    """
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise InvalidRequestError(place, f"expected an array, not {told(tools)}")
    return [_tool(tool, f"{place}[{i}]") for i, tool in enumerate(tools)]


def _tool(tool: Any, place: str) -> dict[str, Any]:
    tool = expect_object(tool, place)
    if tool.get("type", "function") != "function":
        raise InvalidRequestError(f"{place}.type", f"expected function, not {told(tool['type'])}")
    inner = f"{place}.function" if "function" in tool else place
    function = expect_object(tool.get("function", tool), inner)
    if not text_of(function, "name", inner):
        raise InvalidRequestError(f"{inner}.name", "is required")
    kept = {key: value for key, value in function.items() if key != "type" and value is not None}
    return {"type": "function", "function": kept}


def choose(tools: Tools, choice: Any) -> tuple[Tools, Choice]:
    """The tools that may be used, and how: None (as the model likes), "none", "required" or {"name": …}.

    Raises: InvalidRequestError.
    """
    if choice is None or choice == "auto":
        return tools, None
    if choice == "none":
        return tools, "none" if tools else None
    if choice == "required":
        return _some(tools), "required"
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        name = _name_of(choice)
        _find(tools, name)
        return tools, {"name": name}
    if kind == "allowed_tools":
        return _allowed(tools, expect_object(choice.get("allowed_tools", choice), "tool_choice.allowed_tools"))
    raise InvalidRequestError("tool_choice", f"expected none, auto, required or a function, not {told(choice)}")


def _some(tools: Tools) -> Tools:
    if not tools:
        raise InvalidRequestError("tool_choice", "there are no tools to choose from")
    return tools


def _allowed(tools: Tools, allowed: dict[str, Any]) -> tuple[Tools, Choice]:
    entries = allowed.get("tools")
    if not isinstance(entries, list) or not entries:
        raise InvalidRequestError("tool_choice.tools", f"expected an array of functions, not {told(entries)}")
    mode = allowed.get("mode")
    if mode not in (None, "auto", "required"):
        raise InvalidRequestError("tool_choice.mode", f"expected auto or required, not {told(mode)}")
    chosen = [_find(tools, _name_of(expect_object(entry, "tool_choice.tools"))) for entry in entries]
    return choose(chosen, mode)


def _name_of(entry: dict[str, Any]) -> str:
    function = entry.get("function", entry)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequestError("tool_choice", f"expected the name of a function, not {told(name)}")
    return name


def _find(tools: Tools, name: str) -> dict[str, Any]:
    found = next((tool for tool in tools if tool["function"]["name"] == name), None)
    if found is None:
        raise InvalidRequestError("tool_choice", f"there is no tool {told(name)}")
    return found
