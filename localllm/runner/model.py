"""Loads a model: GGUF, tokenizer, templates, engine; it knows nothing of requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localllm import env
from localllm.engine import Engine
from localllm.engine.sequence import n_pages_for
from localllm.engine.tape_backend import default_threads
from localllm.gguf import GGUFFile, open_gguf
from localllm.messages import LoadRequest, Message, Progress, Ready
from localllm.models import check_architecture
from localllm.runner.adapters import Adapters
from localllm.runner.batch import EngineLike
from localllm.runner.draft import Draft, load_draft
from localllm.runner.outbox import Outbox
from localllm.runner.templates import Templates
from localllm.tokenizer import Tokenizer, load_tokenizer

# For who loads a model without a scheduler, which chooses by memory.
DEFAULT_N_CTX = 4096
DEFAULT_N_BATCH = 512
# Texts that a chat model may read for embeddings beside its running requests.
N_SPARE_SEQUENCES = 4
# Texts that a model for embeddings may have in one step.
N_VECTOR_SEQUENCES = 64
REPORT_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Model:
    """A loaded model. `name` is for messages to people; `gguf` stays open as long as the engine is used, to which
    `adapters` belong.

    `draft` guesses what it will say. `rank_template` and `separates` say how a query and a document are put together:
    see VectorModel.
    """

    name: str
    engine: EngineLike
    tokenizer: Tokenizer
    templates: Templates
    n_parallel: int
    ready: Ready
    gguf: GGUFFile | None = None
    rank_template: str | None = None
    separates: bool = False
    adapters: Adapters | None = None
    draft: Draft | None = None


def load_model(request: LoadRequest, outbox: Outbox) -> Model:
    """Load what `request` names, sending progress.

    Raises:
        LocalLLMError, KernelError, OSError: it cannot be loaded.
    """
    spec = request.model
    cache_dir = Path(request.cache_dir) if request.cache_dir else env.cache_dir()
    outbox.send(Progress("reading model"))
    gguf = open_gguf(spec.model_paths)
    check_architecture(gguf)  # before the tokenizer: that of a model which is not supported may be unknown too
    outbox.send(Progress("building tokenizer"))
    tokenizer = load_tokenizer(gguf, cache_dir)
    bos, eos = (_special_text(tokenizer, token) for token in (tokenizer.bos_id, tokenizer.eos_id))
    templates = Templates(gguf.metadata, spec.template, bos, eos, prefers_go=env.go_template())
    n_ctx_train = gguf.get(f"{gguf.architecture}.context_length", int, 0)
    n_ctx = choose_n_ctx(request.num_ctx, n_ctx_train)
    n_parallel, n_threads = max(1, request.num_parallel), choose_n_threads(request.num_thread)
    is_for_vectors = f"{gguf.architecture}.pooling_type" in gguf.metadata
    report = Reporter(outbox.send)
    engine = Engine.load(
        gguf,
        n_ctx=n_ctx,
        n_batch=max(n_parallel, min(request.num_batch or DEFAULT_N_BATCH, n_ctx)),
        n_slots=n_parallel + (N_VECTOR_SEQUENCES if is_for_vectors else N_SPARE_SEQUENCES),
        n_pages=n_pages_for(max(n_ctx, request.num_kv or n_parallel * n_ctx)),
        n_threads=n_threads,
        kv_cache_type=request.kv_cache_type,
        cache_dir=cache_dir,
        model_digest=spec.model_digest,
        kv_disk_bytes=0 if is_for_vectors else env.kv_disk(),
        on_progress=report,
    )
    adapters = Adapters(engine, spec.adapters)
    if spec.adapters:
        outbox.send(Progress("loading adapters"))
        adapters.acquire(None).release()  # so that the first request finds them, and errors are those of loading
    gguf.drop_pages()
    draft = load_draft(request, request.draft, gguf, engine, cache_dir, report) if request.draft else None
    ready = Ready(
        n_ctx,
        n_ctx_train,
        engine.memory_bytes + (draft.engine.memory_bytes if draft else 0),
        _capabilities(gguf, engine, tokenizer, templates),
        n_threads,
        engine.n_batch,
    )
    rank_template = gguf.metadata.get("tokenizer.chat_template.rerank")
    return Model(
        spec.name,
        engine,
        tokenizer,
        templates,
        n_parallel,
        ready,
        gguf,
        rank_template if isinstance(rank_template, str) else None,
        gguf.get("tokenizer.ggml.add_sep_token", bool, False),
        adapters,
        draft,
    )


def _capabilities(gguf: GGUFFile, engine: Engine, tokenizer: Tokenizer, templates: Templates) -> list[str]:
    """A file that says how its rows stand for a text is one for embeddings, or for ranking."""
    if engine.pooling == "rank":
        return ["rerank"]
    if engine.is_bidirectional or f"{gguf.architecture}.pooling_type" in gguf.metadata:
        return ["embedding"]
    insert = ["insert"] if can_insert(tokenizer, templates) else []
    return ["completion", *insert, *templates.capabilities]


class Reporter:
    """Passes progress on, not more often than people can see; the end of a status always."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._last_status: str | None = None
        self._last_s = 0.0

    def __call__(self, status: str, completed: int, total: int) -> None:
        now = time.monotonic()
        is_news = status != self._last_status or completed >= total
        if is_news or now - self._last_s >= REPORT_INTERVAL_S:
            self._last_status, self._last_s = status, now
            self._send(Progress(status, completed, total))


def choose_n_ctx(num_ctx: int, n_ctx_train: int) -> int:
    """The context in force: what is asked for (0: a default), at most what the model was trained for."""
    wanted = num_ctx or DEFAULT_N_CTX
    return min(wanted, n_ctx_train) if n_ctx_train else wanted


def choose_n_threads(num_thread: int) -> int:
    """What is asked for (0: the engine's choice), at most one for each processor: more would wait for one another."""
    return min(num_thread, os.cpu_count() or 1) or default_threads()


def can_insert(tokenizer: Tokenizer, templates: Templates) -> bool:
    special = tokenizer.special
    has_tokens = None not in (special.fim_pre, special.fim_suf, special.fim_mid)
    return has_tokens or templates.for_insert(None) is not None


def _special_text(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token, special=True).decode(errors="replace")
