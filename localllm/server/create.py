"""POST /api/create: a model made from another one in the store, with a system text, parameters or messages of its own.

It takes neither files nor adapters and does not quantise: those requests are refused.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from localllm import options
from localllm.errors import TemplateError
from localllm.gguf.header import Header
from localllm.server import lookup
from localllm.server.binding import Anything, Bool, Judged, List, Map, Place, String, Struct, read
from localllm.server.chat import MESSAGE
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import NDJSON, described
from localllm.server.errors import APIError
from localllm.server.pull import inspect
from localllm.server.shapes import PROGRESS
from localllm.server.streaming import Records, RecordsResponse
from registry.create import ModelContents, create_from_gguf
from registry.names import Name, parse_name
from registry.progress import Progress
from registry.store import ResolvedModel

if TYPE_CHECKING:
    from localllm.chat.known import KnownTemplate

NOT_SUPPORTED = ("files", "draft_files", "adapters", "quantize", "quantization", "draft_quantize", "remote_host")


class _Message(Map):
    """A message of the model's own history: what it has of the fields that messages have."""

    def bind(self, value: Any, place: Place) -> dict[str, Any]:
        return {name: item for name, item in MESSAGE.bind(value, place).items() if item}


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
        "template": String(default=None),
        "system": String(default=None),
        "license": Judged(_licenses, shape={"type": ["string", "array"], "items": {"type": "string"}}),
        "parameters": Map(),
        "messages": List(_Message(go_name="api.Message"), go_name="[]api.Message"),
        "stream": Bool(default=None),
        **{name: Anything() for name in NOT_SUPPORTED},
    },
)


@described("a model made from another one", body=CREATE_REQUEST, answer=PROGRESS, streams=NDJSON, errors=(404, 500))
async def create(request: Request) -> Response:
    """The endpoint."""
    body = await read(request, CREATE_REQUEST)
    name = parse_name((body["model"] or body["name"]).strip())
    for field in NOT_SUPPORTED:
        if body[field]:
            raise APIError(400, f"{field} is not supported yet: a model is made from another one in the store")
    if not body["from"]:
        raise APIError(400, "neither 'from' or 'files' was specified")
    options.check_names(body["parameters"] or {})
    options.resolve({}, body["parameters"] or {})
    if body["template"]:
        await asyncio.to_thread(_check_template, body["template"])
    daemon = daemon_of(request)
    parent = await lookup.resolve(daemon, lookup.model_name(body["from"]), body["from"])
    return RecordsResponse(_events(daemon, name, parent, body), stream=body["stream"] is not False)


async def _events(daemon: Daemon, name: Name, parent: ResolvedModel, body: dict[str, Any]) -> Records:
    known = await asyncio.to_thread(_known_template, parent) if body["template"] is None else None
    if known is not None:
        yield {"status": f"using autodetected template {known.name}"}
    contents = await asyncio.to_thread(_contents, parent, body, known)
    events = create_from_gguf(daemon.store, name, contents)
    while (event := await asyncio.to_thread(_next, events)) is not None:
        yield event.to_json()


def _check_template(text: str) -> None:
    # Templates are loaded when the first one is looked at, not when the daemon starts.
    from localllm.chat import GoTemplate

    try:
        GoTemplate(text)
    except TemplateError as error:
        raise APIError(400, f"template error: {error}") from error


def _next(events: Iterator[Progress]) -> Progress | None:
    return next(events, None)


def _known_template(parent: ResolvedModel) -> "KnownTemplate | None":
    """The known format that the GGUF's own template writes, where that is all that the model has."""
    # Jinja is loaded when it is needed, not when the daemon starts.
    from localllm.chat.known import detect

    if parent.template is not None or not parent.model_paths:
        return None
    with Header(parent.model_paths[0]) as header:
        jinja = header.metadata.get("tokenizer.chat_template")
    return detect(jinja) if isinstance(jinja, str) and jinja else None


def _contents(parent: ResolvedModel, body: dict[str, Any], known: "KnownTemplate | None") -> ModelContents:
    """The parent's contents with what the request says instead; licences are added, parameters merged key by key.

    A known format's parameters are defaults; its Go template stands in for a template of the GGUF that does not work.
    """
    inherited = known.template if known and not known.is_native else parent.template
    return ModelContents(
        weights=[layer.digest for layer in parent.manifest.of_kind("model")],
        facts=inspect(parent.model_paths),
        template=inherited if body["template"] is None else body["template"],
        system=parent.system if body["system"] is None else body["system"],
        params={**(known.params if known else {}), **parent.params, **(body["parameters"] or {})},
        messages=parent.messages if body["messages"] is None else [one for one in body["messages"] if one],
        licenses=[*parent.licenses, *(body["license"] or [])],
    )
