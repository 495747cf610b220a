"""POST /api/show: all that is known of a model, from its manifest and its GGUF's header.

It knows nothing of how the model would run, but for the context that it would get.
"""

import asyncio
import contextlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm import env, options
from localllm.errors import LocalLLMError
from localllm.gguf.header import ArrayValue, Header, TensorHeader
from localllm.gguf.parts import open_parts
from localllm.gguf.summary import parameter_count
from localllm.modelfile import ROLES, Instruction, write
from localllm.server import lookup
from localllm.server.binding import Bool, Map, String, Struct, read
from localllm.server.capabilities import find_capabilities, templates_of
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.drafts import draft_of
from localllm.server.errors import APIError
from localllm.server.inference import load_request
from localllm.server.shapes import SHOWN
from localllm.server.streaming import Records, RecordsResponse
from localllm.server.times import format_local
from registry.errors import RegistryError
from registry.store import ResolvedModel

SHOW_REQUEST = Struct(
    "api.ShowRequest",
    {
        "model": String(),
        "name": String(),
        "verbose": Bool(),
        "system": String(),
        "template": String(),
        "options": Map(),
    },
)
LONGEST_BRIEF_ARRAY = 5
# It shows `general.basename` in its list of models, which must tell tags apart.
COPILOT = "GitHubCopilotChat/"
# Shown under other names, or too long to be of use.
HIDDEN_KEYS = frozenset(("general.name", "tokenizer.chat_template"))


@described("all that is known of a model", body=SHOW_REQUEST, answer=SHOWN, errors=(404, 500))
async def show(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, SHOW_REQUEST)
    shown = (body["model"] or body["name"]).strip()
    if not shown:
        raise APIError(400, "model is required")
    name = lookup.model_name(shown)
    model = await lookup.resolve(daemon_of(request), name, name.short)
    is_copilot = request.headers.get("user-agent", "").startswith(COPILOT)
    return RecordsResponse(_described(daemon_of(request), model, body, shown if is_copilot else ""), stream=False)


async def _described(daemon: Daemon, model: ResolvedModel, body: dict[str, Any], basename: str) -> Records:
    answer = await asyncio.to_thread(describe, model, body)
    if basename:
        answer["model_info"]["general.basename"] = basename
    n_ctx = await default_ctx(daemon, model) if answer["capabilities"] else 0
    yield {**answer, **({"default_context_length": n_ctx} if n_ctx else {})}


async def default_ctx(daemon: Daemon, model: ResolvedModel) -> int:
    """The context of a request that asks for none: the model's or the daemon's setting, or what memory suggests. 0
    where the model cannot be run."""
    with contextlib.suppress(LocalLLMError, RegistryError, APIError):
        asked = options.resolve(model.params, {})
        draft = await draft_of(daemon, model, asked)
        return await daemon.scheduler.default_ctx(replace(load_request(daemon, model, asked), draft=draft))
    return 0


