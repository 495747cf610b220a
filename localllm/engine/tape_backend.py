"""The compiled backend: packed weights and a tape of kernels. It knows pages and slots, and no sequences."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import psutil

from kernels_cpu.compile import default_cache_dir
from kernels_cpu.graph import StepInputs
from kernels_cpu.tape import TapeProgram, TapeSizes
from kernels_cpu.weights import WeightCache, pack_weights
from localllm import env
from localllm.engine.backend import BackendOptions
from localllm.errors import OptionError


def default_threads() -> int:
    """Physical cores among those that this process may use; all of these where the system does not tell."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


class TapeBackend:
    """Compiles what the graph needs and keeps its weights interleaved, in a cache file where that can be.

    Raises:
        OptionError: a KV cache type other than f16.
        KernelError: a quant type that has no kernels.
    """

    def __init__(self, options: BackendOptions) -> None:
        if options.kv_cache_type != "f16":
            raise OptionError(f"KV cache type: expected f16, got {options.kv_cache_type!r}")
        report = options.on_progress or (lambda status, done, total: None)
        cache = None
        if options.model_digest:
            folder = options.cache_dir or default_cache_dir()
            cache = WeightCache(folder, options.model_digest, env.weight_cache_max())
        weights = pack_weights(
            options.graph.weights(), cache, lambda done, total: report("repacking weights", done, total)
        )
        sizes = TapeSizes(options.n_ctx, options.n_batch, options.n_slots, options.n_pages)
        self._program = TapeProgram(
            options.graph,
            weights,
            sizes,
            options.n_threads or default_threads(),
            lambda done, total: report("compiling kernels", done, total),
        )

    @property
    def memory_bytes(self) -> int:
        return self._program.memory_bytes

    def run(self, step: StepInputs) -> npt.NDArray[np.float32]:
        return self._program.run(step)

    def close(self) -> None:
        self._program.close()
