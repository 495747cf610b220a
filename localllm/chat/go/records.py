"""Messages and tools as the structs that Go templates see; it knows nothing of templates.

They print as JSON where Ollama's do or are meant to: tools, arguments, properties, and a tool's function and its
parameters. Keys that JSON Schema knows and Ollama does not are left out. Whole numbers stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localllm.chat.conversation import Message
from localllm.chat.go.functions import typescript_type
from localllm.chat.go.values import Alternatives, Record, TypedList, TypedMap

_TOOL = (("Type", "type", False), ("Items", "items", True), ("Function", "function", False))
_FUNCTION = (("Name", "name", False), ("Description", "description", False), ("Parameters", "parameters", False))
_PARAMETERS = (
    *(("Type", "type", False), ("Defs", "$defs", True), ("Items", "items", True)),
    *(("Required", "required", True), ("Properties", "properties", False)),
)
_PROPERTY = (
    *(("AnyOf", "anyOf", True), ("Type", "type", True), ("Items", "items", True), ("Description", "description", True)),
    *(("Enum", "enum", True), ("Properties", "properties", True), ("Required", "required", True)),
)
_CALLED = (("Name", "name", False), ("Arguments", "arguments", False))


def message_records(messages: list[Message]) -> TypedList:
    """`.Messages`: messages as `conversation.normalised` makes them."""
    return TypedList(map(_message, messages), "[]*api.Message")


def _message(message: Message) -> Record:
    calls = [_call(i, call) for i, call in enumerate(message.get("tool_calls", []))]
    return Record(
        "*api.Message",
        {
            "Role": message["role"],
            "Content": message["content"],
            "Thinking": str(message.get("thinking") or ""),
            "Images": TypedList((), "[]api.ImageData"),
            "ToolCalls": TypedList(calls, "[]api.ToolCall"),
            "ToolName": str(message.get("tool_name") or message.get("name") or ""),
            "ToolCallID": str(message.get("tool_call_id") or ""),
        },
    )


def _call(position: int, call: Message) -> Record:
    function = call["function"]
    arguments = function["arguments"]
    values = {
        "Index": function.get("index", position),
        "Name": str(function.get("name") or ""),
        "Arguments": _sorted_map(arguments) if isinstance(arguments, dict) else arguments,
    }
    called = Record("api.ToolCallFunction", values, _CALLED, is_json=True)
    return Record("api.ToolCall", {"ID": str(call.get("id") or ""), "Function": called})


def _sorted_map(items: Mapping[str, Any]) -> TypedMap:
    return TypedMap(items, "api.ToolCallFunctionArguments", lambda: None)


def tool_records(tools: list[dict[str, Any]]) -> TypedList:
    """`.Tools`: tools as a client sends them."""
    return TypedList(map(_tool, tools), "api.Tools", is_json=True)


def _tool(tool: Mapping[str, Any]) -> Record:
    function = _mapping(tool.get("function"))
    values = {
        "Name": str(function.get("name") or ""),
        "Description": str(function.get("description") or ""),
        "Parameters": _parameters(_mapping(function.get("parameters"))),
    }
    return Record(
        "api.Tool",
        {
            "Type": str(tool.get("type") or "function"),
            "Items": tool.get("items"),
            "Function": Record("api.ToolFunction", values, _FUNCTION, is_json=True),
        },
        _TOOL,
        is_json=True,
    )


def _parameters(schema: Mapping[str, Any]) -> Record:
    values = {
        "Type": str(schema.get("type") or ""),
        "Defs": schema.get("$defs"),
        "Items": schema.get("items"),
        "Required": _words(schema.get("required")),
        "Properties": _properties(schema.get("properties"), is_sorted=True),
    }
    return Record("api.ToolFunctionParameters", values, _PARAMETERS, is_json=True)


def _properties(properties: Any, is_sorted: bool) -> TypedMap:
    """Those of the parameters are sorted in JSON, those of a property keep their order."""
    records = {name: _property(_mapping(schema)) for name, schema in _mapping(properties).items()}
    return TypedMap(records, "map[string]api.ToolProperty", lambda: _property({}), is_sorted)


def _property(schema: Mapping[str, Any]) -> Record:
    values = {
        "AnyOf": TypedList(map(_property, map(_mapping, _list(schema.get("anyOf")))), "[]api.ToolProperty"),
        "Type": Alternatives(_words(schema.get("type"))),
        "Items": schema.get("items"),
        "Description": str(schema.get("description") or ""),
        "Enum": TypedList(_list(schema.get("enum")), "[]interface {}"),
        "Properties": _properties(schema.get("properties"), is_sorted=False),
        "Required": _words(schema.get("required")),
    }
    record = Record("api.ToolProperty", values, _PROPERTY, is_json=True)
    record.methods = {"ToTypeScriptType": lambda: typescript_type(record)}
    return record


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(value: Any) -> TypedList:
    words = [value] if isinstance(value, str) else _list(value)
    return TypedList([word for word in words if isinstance(word, str)], "[]string")
