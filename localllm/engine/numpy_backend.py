"""The backend in plain NumPy: slow, with no compilation, and over the same pages as the compiled one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_cpu import cache_files
from kernels_cpu.graph import PAGE_POSITIONS, Graph, LowRank, StepInputs
from kernels_cpu.kv_rounding import KV_ROUNDINGS
from kernels_cpu.twin import Twin
from localllm.engine.backend import BackendOptions, Bytes

F32 = npt.NDArray[np.float32]


class PagedKV:
    """A KV cache in pages: for each layer keys and values [n_pages, 32, n_head_kv * head_dim].

    Of the types with fewer bits than float16 it holds float32 of the values that such a cache would give back.
    """

    def __init__(self, graph: Graph, n_pages: int, kv_type: str) -> None:
        self._rounding, self._layers = KV_ROUNDINGS[kv_type], graph.kv_layers
        dtype = np.float16 if kv_type == "f16" else np.float32
        self._pools: dict[int, npt.NDArray[Any]] = {
            layer: np.zeros((2, n_pages, PAGE_POSITIONS, kv.n_head_kv * kv.head_dim), dtype)
            for layer, kv in graph.kv_layers.items()
        }

    @property
    def n_bytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools.values())

    def write(self, layer: int, step: StepInputs, k: F32, v: F32) -> None:
        pages = step.page_tables[step.slots, step.positions // PAGE_POSITIONS]
        head_dim = self._layers[layer].head_dim
        rounded = np.stack([self._rounding.keys(k, head_dim), self._rounding.values(v, head_dim)])
        self._pools[layer][:, pages, step.positions % PAGE_POSITIONS] = rounded

    def copy(self, of: int, to: int) -> None:
        for pool in self._pools.values():
            pool[:, to] = pool[:, of]

    def content(self, page: int) -> Bytes:
        """A copy of a page, uint8: one layer after another."""
        parts = [pool[:, page].reshape(-1).view(np.uint8) for pool in self._pools.values()]
        return np.concatenate([np.zeros(0, np.uint8), *parts])

    def fill(self, page: int, content: Bytes) -> None:
        """Fill a page with what `content` gave of one."""
        for pool in self._pools.values():
            shape = pool[:, page].shape
            n_bytes = pool[:, page].nbytes
            pool[:, page] = content[:n_bytes].view(pool.dtype).reshape(shape)
            content = content[n_bytes:]

    def read(self, layer: int, step: StepInputs, slot: int, n_kv: int) -> tuple[F32, F32]:
        positions = np.arange(n_kv)
        pages = step.page_tables[slot, positions // PAGE_POSITIONS]
        k, v = self._pools[layer][:, pages, positions % PAGE_POSITIONS].astype(np.float32)
        return k, v


class NumpyBackend:
    """Evaluates the graph's twin; it uses neither a cache directory nor more threads than NumPy does."""

    def __init__(self, options: BackendOptions) -> None:
        self._kv = PagedKV(options.graph, options.n_pages, options.kv_cache_type)
        self._twin = Twin(options.graph, options.n_ctx, self._kv)

    @property
    def memory_bytes(self) -> int:
        n_elements = sum(weight.n_rows * weight.n_cols for weight in self._twin.graph.weights())
        return self._kv.n_bytes + 4 * n_elements

    @property
    def n_stages(self) -> int:
        return 1

    def run(self, step: StepInputs) -> F32:
        return self._twin.run(step)

    def run_hidden(self, step: StepInputs) -> F32:
        return self._twin.run_hidden(step)

    def copy_page(self, of: int, to: int) -> None:
        self._kv.copy(of, to)

    @property
    def page_bytes(self) -> int:
        return len(self._kv.content(0))

    @property
    def kv_identity(self) -> str:
        return f"numpy {np.__version__} {cache_files.code_digest()}"

    def read_page(self, page: int) -> Bytes:
        return self._kv.content(page)

    def write_page(self, page: int, content: Bytes) -> None:
        self._kv.fill(page, content)

    def put_adapter(self, place: int, matrices: Mapping[str, LowRank]) -> int:
        self._twin.adapters[place] = matrices
        return sum(pair.a.nbytes + pair.b.nbytes for pair in matrices.values())

    def drop_adapter(self, place: int) -> None:
        del self._twin.adapters[place]

    def close(self) -> None:
        """There is nothing to give back."""
