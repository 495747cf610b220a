"""Loads a draft model beside the model that it drafts for; it knows nothing of when drafts pay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localllm.engine import Engine
from localllm.engine.backend import Progress
from localllm.engine.sequence import n_pages_for
from localllm.gguf import GGUFFile, open_gguf
from localllm.gguf.drafts import check_draft
from localllm.messages import LoadRequest, ModelSpec
from localllm.models import check_architecture

DRAFT_N_BATCH = 128


@dataclass(frozen=True)
class Draft:
    """A draft model's engine, and its file, which stays open as long as that is used."""

    engine: Engine
    gguf: GGUFFile


def load_draft(
    request: LoadRequest, spec: ModelSpec, gguf: GGUFFile, engine: Engine, cache_dir: Path, on_progress: Progress
) -> Draft:
    """Load the draft model `spec` for `engine`, which was made of `gguf`: it has as many pages and slots, and the same
    threads.

    Raises:
        OptionError: it has another vocabulary, or is no model that drafts.
        LocalLLMError, KernelError, OSError: it cannot be loaded.
    """
    draft_gguf = open_gguf(spec.model_paths)
    try:
        check_architecture(draft_gguf)
        check_draft(request.model.name, gguf.metadata, spec.name, draft_gguf.metadata)
        n_ctx_train = draft_gguf.get(f"{draft_gguf.architecture}.context_length", int, 0)
        draft_engine = Engine.load(
            draft_gguf,
            n_ctx=min(engine.n_ctx, n_ctx_train or engine.n_ctx),
            n_batch=max(engine.n_slots, DRAFT_N_BATCH),
            n_slots=engine.n_slots,
            n_pages=max(engine.n_pages, n_pages_for(engine.n_ctx)),
            kv_cache_type=request.kv_cache_type,
            cache_dir=cache_dir,
            model_digest=spec.model_digest,
            on_progress=on_progress,
            beside=engine,
        )
    except BaseException:
        draft_gguf.close()
        raise
    draft_gguf.drop_pages()
    return Draft(draft_engine, draft_gguf)
