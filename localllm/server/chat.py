"""POST /api/chat: the next message of a conversation, or loading and unloading without messages.

It knows nothing of templates.
"""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.messages import Chunk, Done, GenerateRequest, Prefill, Rendered
from localllm.server import inference
from localllm.server.binding import Anything, Bool, Image, Int, Judged, List, Map, Place, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import NDJSON, described
from localllm.server.errors import APIError
from localllm.server.inference import Asked
from localllm.server.shapes import CHAT_ANSWER
from localllm.server.streaming import Record, Records, RecordsResponse

TOOL_CALL = Struct(
    "api.ToolCall",
    {
        "id": String(),
        "function": Struct(
            "api.ToolCallFunction",
            {"index": Int(), "name": String(), "arguments": Map(go_name="api.ToolCallFunctionArguments")},
        ),
    },
)


class _Tool(Map):
    """A tool's description, passed on whole; its function must be an object with a name."""

    def bind(self, value: Any, place: Place) -> dict[str, Any]:
        tool = super().bind(value, place)
        _TOOL_SHAPE.bind(tool, place)
        return tool


_TOOL_SHAPE = Struct(
    "api.Tool",
    {
        "type": String(),
        "items": Anything(),
        "function": Struct(
            "api.ToolFunction",
            {"name": String(), "description": String(), "parameters": Map(go_name="api.ToolFunctionParameters")},
        ),
    },
)

MESSAGE = Struct(
    "api.Message",
    {
        "role": String(),
        "content": String(),
        "thinking": String(),
        "images": List(Image()),
        "tool_calls": List(TOOL_CALL),
        "tool_name": String(),
        "tool_call_id": String(),
    },
)


def _tool_choice(value: Any) -> Any:
    """As the runner knows it: None lets the model decide."""
    if value in ("none", "required"):
        return value
    if value == "auto":
        return None
    function = value.get("function", value) if isinstance(value, dict) else None
    if isinstance(function, dict) and isinstance(name := function.get("name"), str):
        return {"name": name}
    raise ValueError(f'must be "none", "auto", "required" or {{"name": ...}}, not {inference.go_json_text(value)}')


CHAT_REQUEST = Struct(
    "api.ChatRequest",
    {
        **inference.FIELDS,
        "messages": List(MESSAGE),
        "tools": List(_Tool(go_name="api.Tool"), go_name="api.Tools"),
        "tool_choice": Judged(_tool_choice, shape={"type": ["string", "object"]}),
        "parallel_tool_calls": Bool(default=True),
    },
)
"""Ollama's fields, and of our own `grammar`, `tool_choice` and `parallel_tool_calls`."""


@dataclass(frozen=True)
class ChatTurn:
    """What is asked of a model in a conversation; `request` is None where there are no messages."""

    asked: Asked
    request: GenerateRequest | None


async def ask(daemon: Daemon, body: dict[str, Any], *, thinks_if_able: bool = False, **fields: Any) -> ChatTurn:
    """A request in any dialect, its `body` as bound to CHAT_REQUEST; `fields` are further ones of GenerateRequest.

    With `thinks_if_able` a model that cannot think answers without, instead of refusing.
    Raises: APIError, InvalidNameError, OptionError, GGUFError.
    """
    if not body["model"].strip():
        raise APIError(400, "model is required")
    asked = await inference.begin(daemon, body)
    if thinks_if_able:
        asked = await inference.thinking_if_able(asked)
    messages = _with_tool_names([_message(message) for message in body["messages"] or [] if message is not None])
    if not messages and asked.unloads:
        return ChatTurn(asked, None)
    await inference.check_capabilities(asked, "chat", images=any("images" in message for message in messages))
    if not messages:
        return ChatTurn(asked, None)
    if body["tool_choice"] not in (None, "none") and not body["tools"]:
        raise APIError(400, "tool_choice: there are no tools to choose from")
    own = {key: body[key] for key in ("tool_choice", "parallel_tool_calls")}
    whole = with_model_messages(asked, messages)
    request = inference.new_request(asked, "chat", messages=whole, tools=body["tools"] or None, **{**own, **fields})
    return ChatTurn(asked, request)


