"""What a model will take in memory, and what the machine has left; it knows nothing of processes.

The figures are for a decision before loading; the runner reports what it really took.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from localllm.gguf.header import Header
from localllm.messages import LoadRequest

KV_BYTES_PER_VALUE = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
WORKSPACE_BYTES = 256 << 20
KV_CACHE_SHARE = 0.25
"""What of the memory beside weights and workspace the KV cache may take beyond one whole context."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a model's weights, of its KV cache for each token of context, and of everything else."""

    weights_bytes: int
    kv_bytes_per_token: float
    workspace_bytes: int = WORKSPACE_BYTES
    n_ctx_train: int = 0

    def total_bytes(self, num_kv: int) -> int:
        """Bytes with a KV cache of `num_kv` tokens."""
        return self.weights_bytes + self.workspace_bytes + int(num_kv * self.kv_bytes_per_token)

    def capped(self, num_ctx: int) -> int:
        """A context of at most the trained length."""
        return min(num_ctx, self.n_ctx_train) if self.n_ctx_train else num_ctx

    def num_kv(self, num_ctx: int, num_parallel: int, free_bytes: int) -> int:
        """Tokens of the KV cache: a whole context, and more, up to one for each sequence, where a share of what is
        free holds them."""
        n_ctx = self.capped(num_ctx)
        if not self.kv_bytes_per_token:
            return n_ctx
        left = max(0, free_bytes - self.total_bytes(0))
        return max(n_ctx, min(n_ctx * num_parallel, int(left * KV_CACHE_SHARE / self.kv_bytes_per_token)))


def estimate(want: LoadRequest) -> MemoryEstimate:
    """The estimate for a model, from its files' sizes and its header; reads the disk. Raises: GGUFError, OSError."""
    paths = [*want.model.model_paths, *(str(adapter["path"]) for adapter in want.model.adapters)]
    weights_bytes = sum(Path(path).stat().st_size for path in paths)
    with Header(want.model.model_path) as header:
        metadata = header.metadata
        arch = str(metadata.get("general.architecture", ""))
        kv_values = _kv_values_per_token(metadata, arch)
        n_ctx_train = _integer(metadata, f"{arch}.context_length", 0)
    return MemoryEstimate(weights_bytes, kv_values * KV_BYTES_PER_VALUE[want.kv_cache_type], n_ctx_train=n_ctx_train)


def _kv_values_per_token(metadata: dict[str, Any], arch: str) -> int:
    n_layer = _integer(metadata, f"{arch}.block_count", 0)
    n_embd = _integer(metadata, f"{arch}.embedding_length", 0)
    n_head = max(1, _integer(metadata, f"{arch}.attention.head_count", 1))
    head_dim = n_embd // n_head
    key_dim = _integer(metadata, f"{arch}.attention.key_length", head_dim)
    value_dim = _integer(metadata, f"{arch}.attention.value_length", head_dim)
    n_head_kv = metadata.get(f"{arch}.attention.head_count_kv", n_head)
    heads = n_layer * n_head_kv if isinstance(n_head_kv, int) else _sum(n_head_kv, n_layer * n_head)
    return heads * (key_dim + value_dim)


def _sum(values: Any, default: int) -> int:
    """The sum of a list; what is none, or of no numbers, is for the runner to refuse."""
    try:
        return sum(int(item) for item in values)
    except (TypeError, ValueError):
        return default


def _integer(metadata: dict[str, Any], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if isinstance(value, int):
        return value
    # An architecture may list a value for each layer.
    try:
        return max((int(item) for item in value), default=default)
    except (TypeError, ValueError):
        return default


def available_bytes() -> int:
    """Bytes that can be had without swapping, within this process's control group as well."""
    available = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        reclaimable = _cgroup_file_bytes()
        available = min(available, max(0, limit - used + reclaimable))
    return available


def _cgroup_file_bytes() -> int:
    for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "file":
            return int(value)
    return 0
