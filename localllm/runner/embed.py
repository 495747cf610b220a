"""Texts to vectors and to scores: what the model is given of them, and what becomes of its rows; it runs no step."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from localllm.errors import ContextLengthError, RequestError
from localllm.messages import Embed, Embeddings, Message, Rank, Scores, Stats
from localllm.runner.adapters import Adapters
from localllm.runner.errors import error_message
from localllm.runner.fitting import n_ctx_of
from localllm.runner.vectors import F32, VectorEngine, VectorJob
from localllm.tokenizer import Tokenizer

TOO_LONG = "the input length exceeds the context length"
SMALLEST_LENGTH = 1e-12
"""Vectors shorter than this are divided by it: one of zeros stays so."""


@dataclass(frozen=True)
class VectorModel:
    """A model as far as vectors and scores need it. `rank_template` is the GGUF's text around a query and a document.

    `separates` says whether a separator stands between them, where there is no template.
    """

    name: str
    tokenizer: Tokenizer
    engine: Any
    n_ctx: int
    rank_template: str | None = None
    separates: bool = False
    adapters: Adapters | None = None


def embed_job(model: VectorModel, request: Embed, send: Callable[[Message], None]) -> VectorJob | None:
    """The work for a request, which ends with an Embeddings message; None where there are no inputs.

    Raises:
        RequestError: the model ranks only, a token id it does not have, dimensions that it cannot give.
        ContextLengthError: an input is too long and must not be cut.
    """
    engine: VectorEngine = model.engine
    n_embd = model.engine.hparams.n_embd
    if engine.pooling == "rank":
        raise RequestError(f'"{model.name}" does not support embeddings', hint="it ranks: POST /api/rerank")
    if not 0 <= request.dimensions <= n_embd:
        raise RequestError(f"dimensions must be in 0..{n_embd}, not {request.dimensions}")
    limit = n_ctx_of(request.options, model.n_ctx)
    whole = [_tokens(model, given) for given in request.inputs]
    inputs = [_fitting(model.tokenizer, tokens, limit, request.truncate) for tokens in whole]
    lost = _lost([len(tokens) for tokens in whole], inputs)
    started_ns = time.perf_counter_ns()

    def finish(rows: list[F32]) -> None:
        vectors = [_vector(row, request.dimensions, request.normalise) for row in rows]
        send(Embeddings(request.id, vectors, [len(tokens) for tokens in inputs], _stats(inputs, started_ns), lost))

    return _job(model, request, inputs, finish, send)


def rank_job(model: VectorModel, request: Rank, send: Callable[[Message], None]) -> VectorJob | None:
    """The work for a request, which ends with a Scores message; None where there are no documents.

    Raises:
        RequestError: the model does not rank.
        ContextLengthError: query and document are too long and must not be cut.
    """
    if model.engine.pooling != "rank":
        hint = "pick a reranker, a model whose GGUF says pooling_type 4"
        raise RequestError(f'"{model.name}" does not support reranking', hint=hint)
    limit = n_ctx_of(request.options, model.n_ctx)
    pairs = [_pair(model, request.query, text, limit, request.truncate) for text in request.documents]
    inputs = [tokens for tokens, _ in pairs]
    lost = _lost([n_all for _, n_all in pairs], inputs)
    started_ns = time.perf_counter_ns()

    def finish(rows: list[F32]) -> None:
        scores = [score(row, model.engine.is_bidirectional) for row in rows]
        send(Scores(request.id, scores, [len(tokens) for tokens in inputs], _stats(inputs, started_ns), lost))

    return _job(model, request, inputs, finish, send)


def _job(
    model: VectorModel,
    request: Embed | Rank,
    inputs: list[list[int]],
    finish: Callable[[list[F32]], None],
    send: Callable[[Message], None],
) -> VectorJob | None:
    if not inputs:
        finish([])
        return None
    return VectorJob(
        request.id,
        inputs,
        model.engine,
        finish,
        lambda error: send(error_message(request.id, error)),
        is_ranking=isinstance(request, Rank),
        is_interactive=getattr(request, "is_interactive", True),
        adapters=model.adapters.acquire(request.lora) if model.adapters else None,
    )


def _tokens(model: VectorModel, given: str | list[int]) -> list[int]:
    """The ids of an input. A text of none, in a vocabulary without BOS and EOS, is a text that has ended."""
    tokenizer = model.tokenizer
    if isinstance(given, str):
        return tokenizer.encode(given) or [tokenizer.eos_id or 0]
    if bad := [token for token in given if not 0 <= token < tokenizer.n_vocab]:
        raise RequestError(f"input: token ids must be in 0..{tokenizer.n_vocab - 1}, not {bad[0]}")
    if not given:
        raise RequestError("input: a list of token ids must not be empty")
    return given


def _fitting(tokenizer: Tokenizer, tokens: list[int], limit: int, may_cut: bool) -> list[int]:
    """At most `limit` tokens: what is lost is the end of the text, and not the token that ends it."""
    if len(tokens) <= limit:
        return tokens
    if not may_cut:
        raise _too_long(len(tokens), limit, may_cut)
    end = tokens[-1:] if tokens[-1] == tokenizer.last and limit > 1 else []
    return tokens[: limit - len(end)] + end


def _too_long(n_tokens: int, limit: int, may_cut: bool) -> ContextLengthError:
    """What is too long, in Ollama's words; the counts stand in the hint."""
    hint = f"{n_tokens} tokens are more than the context of {limit}"
    if not may_cut:
        hint += '; `"truncate": true` leaves out what is too much'
    return ContextLengthError(TOO_LONG, n_tokens, limit, hint=hint)


