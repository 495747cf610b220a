"""POST /api/generate: a completion, or loading and unloading with an empty prompt; it knows nothing of templates."""

from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.messages import Chunk, Done, GenerateRequest, Prefill, Rendered
from localllm.server import inference
from localllm.server.binding import Bool, Image, Int, List, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import NDJSON, described
from localllm.server.errors import APIError
from localllm.server.inference import Asked, Turn
from localllm.server.shapes import GENERATE_ANSWER
from localllm.server.streaming import Record, Records, RecordsResponse

GENERATE_REQUEST = Struct(
    "api.GenerateRequest",
    {
        **inference.FIELDS,
        "prompt": String(),
        "suffix": String(),
        "system": String(),
        "template": String(),
        "context": List(Int()),
        "raw": Bool(),
        "images": List(Image()),
    },
)


async def ask(daemon: Daemon, body: dict[str, Any], **fields: Any) -> tuple[Asked, GenerateRequest | None]:
    """A request in any dialect, its `body` as bound to GENERATE_REQUEST; `fields` are further ones of GenerateRequest.

    Without a prompt there is nothing to generate: None. Raises: APIError, InvalidNameError, OptionError, GGUFError.
    """
    if not body["model"].strip():
        raise APIError(404, "model '' not found")
    asked = await inference.begin(daemon, body)
    has_prompt = bool(body["prompt"] or fields.get("tokens"))
    if not has_prompt and asked.unloads:
        return asked, None
    if body["raw"] and (body["template"] or body["system"] or body["context"]):
        raise APIError(400, "raw mode does not support template, system, or context")
    await inference.check_capabilities(asked, "generate", images=bool(body["images"]))
    if not has_prompt and not body["suffix"]:
        return asked, None
    return asked, _runner_request(asked, fields)


@described("a completion", body=GENERATE_REQUEST, answer=GENERATE_ANSWER, streams=NDJSON, errors=(404, 500, 503))
async def generate(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, GENERATE_REQUEST)
    asked, runner_request = await ask(daemon_of(request), body)
    if runner_request is None:
        is_unload = asked.unloads and not body["prompt"]
        return RecordsResponse((_unloaded if is_unload else _loaded)(asked), stream=False)
    records = _answer(asked, runner_request)
    return RecordsResponse(records, stream=inference.streams(body), fold=fold, told=asked.headers)


def _runner_request(asked: Asked, fields: dict[str, Any]) -> GenerateRequest:
    body = asked.body
    plain = body["raw"] or bool(body["suffix"])
    return inference.new_request(
        asked,
        "generate",
        prompt=body["prompt"],
        suffix=body["suffix"],
        system=None if plain else body["system"] or asked.model.system,
        template=body["template"] or None,
        raw=body["raw"],
        context=body["context"],
        messages=[] if plain or body["context"] is not None else list(asked.model.messages),
        images=body["images"] or [],
        **fields,
    )


async def _unloaded(asked: Asked) -> Records:
    await inference.unload(asked)
    yield {**inference.head(asked), "response": "", "done": True, "done_reason": "unload"}


async def _loaded(asked: Asked) -> Records:
    await inference.preload(asked)
    yield {**inference.head(asked), "response": "", "done": True, "done_reason": "load"}


async def _answer(asked: Asked, request: GenerateRequest) -> Records:
    async with aclosing(inference.run(asked, request)) as messages:
        async for message, turn in messages:
            if isinstance(message, Chunk):
                yield {**inference.head(asked), **_text_fields(message), "done": False}
            elif isinstance(message, Done):
                yield _last_record(asked, message, turn)
            elif isinstance(message, Prefill) and request.progress:
                yield {**inference.head(asked), "response": "", "done": False, **inference.progress_fields(message)}
            elif isinstance(message, Rendered):
                yield {**inference.debug_record(asked, message, 0), "response": ""}


def _text_fields(chunk: Chunk) -> Record:
    fields: Record = {"response": chunk.text}
    if chunk.thinking:
        fields["thinking"] = chunk.thinking
    if chunk.tool_calls:
        fields["tool_calls"] = chunk.tool_calls
    return {**fields, **inference.chunk_extras(chunk)}


def _last_record(asked: Asked, done: Done, turn: Turn) -> Record:
    final = inference.final_fields(asked, done, turn)
    if not asked.body["raw"] and done.context is not None:
        final["context"] = done.context
    return {**inference.head(asked), "response": "", **final}


def fold(records: list[Record]) -> Record:
    """One record of a whole stream: texts joined, lists chained, the last one's figures."""
    whole: dict[str, Any] = {**records[-1], "response": "".join(record["response"] for record in records)}
    if thinking := "".join(record.get("thinking", "") for record in records):
        whole["thinking"] = thinking
    for key in ("tool_calls", "logprobs"):
        if chained := [item for record in records for item in record.get(key, [])]:
            whole[key] = chained
    return whole
