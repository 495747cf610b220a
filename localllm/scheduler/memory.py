"""What a model will take in memory, from its header; it knows nothing of processes, or of what the machine has.

The figures are for a decision before loading; the runner reports what it really took. They follow what the engine
allocates (`kernels_cpu/tape.py`) closely enough to be within some percent, and tests hold the two together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import psutil

from localllm.gguf.header import Header
from localllm.gguf.parts import open_parts
from localllm.messages import LoadRequest
from localllm.scheduler.packed_sizes import packed_bytes

KV_BYTES_PER_VALUE = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
ENCODERS = frozenset(("bert", "nomic-bert", "gemma-embedding"))
"""Architectures that keep nothing of what they have read."""
NEAR_AND_FAR = frozenset(("gemma3", "gemma-embedding"))
"""Architectures with two kinds of rotation, whose tables have a row for each position."""
NORMED_TWICE = frozenset(("gemma2", "gemma3", "gemma-embedding"))
"""Architectures whose sums wait for the norm of what is added."""

MAX_AUTOMATIC_CTX = 32768
"""Longer contexts are for who asks for them: on a CPU such a prompt takes minutes, and memory is better kept for other
models."""
PROCESS_BYTES = 80 << 20
"""A runner with an empty model: interpreter, libraries, compiled kernels."""
DEFAULT_NUM_BATCH = 512
N_SPARE_SEQUENCES, N_VECTOR_SEQUENCES, N_ENCODER_SEQUENCES = 4, 64, 128
THREAD_BYTES = 72 << 10
SEGMENT_POSITIONS, SEGMENT_ROWS, SEGMENT_QUERIES = 256, 8, 48


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a model: its weights, its KV cache for each token of that, and the workspace, which has a part for each
    token of context and one that does not depend on it. The sum of two is that of both models loaded together."""

    weights_bytes: int
    kv_bytes_per_token: float
    workspace_bytes: int = 0
    n_ctx_train: int = 0
    workspace_bytes_per_token: float = 0.0
    process_bytes: int = 0

    def total_bytes(self, num_ctx: int, num_kv: int) -> int:
        """Bytes with a context of `num_ctx` tokens and a KV cache of `num_kv`."""
        return self.fixed_bytes + int(num_ctx * self.workspace_bytes_per_token + num_kv * self.kv_bytes_per_token)

    @property
    def fixed_bytes(self) -> int:
        """Bytes that no context makes fewer."""
        return self.weights_bytes + self.workspace_bytes + self.process_bytes

    @property
    def bytes_per_token(self) -> float:
        """Bytes for each token of a context that the KV cache holds once."""
        return self.kv_bytes_per_token + self.workspace_bytes_per_token

    def capped(self, num_ctx: int) -> int:
        """A context of at most the trained length."""
        return min(num_ctx, self.n_ctx_train) if self.n_ctx_train else num_ctx

    def beside(self, draft: MemoryEstimate) -> MemoryEstimate:
        """With a model that drafts for this one, in the same process and for the same tokens."""
        both = {field.name: getattr(self, field.name) + getattr(draft, field.name) for field in fields(self)}
        return MemoryEstimate(**{**both, "n_ctx_train": self.n_ctx_train, "process_bytes": self.process_bytes})


def estimate(want: LoadRequest) -> MemoryEstimate:
    """The estimate for a model, with its draft model; reads the headers of their files. Raises: GGUFError, OSError."""
    if want.draft is not None:
        alone = replace(want, draft=None)
        return estimate(alone).beside(estimate(replace(alone, model=want.draft)))
    adapters_bytes = sum(Path(str(adapter["path"])).stat().st_size for adapter in want.model.adapters)
    headers = open_parts([Path(path) for path in want.model.model_paths])
    try:
        weights_bytes = adapters_bytes + sum(packed_bytes(header.tensors.values()) for header in headers)
        return _of_sizes(_Sizes.of(headers[0]), weights_bytes, want)
    finally:
        for header in headers:
            header.close()


def _of_sizes(sizes: _Sizes, weights_bytes: int, want: LoadRequest) -> MemoryEstimate:
    is_encoder = sizes.arch in ENCODERS
    n_ctx = min(want.num_ctx or MAX_AUTOMATIC_CTX, sizes.n_ctx_train or MAX_AUTOMATIC_CTX)
    n_rows = max(want.num_parallel, min(want.num_batch or DEFAULT_NUM_BATCH, n_ctx))
    fixed = sizes.n_outputs(want.num_parallel) * sizes.output_row_bytes
    n_threads = min(want.num_thread or psutil.cpu_count(logical=False) or 1, os.cpu_count() or 1)
    fixed += n_threads * sizes.thread_bytes
    return MemoryEstimate(
        weights_bytes,
        0.0 if is_encoder else sizes.kv_values * KV_BYTES_PER_VALUE[want.kv_cache_type],
        # An encoder has a text in one step.
        fixed + (0 if is_encoder else n_rows * sizes.row_bytes),
        sizes.n_ctx_train,
        sizes.position_bytes + (sizes.row_bytes if is_encoder else 0),
        PROCESS_BYTES,
    )