def _lost(n_whole: list[int], inputs: list[list[int]]) -> dict[str, int] | None:
    """How many inputs are shorter than they were, and by how many tokens together."""
    n_lost = [n - len(tokens) for n, tokens in zip(n_whole, inputs, strict=True) if n > len(tokens)]
    return {"inputs": len(n_lost), "tokens": sum(n_lost)} if n_lost else None


def _pair(model: VectorModel, query: str, document: str, limit: int, may_cut: bool) -> tuple[list[int], int]:
    """A query and a document as the model reads them, and how many tokens they have. What is too long loses the
    document's end."""
    tokens = _joined(model, query, document)
    n_all = len(tokens)
    words = model.tokenizer.encode(document, add_special=False) if len(tokens) > limit else []
    # What is left may take more tokens again: a character cut in the middle becomes another one.
    while len(tokens) > limit:
        if not may_cut or not words:
            raise _too_long(n_all, limit, may_cut)
        words = words[: max(0, len(words) - (len(tokens) - limit))]
        tokens = _joined(model, query, model.tokenizer.decode(words))
    return tokens, n_all


def _joined(model: VectorModel, query: str, document: str) -> list[int]:
    tokenizer = model.tokenizer
    if model.rank_template is not None:
        before, _, after = model.rank_template.partition("{document}")
        text = before.replace("{query}", query) + document + after.replace("{query}", query)
        return tokenizer.encode(text, add_special=False)
    separator = [tokenizer.special.sep] if model.separates and tokenizer.special.sep is not None else []
    end = [] if tokenizer.last is None else [tokenizer.last]
    return [*tokenizer.encode(query), *separator, *tokenizer.encode(document, add_special=False), *end]


def _vector(row: F32, dimensions: int, normalise: bool) -> str:
    """The base64 of a row's components. Raises: RequestError where one is no number."""
    if not np.isfinite(row).all():
        raise RequestError("embedding contains NaN or Inf values")
    vector = row[:dimensions] if dimensions else row
    if normalise:
        length = np.sqrt(np.square(vector, dtype=np.float64).sum())
        vector = vector / max(length, SMALLEST_LENGTH)
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def score(row: F32, is_encoder: bool) -> float:
    """How well a document answers: an encoder's first score, or the share of "yes" of a model that says yes or no.

    Raises: RequestError where it is no number.
    """
    value = float(row[0])
    if not is_encoder and len(row) > 1:
        shares = np.exp(row.astype(np.float64) - row.max())
        value = float(shares[0] / shares.sum())
    if not np.isfinite(value):
        raise RequestError("the score is NaN or infinite")
    return value


def _stats(inputs: list[list[int]], started_ns: int) -> Stats:
    elapsed_ns = time.perf_counter_ns() - started_ns
    return Stats(prompt_eval_count=sum(map(len, inputs)), prompt_eval_duration_ns=elapsed_ns)
