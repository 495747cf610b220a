"""POST /api/create: makes a model of another one, or of files: GGUFs, folders of safetensors, adapters.

What a request may say is here, how the model is made in creation.py.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm import options
from localllm.errors import ModelfileError, QuantizeError, TemplateError
from localllm.modelfile import ROLES
from localllm.modelfile.content import check_version
from localllm.quantize.presets import Preset, parse_preset
from localllm.server import pull
from localllm.server.binding import Anything, Bool, Judged, List, Map, Place, String, Struct, read
from localllm.server.chat import MESSAGE
from localllm.server.creation import Wanted
from localllm.server.creation import create as make_model
from localllm.server.daemon import daemon_of
from localllm.server.describe import NDJSON, described
from localllm.server.errors import APIError
from localllm.server.shapes import PROGRESS
from localllm.server.streaming import RecordsResponse
from localllm.server.threads import told
from registry.digests import parse_digest
from registry.names import parse_name

REMOTE = ("remote_host",)
MAX_NAME_BYTES = 255
MAX_FOLDERS = 8
"""Of a path in `files`: checkpoints have folders in folders, and hardly deeper."""


class _Message(Map):
    """A message of the model's own history: what it has of the fields that messages have."""

    def bind(self, value: Any, place: Place) -> dict[str, Any]:
        return {name: item for name, item in MESSAGE.bind(value, place).items() if item}


class _Files(Map):
    """Digests by relative paths."""

    def bind(self, value: Any, place: Place) -> dict[str, str]:
        for digest in super().bind(value, place).values():
            if not isinstance(digest, str):
                raise place.refuse(digest, "string")
        return dict(value)


def _licenses(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("expected a text or a list of texts")
    return texts


CREATE_REQUEST = Struct(
    "api.CreateRequest",
    {
        "model": String(),
        "name": String(),
        "from": String(),
        "files": _Files(go_name="map[string]string"),
        "draft_files": _Files(go_name="map[string]string"),
        "adapters": _Files(go_name="map[string]string"),
        "template": String(default=None),
        "system": String(default=None),
        "renderer": String(),
        "parser": String(),
        "requires": String(),
        "license": Judged(_licenses, shape={"type": ["string", "array"], "items": {"type": "string"}}),
        "parameters": Map(),
        "messages": List(_Message(go_name="api.Message"), go_name="[]api.Message"),
        "quantize": String(),
        "quantization": String(),
        "draft_quantize": String(),
        "imatrix": String(),
        "stream": Bool(default=None),
        **{name: Anything() for name in REMOTE},
    },
)


@described(
    "a model made from files that were sent before, or from another one",
    body=CREATE_REQUEST,
    answer=PROGRESS,
    streams=NDJSON,
    errors=(403, 404, 500),
)
async def create(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, CREATE_REQUEST)
    wanted = _checked(body)
    pull.refuse_foreign(request, wanted.parent)
    if wanted.template:
        await asyncio.to_thread(_check_template, wanted.template)
    daemon = daemon_of(request)
    records = told(lambda tell: make_model(daemon, wanted, tell))
    return RecordsResponse(records, stream=body["stream"] is not False)


def _checked(body: Mapping[str, Any]) -> Wanted:
    """What the body asks for, checked in Ollama's order. Raises: APIError and others of status 400."""
    files = {name: _file_table(body[name]) for name in ("files", "adapters", "draft_files")}
    name = parse_name((body["model"] or body["name"]).strip())
    for field in REMOTE:
        if body[field]:
            raise APIError(400, f"{field} is not supported: models run on this machine alone")
    if not body["from"] and files["files"] is None:
        raise APIError(400, "neither 'from' or 'files' was specified")
    parameters = body["parameters"] or {}
    options.check_names(parameters)
    options.resolve({}, parameters)
    return Wanted(
        name=name,
        parent=body["from"].strip(),
        files=files["files"],
        adapters=files["adapters"] or {},
        drafts=files["draft_files"] or {},
        preset=_preset(body["quantize"] or body["quantization"]),
        draft_preset=_preset(body["draft_quantize"]),
        imatrix=_imatrix(body),
        # An empty text is one that was not given, as for Ollama.
        template=body["template"] or None,
        system=body["system"] or None,
        parameters=parameters,
        messages=_messages(body["messages"]),
        licenses=body["license"] or [],
        config=_config(body),
    )


def _file_table(files: Mapping[str, str] | None) -> dict[str, str] | None:
    if files is None:
        return None
    for path in files:
        if not _is_relative(path):
            reason = "is not" if _is_short(path) else "is too long"
            raise APIError(400, "file path must be relative", hint=f'"{path:.300}" {reason}')
    folders = {"/".join(parts[:n]) for parts in (path.split("/") for path in files) for n in range(1, len(parts))}
    if both := folders & set(files):
        raise APIError(400, f'"{min(both)}" cannot be a file and a folder')
    return {path: parse_digest(digest) for path, digest in files.items()}


def _is_relative(path: str) -> bool:
    """Whether it stays in its folder on every system: no root, no drive, no part that is empty, dots or too long."""
    is_inside = not {"", ".", ".."} & {*path.split("/")} and not any(c in path for c in "\\:\0")
    return is_inside and _is_short(path)


def _is_short(path: str) -> bool:
    parts = path.split("/")
    return len(parts) <= MAX_FOLDERS and all(len(part.encode(errors="replace")) <= MAX_NAME_BYTES for part in parts)


def _preset(text: str) -> Preset | None:
    try:
        return parse_preset(text) if text.strip() else None
    except QuantizeError as error:
        raise APIError(400, str(error), hint=error.hint) from error


def _imatrix(body: Mapping[str, Any]) -> str | None:
    if not body["imatrix"]:
        return None
    if not (body["quantize"] or body["quantization"]):
        raise APIError(400, "imatrix is for quantizing: quantize is missing")
    return parse_digest(body["imatrix"])


def _messages(messages: Iterable[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Those that say something; without any, the parent's stay. Other roles could not be shown in a Modelfile."""
    if messages is None:
        return None
    kept = [message for message in messages if message]
    for message in kept:
        if message.get("role") not in ROLES:
            text = 'message role must be one of "system", "user", or "assistant"'
            raise APIError(400, text, hint=f'not "{message.get("role", "")!s:.40}"')
    return kept or None


def _config(body: Mapping[str, Any]) -> dict[str, str]:
    config = {key: body[key] for key in ("renderer", "parser") if body[key]}
    if body["requires"]:
        try:
            config["requires"] = check_version(body["requires"])
        except ModelfileError as error:
            raise APIError(400, str(error), hint=error.hint) from error
    return config


def _check_template(text: str) -> None:
    # Templates are loaded when the first one is looked at, not when the daemon starts.
    from localllm.chat import GoTemplate

    try:
        GoTemplate(text)
    except TemplateError as error:
        raise APIError(400, f"template error: {error}") from error
