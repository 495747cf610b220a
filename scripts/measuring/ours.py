"""Times the engine as the runner uses it, without HTTP and without text."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence as Sequence_
from pathlib import Path

import numpy as np

from localllm.engine import Engine, Entry, Sequence
from localllm.engine.sequence import n_pages_for
from localllm.gguf import GGUFFile
from measuring.figures import Figure

TOGETHER_PROMPT, TOGETHER_TOKENS = 128, 32
"""Tokens of prompt, and then of decoding, of each sequence where several decode together."""


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file in hex, by which a runner, and so the cache of packed weights, knows it."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


class Ours:
    """One engine for each type of KV cache among the figures; implements `Side`."""

    def __init__(self, gguf: GGUFFile, digest: str, figures: Sequence_[Figure], n_threads: int, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        self._rng = np.random.default_rng()
        self._deep: dict[Figure, Sequence] = {}
        self._engines = {
            kv: _load(gguf, digest, [f for f in figures if f.kv == kv], n_threads, n_tokens)
            for kv in dict.fromkeys(figure.kv for figure in figures)
        }

    def measure(self, figure: Figure) -> float:
        """Tokens a second, once."""
        how = {"prefill": self._prefill, "decode": self._decode, "together": self._together}
        return how[figure.kind](self._engines[figure.kv], figure)

    def close(self) -> None:
        """Give back threads and memory."""
        for engine in self._engines.values():
            engine.close()

    def _prefill(self, engine: Engine, figure: Figure) -> float:
        prompt, seq = self._random(engine, figure.n), engine.open_sequence()
        start = time.perf_counter()
        _evaluate(engine, seq, prompt)
        seconds = time.perf_counter() - start
        seq.close()
        return figure.n / seconds

    def _decode(self, engine: Engine, figure: Figure) -> float:
        """Its sequence stays open from round to round and is cut back to `n` tokens."""
        if figure not in self._deep:
            self._deep[figure] = engine.open_sequence()
            _evaluate(engine, self._deep[figure], self._random(engine, figure.n))
        seq = self._deep[figure]
        seconds = _time_decoding(engine, [seq], [self._random(engine, 1)], self._n_tokens)
        seq.truncate(figure.n)
        return self._n_tokens / seconds

    def _together(self, engine: Engine, figure: Figure) -> float:
        seqs = [engine.open_sequence() for _ in range(figure.n)]
        for seq in seqs:
            _evaluate(engine, seq, self._random(engine, TOGETHER_PROMPT))
        seconds = _time_decoding(engine, seqs, [self._random(engine, 1) for _ in seqs], TOGETHER_TOKENS)
        for seq in seqs:
            seq.close()
        return figure.n * TOGETHER_TOKENS / seconds

    def _random(self, engine: Engine, n: int) -> list[int]:
        return self._rng.integers(0, engine.n_vocab, n).tolist()


def _load(gguf: GGUFFile, digest: str, figures: Sequence_[Figure], n_threads: int, n_tokens: int) -> Engine:
    """An engine with room for all sequences that are open at a time: the deep ones, and those of one figure."""
    deep = [figure.n + n_tokens for figure in figures if figure.kind == "decode"]
    passing = [(1, figure.n) for figure in figures if figure.kind == "prefill"]
    passing += [(f.n, TOGETHER_PROMPT + TOGETHER_TOKENS) for f in figures if f.kind == "together"]
    n_pages_deep = sum(n_pages_for(n) for n in deep)
    return Engine.load(
        gguf,
        n_ctx=max(*deep, *(n for _, n in passing), 1, 1),
        n_slots=len(deep) + max((n for n, _ in passing), default=1),
        n_pages=n_pages_deep + max((n * n_pages_for(length) for n, length in passing), default=1),
        n_threads=n_threads,
        kv_cache_type=figures[0].kv,
        model_digest=digest,
    )


def _evaluate(engine: Engine, seq: Sequence, tokens: list[int]) -> None:
    """Append a prompt in steps of n_batch, with logits of its last token only."""
    for first in range(0, len(tokens), engine.n_batch):
        step = tokens[first : first + engine.n_batch]
        engine.step([Entry(seq, step, "last" if first + len(step) == len(tokens) else "none")])


def _time_decoding(engine: Engine, seqs: list[Sequence], tokens: list[list[int]], n_tokens: int) -> float:
    """Seconds of `n_tokens` steps in which each sequence takes its likeliest token."""
    start = time.perf_counter()
    for _ in range(n_tokens):
        logits = engine.step([Entry(seq, token) for seq, token in zip(seqs, tokens, strict=True)])
        tokens = [[int(np.argmax(row))] for row in logits if row is not None]
    return time.perf_counter() - start