@described(
    "the next message of a conversation", body=CHAT_REQUEST, answer=CHAT_ANSWER, streams=NDJSON, errors=(404, 500, 503)
)
async def chat(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, CHAT_REQUEST)
    turn = await ask(daemon_of(request), body)
    if turn.request is None:
        return RecordsResponse((_unloaded if turn.asked.unloads else _loaded)(turn.asked), stream=False)
    records = _answer(turn.asked, turn.request)
    return RecordsResponse(records, stream=inference.streams(body), fold=fold, told=turn.asked.headers)


def _message(bound: dict[str, Any]) -> dict[str, Any]:
    """A message with its role in lower case and without the fields that are empty."""
    message = {"role": bound["role"].lower(), "content": bound["content"]}
    for key in ("thinking", "images", "tool_name", "tool_call_id"):
        if bound[key]:
            message[key] = bound[key]
    if bound["tool_calls"]:
        message["tool_calls"] = [_tool_call(call) for call in bound["tool_calls"] if call is not None]
    return message


def _tool_call(bound: dict[str, Any]) -> dict[str, Any]:
    function = bound["function"] or {"index": 0, "name": "", "arguments": None}
    call = {"function": {**function, "arguments": function["arguments"] or {}}}
    return {"id": bound["id"], **call} if bound["id"] else call


def _with_tool_names(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Templates want the name of the tool that gave a result; some clients send only the id of its call."""
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    names = {call["id"]: call["function"]["name"] for call in calls if "id" in call}
    for message in messages:
        if message["role"] == "tool" and (name := names.get(message.get("tool_call_id"))):
            message.setdefault("tool_name", name)
    return messages


def with_model_messages(asked: Asked, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The model's own history before the request's; its system text first, unless the request starts with one."""
    whole = [*asked.model.messages, *messages]
    if asked.model.system and messages[0]["role"] != "system":
        return [{"role": "system", "content": asked.model.system}, *whole]
    return whole


async def _unloaded(asked: Asked) -> Records:
    await inference.unload(asked)
    yield {**inference.head(asked), "message": _assistant(), "done": True, "done_reason": "unload"}


async def _loaded(asked: Asked) -> Records:
    await inference.preload(asked)
    yield {**inference.head(asked), "message": _assistant(), "done": True, "done_reason": "load"}


def _assistant(content: str = "", **optional: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **{key: value for key, value in optional.items() if value}}


async def _answer(asked: Asked, request: GenerateRequest) -> Records:
    async with aclosing(inference.run(asked, request)) as messages:
        async for message, turn in messages:
            head = inference.head(asked)
            if isinstance(message, Chunk):
                said = _assistant(message.text, thinking=message.thinking, tool_calls=message.tool_calls)
                yield {**head, "message": said, "done": False, **inference.chunk_extras(message)}
            elif isinstance(message, Done):
                yield {**head, "message": _assistant(), **inference.final_fields(asked, message, turn)}
            elif isinstance(message, Prefill) and request.progress:
                yield {**head, "message": _assistant(), "done": False, **inference.progress_fields(message)}
            elif isinstance(message, Rendered):
                yield {**inference.debug_record(asked, message, 0), "message": _assistant()}


def fold(records: list[Record]) -> Record:
    """One record of a whole stream: texts joined, tool calls and logprobs chained, the last one's figures."""
    said = [record["message"] for record in records]
    message = _assistant(
        "".join(part["content"] for part in said),
        thinking="".join(part.get("thinking", "") for part in said),
        tool_calls=[call for part in said for call in part.get("tool_calls", [])],
    )
    logprobs = [item for record in records for item in record.get("logprobs", [])]
    return {**records[-1], "message": message, **({"logprobs": logprobs} if logprobs else {})}
