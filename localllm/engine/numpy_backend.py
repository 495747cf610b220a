"""The backend in plain NumPy: slow, with no compilation, and over the same pages as the compiled one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_cpu.graph import PAGE_POSITIONS, Graph, StepInputs
from kernels_cpu.twin import Twin
from localllm.engine.backend import BackendOptions
from localllm.errors import OptionError

F32 = npt.NDArray[np.float32]
KV_DTYPES: dict[str, npt.DTypeLike] = {"f32": np.float32, "f16": np.float16}


class PagedKV:
    """A KV cache in pages: for each layer keys and values [n_pages, 32, n_head_kv * head_dim]."""

    def __init__(self, graph: Graph, n_pages: int, dtype: npt.DTypeLike) -> None:
        self._pools: dict[int, npt.NDArray[Any]] = {
            layer: np.zeros((2, n_pages, PAGE_POSITIONS, kv.n_head_kv * kv.head_dim), dtype)
            for layer, kv in graph.kv_layers.items()
        }

    @property
    def n_bytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools.values())

    def write(self, layer: int, step: StepInputs, k: F32, v: F32) -> None:
        pages = step.page_tables[step.slots, step.positions // PAGE_POSITIONS]
        self._pools[layer][:, pages, step.positions % PAGE_POSITIONS] = np.stack([k, v])

    def read(self, layer: int, step: StepInputs, slot: int, n_kv: int) -> tuple[F32, F32]:
        positions = np.arange(n_kv)
        pages = step.page_tables[slot, positions // PAGE_POSITIONS]
        k, v = self._pools[layer][:, pages, positions % PAGE_POSITIONS].astype(np.float32)
        return k, v


class NumpyBackend:
    """Evaluates the graph's twin; it uses neither a cache directory nor more threads than NumPy does.

    Raises:
        OptionError: a KV cache type other than those of KV_DTYPES.
    """

    def __init__(self, options: BackendOptions) -> None:
        if options.kv_cache_type not in KV_DTYPES:
            raise OptionError(f"KV cache type: expected {' or '.join(KV_DTYPES)}, got {options.kv_cache_type!r}")
        self._kv = PagedKV(options.graph, options.n_pages, KV_DTYPES[options.kv_cache_type])
        self._twin = Twin(options.graph, options.n_ctx, self._kv)

    @property
    def memory_bytes(self) -> int:
        n_elements = sum(weight.n_rows * weight.n_cols for weight in self._twin.graph.weights())
        return self._kv.n_bytes + 4 * n_elements

    def run(self, step: StepInputs) -> F32:
        return self._twin.run(step)

    def close(self) -> None:
        """There is nothing to give back."""