@dataclass(frozen=True)
class _Sizes:
    """What of a header says how much memory a step takes. Widths of queries, keys and values are those of the widest
    layer; `kv_values` are the values of a token in the KV cache, of all layers."""

    arch: str
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_ff: int
    n_head: int
    head_dim: int
    n_rot: int
    n_head_kv: int
    kv_values: int
    has_pooling: bool

    @classmethod
    def of(cls, header: Header) -> _Sizes:
        metadata = header.metadata
        arch = str(metadata.get("general.architecture", ""))

        def integer(key: str, default: int, most: Callable[[Any], int] = max) -> int:
            return _integer(metadata.get(f"{arch}.{key}", default), default, most)

        n_layer, n_embd = integer("block_count", 0), integer("embedding_length", 0)
        n_head = max(1, integer("attention.head_count", 1))
        key_dim = integer("attention.key_length", n_embd // n_head)
        value_dim = integer("attention.value_length", n_embd // n_head)
        n_head_kv = integer("attention.head_count_kv", n_head)
        is_listed = not isinstance(metadata.get(f"{arch}.attention.head_count_kv", 0), int)
        heads = integer("attention.head_count_kv", n_layer * n_head, sum) if is_listed else n_layer * n_head_kv
        embedding = header.tensors.get("token_embd.weight")
        return cls(
            arch=arch,
            n_ctx_train=integer("context_length", 0),
            n_vocab=embedding.n_elements // max(1, n_embd) if embedding else integer("vocab_size", 0),
            n_embd=n_embd,
            n_ff=integer("feed_forward_length", 0),
            n_head=n_head,
            head_dim=key_dim,
            n_rot=integer("rope.dimension_count", key_dim),
            n_head_kv=n_head_kv,
            kv_values=heads * (key_dim + value_dim),
            has_pooling=f"{arch}.pooling_type" in metadata,
        )

    @property
    def n_q(self) -> int:
        return self.n_head * self.head_dim

    @property
    def row_bytes(self) -> int:
        """Of a token in a step: floats that are needed at the same time, and quantised forms of two bytes a column."""
        floats = self.n_embd + 2 * self.n_q + 2 * self.n_head_kv * self.head_dim + 2 * self.n_ff
        if self.arch in NORMED_TWICE and self.n_q != self.n_embd:
            floats += 2 * self.n_embd
        return 4 * floats + 2 * (self.n_embd + self.n_q + self.n_ff)

    @property
    def output_row_bytes(self) -> int:
        """The same of a token whose logits are wanted; the quantised forms have three bytes there."""
        if self.arch in ENCODERS:
            return 4 * self.n_embd
        return 4 * (3 * self.n_embd + 2 * self.n_ff + self.n_vocab) + 3 * (2 * self.n_embd + self.n_ff)

    def n_outputs(self, num_parallel: int) -> int:
        """Sequences that the engine has room for."""
        if self.arch in ENCODERS:
            return N_ENCODER_SEQUENCES
        return num_parallel + (N_VECTOR_SEQUENCES if self.has_pooling else N_SPARE_SEQUENCES)

    @property
    def thread_bytes(self) -> int:
        """Of each thread: the scratch of products, and that of attention."""
        return THREAD_BYTES + SEGMENT_QUERIES * (12 * self.head_dim + 1400)

    @property
    def position_bytes(self) -> float:
        """Of each position of a context: unfinished segments of attention, and tables of sines and cosines."""
        tables = 0 if self.arch == "bert" else 4 * self.n_rot * (2 if self.arch in NEAR_AND_FAR else 1)
        if self.arch in ENCODERS:
            return tables
        return tables + SEGMENT_ROWS * self.n_head * 4 * (32 + self.head_dim) / SEGMENT_POSITIONS


def _integer(value: Any, default: int, of_many: Callable[[Any], int]) -> int:
    """A number of a header, which an architecture may list for each layer; what is none is for the runner to refuse."""
    if isinstance(value, int):
        return value
    try:
        return of_many([int(item) for item in value])
    except (TypeError, ValueError):
        return default
