"""What generate, chat and load have in common: fields, checks in Ollama's order, loading, statistics.

It knows nothing of the shapes of their answers.
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from localllm.durations import parse_keep_alive
from localllm.messages import Chunk, Done, GenerateRequest, LoadRequest, Message, Prefill, Rendered
from localllm.options import resolve as resolve_options
from localllm.scheduler.resident import model_key
from localllm.server import adapters, drafts, lookup
from localllm.server.binding import Anything, Bool, Int, Judged, List, Map, String, Type
from localllm.server.capabilities import capabilities_of
from localllm.server.daemon import Daemon
from localllm.server.errors import APIError
from localllm.server.times import now_utc
from localllm.server.truncation import header_of, truncated_field
from registry.store import ResolvedModel

MIN_NUM_CTX = 4
MAX_TOP_LOGPROBS = 20
THINK_LEVELS = ("high", "medium", "low", "max")


def _think(value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    levels = '"high", "medium", "low", "max", true, or false'
    if not isinstance(value, str):
        raise ValueError(f"think must be a boolean or string ({levels})")
    if value not in THINK_LEVELS:
        raise ValueError(f'invalid think value: "{value}" (must be {levels})')
    return value


FIELDS: dict[str, Type] = {
    "model": String(),
    "stream": Bool(default=None),
    "format": Anything(),
    "grammar": String(default=None),
    "grammar_lazy": Bool(),
    "grammar_triggers": List(Map()),
    "keep_alive": Judged(parse_keep_alive),
    "options": Map(),
    "think": Judged(_think, named=False),
    "truncate": Bool(default=None),
    "shift": Bool(default=True),
    "logprobs": Bool(),
    "top_logprobs": Int(),
    "progress": Bool(),
    "lora": adapters.FIELD,
    "_debug_render_only": Bool(),
}
"""Fields of both generate and chat, of which those of `grammar` (llama.cpp's), `progress` and `lora` are our own."""


@dataclass(frozen=True)
class Asked:
    """A request whose model exists: `body` as bound, the model, what must be loaded, how long it stays.

    `lora` are the adapters in force, as the runner is told. `headers` are those of the answer, as far as is known.
    """

    daemon: Daemon
    body: dict[str, Any]
    model: ResolvedModel
    options: dict[str, Any]
    want: LoadRequest
    keep_alive_ns: int
    started_ns: int
    lora: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The model's name as the client wrote it."""
        return str(self.body["model"])

    @property
    def unloads(self) -> bool:
        """Whether keep_alive says to unload now, where there is nothing to generate."""
        return self.body["keep_alive"] == 0


def streams(body: dict[str, Any]) -> bool:
    """Whether the answer comes in pieces: unless told otherwise; a rendered prompt is one object in any case."""
    return body["stream"] is not False and not body["_debug_render_only"]


async def begin(daemon: Daemon, body: dict[str, Any]) -> Asked:
    """The checks up to the model's existence. Raises: APIError, InvalidNameError, OptionError."""
    started_ns = time.monotonic_ns()
    if not 0 <= body.get("top_logprobs", 0) <= MAX_TOP_LOGPROBS:
        raise APIError(400, f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    name = lookup.model_name(body["model"])
    model = await lookup.resolve(daemon, name, body["model"])
    options = resolve_options(model.params, body["options"] or {})
    keep_alive_ns = daemon.settings.keep_alive_ns if body["keep_alive"] is None else body["keep_alive"]
    lora = await adapters.adapters_of(daemon, model, body.get("lora"))
    want = replace(load_request(daemon, model, options), draft=await drafts.draft_of(daemon, model, options))
    return Asked(daemon, body, model, options, want, keep_alive_ns, started_ns, lora)


def load_request(daemon: Daemon, model: ResolvedModel, options: dict[str, Any]) -> LoadRequest:
    """The load that a request with these (resolved) options needs."""
    settings = daemon.settings
    num_ctx = options["num_ctx"] or settings.num_ctx
    return LoadRequest(
        lookup.model_spec(model),
        num_ctx=max(MIN_NUM_CTX, num_ctx) if num_ctx else 0,
        num_batch=options["num_batch"],
        num_thread=options["num_thread"] or settings.num_thread,
        kv_cache_type=options["kv_cache_type"] or settings.kv_cache_type,
        num_parallel=settings.num_parallel,
        cache_dir=str(settings.cache_dir) if settings.cache_dir else None,
    )


async def check_capabilities(asked: Asked, verb: str, *, images: bool) -> None:
    """Refuse what the model cannot do. `verb` is what an embedding model is said not to support.

    Raises: APIError with status 400; GGUFError.
    """
    able = await capabilities_of(asked.model)
    body, full_name = asked.body, lookup.full_name(asked.model.name)
    if "completion" not in able:
        raise APIError(400, f'"{asked.shown}" does not support {verb}')
    if body.get("tools") and "tools" not in able:
        raise APIError(400, f"{full_name} does not support tools")
    if body["think"] and "thinking" not in able:
        raise APIError(400, f'"{asked.shown}" does not support thinking')
    if images:
        raise APIError(400, f'"{asked.shown}" does not support images', hint="send text only, or pick another model")
    if not is_format(body["format"]):
        shown = go_json_text(body["format"])
        raise APIError(400, f'invalid format: {shown}; expected "json" or a valid JSON Schema object')


async def thinking_if_able(asked: Asked) -> Asked:
    """The same without a wish to think that the model cannot grant. Raises: GGUFError."""
    if not asked.body["think"] or "thinking" in await capabilities_of(asked.model):
        return asked
    return replace(asked, body={**asked.body, "think": None})


def is_format(value: Any) -> bool:
    """Whether a `format` is one: absent, empty, "json" or an object."""
    return value in (None, "", "json") or isinstance(value, dict)


def go_json_text(value: Any) -> str:
    """A value as JSON, for quoting in an error."""
    return json.dumps(value, ensure_ascii=False)


def new_request(asked: Asked, kind: str, **fields: Any) -> GenerateRequest:
    """The runner's request with everything generate and chat share; `fields` are the rest, and go before a body's."""
    body = asked.body
    fields = {**grammar_fields(body), **fields}
    return GenerateRequest(
        id=uuid.uuid4().hex,
        kind=kind,
        think=body["think"],
        format=None if body["format"] == "" else body["format"],
        options=asked.options,
        logprobs=body["logprobs"],
        top_logprobs=body["top_logprobs"],
        truncate=body["truncate"],
        shift=body["shift"],
        progress=body["progress"] and streams(body),
        debug_render_only=body["_debug_render_only"],
        lora=asked.lora,
        **fields,
    )


def grammar_fields(body: dict[str, Any]) -> dict[str, Any]:
    """What a body says of a grammar, as fields of the runner's request."""
    triggers = [trigger for trigger in body["grammar_triggers"] or [] if trigger is not None]
    return {"grammar": body["grammar"], "grammar_lazy": body["grammar_lazy"], "grammar_triggers": triggers}


async def preload(asked: Asked) -> None:
    """Load the model, and start its keep-alive. Raises: what loading raises."""
    async with await asked.daemon.scheduler.lease(asked.want, asked.keep_alive_ns):
        pass


async def unload(asked: Asked) -> None:
    """Unload the model, when its requests have ended."""
    await asked.daemon.scheduler.unload(model_key(asked.want))


@dataclass(frozen=True)
class Turn:
    """What a request got: nanoseconds from its arrival to its turn on a loaded model, and the context there."""

    load_ns: int
    n_ctx: int


async def run(asked: Asked, request: GenerateRequest) -> AsyncGenerator[tuple[Message, Turn], None]:
    """The runner's messages for one request; what its prompt lost is in the headers before the first of them.

    Raises: what loading or the runner raises; APIError without `insert`.
    """
    async with await asked.daemon.scheduler.lease(asked.want, asked.keep_alive_ns) as lease:
        if request.suffix and "insert" not in lease.ready.capabilities:
            raise APIError(400, f"{lookup.full_name(asked.model.name)} does not support insert")
        turn = Turn(time.monotonic_ns() - asked.started_ns, lease.ready.n_ctx)
        async with aclosing(lease.generate(request)) as messages:
            async for message in messages:
                if isinstance(message, Prefill | Done):
                    asked.headers.update(header_of(message.truncated))
                yield message, turn


def head(asked: Asked) -> dict[str, Any]:
    """The first fields of every record."""
    return {"model": asked.shown, "created_at": now_utc()}


def final_fields(asked: Asked, done: Done, turn: Turn) -> dict[str, Any]:
    """The fields that only the last record has; zeros are left out, durations are in nanoseconds.

    Beside Ollama's: tokens reused from the KV cache, what was cut from the prompt, the context in force where it is
    smaller than `num_ctx` asked for, and what of a constraint could not be enforced.
    """
    stats = done.stats
    figures = {
        "total_duration": time.monotonic_ns() - asked.started_ns,
        "load_duration": turn.load_ns,
        "prompt_eval_count": stats.prompt_eval_count,
        "prompt_eval_duration": stats.prompt_eval_duration_ns,
        "eval_count": stats.eval_count,
        "eval_duration": stats.eval_duration_ns,
        "prompt_eval_cached_count": stats.prompt_eval_cached_count,
        "draft_count": stats.draft_count,
        "draft_accepted_count": stats.draft_accepted_count,
        "truncated": done.truncated,
        "context_length": turn.n_ctx if turn.n_ctx < asked.options["num_ctx"] else 0,
        "warnings": done.warnings,
    }
    return {"done": True, "done_reason": done.done_reason, **{key: value for key, value in figures.items() if value}}


def progress_fields(prefill: Prefill) -> dict[str, Any]:
    """The fields of a record that tells how far the prompt is; `processed` of its tokens includes those `cached`."""
    figures = {"total": prefill.total, "cached": prefill.cached, "processed": prefill.processed}
    progress = {**figures, "time_ms": round(prefill.elapsed_ns / 1e6, 3)}
    return {"progress": progress, **truncated_field(prefill.truncated)}


def chunk_extras(chunk: Chunk) -> dict[str, Any]:
    """The optional top-level fields of a record that carries text."""
    return {"logprobs": chunk.logprobs} if chunk.logprobs else {}


def debug_record(asked: Asked, rendered: Rendered, image_count: int) -> dict[str, Any]:
    """The answer to `_debug_render_only`, without the field for the text."""
    info: dict[str, Any] = {"rendered_template": rendered.prompt}
    if image_count:
        info["image_count"] = image_count
    return {**head(asked), "done": False, "_debug_info": info}
