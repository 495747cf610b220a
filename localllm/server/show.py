"""POST /api/show: all that is known of a model, from its manifest and its GGUF's header.

It knows nothing of how the model would run.
"""

import asyncio
import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm import env
from localllm.gguf.header import ArrayValue, Header, TensorHeader
from localllm.gguf.parts import open_parts
from localllm.gguf.summary import parameter_count
from localllm.server import lookup
from localllm.server.binding import Bool, Map, String, Struct, read
from localllm.server.capabilities import find_capabilities, templates_of
from localllm.server.daemon import daemon_of
from localllm.server.describe import described
from localllm.server.errors import APIError
from localllm.server.shapes import SHOWN
from localllm.server.streaming import Records, RecordsResponse
from localllm.server.times import format_local
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
    return RecordsResponse(_described(model, body, shown if is_copilot else ""), stream=False)


async def _described(model: ResolvedModel, body: dict[str, Any], basename: str) -> Records:
    answer = await asyncio.to_thread(describe, model, body)
    if basename:
        answer["model_info"]["general.basename"] = basename
    yield answer


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
            "details": lookup.details(model.config),
            "model_info": model_info(headers[0], tensors, verbose=body["verbose"]) if headers else {},
            "tensors": [{"name": t.name, "type": t.type.name, "shape": list(t.shape)} for t in tensors],
            "capabilities": find_capabilities(metadata, model.template, prefers_go) if headers else [],
            "modified_at": format_local(model.modified_ns),
        }
    finally:
        for header in headers:
            header.close()


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


def _parameter_lines(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in params.items():
        for item in value if isinstance(value, list) else [value]:
            yield name, json.dumps(item, ensure_ascii=False)


def format_parameters(params: Mapping[str, Any]) -> str:
    """One line a value: the name padded to 30, then the value, texts in quotes."""
    return "\n".join(f"{name:<30} {text}" for name, text in _parameter_lines(params))


def modelfile(model: ResolvedModel, body: Mapping[str, Any]) -> str:
    """A Modelfile that makes this model again, with what `body` overrides. A GGUF's own template goes with the GGUF."""
    short = model.name.short
    lines = [
        '# Modelfile generated by "localllm show"',
        "# To build a new Modelfile based on this, replace FROM with:",
        f"# FROM {short}",
        "",
        *(f"FROM {path}" for path in model.model_paths),
        *(f"ADAPTER {path}" for path in model.adapter_paths),
        *(f"DRAFT {path}" for path in model.draft_paths),
        *(f"FROM {path}" for path in model.projector_paths),
    ]
    if template := body["template"] or model.template:
        lines.append(f"TEMPLATE {quoted(template)}")
    if system := body["system"] or model.system:
        lines.append(f"SYSTEM {quoted(system)}")
    for keyword in ("renderer", "parser"):
        if text := model.config.fields.get(keyword):
            lines.append(f"{keyword.upper()} {text}")
    params = {**model.params, **(body["options"] or {})}
    lines += [f"PARAMETER {name} {_unquoted(text)}" for name, text in _parameter_lines(params)]
    lines += [f"LICENSE {quoted(text)}" for text in model.licenses]
    lines += [f"MESSAGE {message.get('role')} {quoted(str(message.get('content', '')))}" for message in model.messages]
    return "\n".join(lines) + "\n"


def _unquoted(text: str) -> str:
    value = json.loads(text)
    return quoted(value) if isinstance(value, str) else text


def quoted(text: str) -> str:
    """A Modelfile's value: in quotes where it spans lines, has blanks at an edge, or starts with a quote."""
    if "\n" not in text and text == text.strip() and not text.startswith('"') and text:
        return text
    return f'"""{text}"""' if '"' in text else f'"{text}"'