def describe(model: ResolvedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer; reads the GGUF's header. `body` may override system, template and options, in the Modelfile only.

    Raises: GGUFError.
    """
    headers = open_parts(list(model.model_paths)) if model.model_paths else []
    try:
        metadata = headers[0].metadata if headers else {}
        tensors = [tensor for header in headers for tensor in header.tensors.values()]
        prefers_go = env.go_template()
        config = model.config.fields
        optional = {
            "license": "\n".join(model.licenses),
            "system": model.system,
            "template": templates_of(metadata, model.template, prefers_go).source,
            "parameters": format_parameters(model.params),
            "messages": model.messages,
            **{key: config.get(key) for key in ("renderer", "parser", "requires")},
        }
        return {
            **{key: value for key, value in optional.items() if value},
            "modelfile": modelfile(model, body),
            "details": {**lookup.details(model.config), "parent_model": _parent(model)},
            "model_info": model_info(headers[0], tensors, verbose=body["verbose"]) if headers else {},
            **_projector(model, verbose=body["verbose"]),
            "tensors": [{"name": t.name, "type": t.type.name, "shape": list(t.shape)} for t in tensors],
            "capabilities": find_capabilities(metadata, model.template, prefers_go) if headers else [],
            "modified_at": format_local(model.modified_ns),
        }
    finally:
        for header in headers:
            header.close()


def _parent(model: ResolvedModel) -> str:
    """The model that the weights were inherited from, if any."""
    return next((layer.from_model for layer in model.manifest.of_kind("model")), "")


def _projector(model: ResolvedModel, *, verbose: bool) -> dict[str, Any]:
    """What is known of what turns images into vectors, where the model has that."""
    if not model.projector_paths:
        return {}
    with Header(model.projector_paths[0]) as header:
        return {"projector_info": model_info(header, list(header.tensors.values()), verbose=verbose)}


def model_info(header: Header, tensors: list[TensorHeader], *, verbose: bool) -> dict[str, Any]:
    """The metadata of a GGUF as JSON: long arrays come back empty unless `verbose`."""
    limit = None if verbose else LONGEST_BRIEF_ARRAY
    info = {key: _json_value(value, limit) for key, value in header.metadata.items() if key not in HIDDEN_KEYS}
    info.setdefault("general.architecture", "")
    info.setdefault("general.file_type", 0)
    info["general.parameter_count"] = parameter_count(tensors)
    return info


def _json_value(value: Any, longest: int | None) -> Any:
    if isinstance(value, ArrayValue):
        return [_json_value(item, longest) for item in value] if longest is None or len(value) <= longest else []
    return _shortest(value) if isinstance(value, float) else value


def _shortest(value: float) -> float:
    """A number that was a float32, in the fewest digits that name it: 1e-05 and not 9.999999747378752e-06."""
    try:
        stored = struct.pack("<f", value)
    except OverflowError:
        return value
    if not math.isfinite(value) or struct.unpack("<f", stored)[0] != value:
        return value
    return next(short for n in range(6, 10) if struct.pack("<f", short := float(f"{value:.{n}g}")) == stored)


def _parameter_texts(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of every value; a whole number is written as one, whatever its type."""
    for name, value in params.items():
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            yield name, int(item) if isinstance(item, float) and item.is_integer() and abs(item) < 1e15 else item


def format_parameters(params: Mapping[str, Any]) -> str:
    """One line a value: the name padded to 30, then the value, texts in quotes."""
    lines = ((name, json.dumps(value, ensure_ascii=False)) for name, value in _parameter_texts(params))
    return "\n".join(f"{name:<30} {text}" for name, text in lines)


def modelfile(model: ResolvedModel, body: Mapping[str, Any]) -> str:
    """A Modelfile that makes this model again, with what `body` overrides. A GGUF's own template goes with the GGUF.

    Parameters and roles that no Modelfile may have, of models that other programs made, are comments.
    """
    params = {**model.params, **(body["options"] or {})}
    comments = [
        '# Modelfile generated by "localllm show"',
        "# To build a new Modelfile based on this, replace FROM with:",
        f"# FROM {model.name.short}",
        *(
            f"# not known here: {name} {json.dumps(value)}"
            for name, value in _parameter_texts(params)
            if not options.is_known(name)
        ),
        *(f"# not known here: message {json.dumps(one)}" for one in model.messages if not _is_writable(one)),
    ]
    return write([*_files(model), *_texts(model, body), *_parameters(params), *_history(model)], comments)


def _files(model: ResolvedModel) -> Iterator[Instruction]:
    yield from (Instruction("from", str(path)) for path in model.model_paths)
    yield from (Instruction("adapter", str(path)) for path in model.adapter_paths)
    yield from (Instruction("draft", str(path)) for path in model.draft_paths)
    yield from (Instruction("from", str(path)) for path in model.projector_paths)


def _texts(model: ResolvedModel, body: Mapping[str, Any]) -> Iterator[Instruction]:
    config = model.config.fields
    texts = {
        "template": body["template"] or model.template,
        "system": body["system"] or model.system,
        **{key: config.get(key) for key in ("renderer", "parser", "requires")},
    }
    yield from (Instruction(name, str(text)) for name, text in texts.items() if text)


def _parameters(params: Mapping[str, Any]) -> Iterator[Instruction]:
    for name, value in _parameter_texts(params):
        if options.is_known(name):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield Instruction("parameter", text, name)


def _is_writable(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ROLES


def _history(model: ResolvedModel) -> Iterator[Instruction]:
    yield from (Instruction("license", text) for text in model.licenses)
    for message in filter(_is_writable, model.messages):
        more = {key: value for key, value in message.items() if key not in ("role", "content")}
        yield Instruction("message", str(message.get("content", "")), str(message.get("role")), more)
