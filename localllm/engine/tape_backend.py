"""The compiled backend: packed weights and a tape of kernels. It knows pages and slots, and no sequences."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import psutil

from kernels_cpu.adapters import PackedAdapter, targets
from kernels_cpu.compile import Kernel, default_cache_dir, source_hash
from kernels_cpu.graph import LowRank, StepInputs
from kernels_cpu.memory import give_back_code
from kernels_cpu.program import TapeProgram, kernels_of
from kernels_cpu.tape import TapeSizes
from kernels_cpu.weights import PackedWeights, WeightCache, pack_weights
from localllm import env
from localllm.engine.backend import BackendOptions, Bytes


def default_threads() -> int:
    """Physical cores among those that this process may use; all of these where the system does not tell."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def packed_weights(options: BackendOptions) -> PackedWeights:
    """The weights of a model interleaved, in a cache file where that can be. Raises: KernelError."""
    report = options.on_progress or (lambda status, done, total: None)
    cache = None
    if options.model_digest:
        folder = options.cache_dir or default_cache_dir()
        cache = WeightCache(folder, options.model_digest, env.weight_cache_max())
    return pack_weights(options.graph.weights(), cache, lambda done, total: report("repacking weights", done, total))


def needed_kernels(options: BackendOptions) -> list[Kernel]:
    """The kernels that a backend would compile. Raises: as TapeBackend."""
    return kernels_of(options.graph, _sizes(options), options.n_threads or default_threads(), options.with_adapters)


def _sizes(options: BackendOptions) -> TapeSizes:
    return TapeSizes(options.n_ctx, options.n_batch, options.n_slots, options.n_pages, options.kv_cache_type)


class TapeBackend:
    """Compiles what the graph needs and keeps its weights interleaved.

    Raises:
        KernelError: a quant type that has no kernels.
    """

    def __init__(self, options: BackendOptions) -> None:
        sizes = _sizes(options)
        report = options.on_progress or (lambda status, done, total: None)
        self._targets = targets(options.graph)
        self._program: TapeProgram = TapeProgram(
            options.graph,
            packed_weights(options),
            sizes,
            options.n_threads or default_threads(),
            lambda done, total: report("compiling kernels", done, total),
            options.beside._program if isinstance(options.beside, TapeBackend) else None,
        )
        give_back_code()  # the compiler, which nobody needs any more, and what only importing took

    @property
    def memory_bytes(self) -> int:
        return self._program.memory_bytes

    @property
    def n_stages(self) -> int:
        return self._program.n_stages

    def run(self, step: StepInputs) -> npt.NDArray[np.float32]:
        return self._program.run(step)

    def run_hidden(self, step: StepInputs) -> npt.NDArray[np.float32]:
        return self._program.run_hidden(step)

    def copy_page(self, of: int, to: int) -> None:
        self._program.kv_pages.copy(of, to)

    @property
    def page_bytes(self) -> int:
        return self._program.kv_pages.page_bytes

    @property
    def kv_identity(self) -> str:
        return source_hash()

    def read_page(self, page: int) -> Bytes:
        return self._program.kv_pages.read(page)

    def write_page(self, page: int, content: Bytes) -> None:
        self._program.kv_pages.write(page, content)

    def put_adapter(self, place: int, matrices: Mapping[str, LowRank]) -> int:
        packed = PackedAdapter(self._targets, matrices)
        self._program.prepare_adapters()
        self._program.put_adapter(place, packed)
        return packed.nbytes

    def drop_adapter(self, place: int) -> None:
        self._program.put_adapter(place, None)

    def close(self) -> None:
        self._program.close()
