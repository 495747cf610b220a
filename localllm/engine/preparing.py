"""What loading a model takes, made beforehand: compiled kernels, repacked weights. It runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_cpu.compile import Kernel
from localllm.engine.backend import BackendOptions, Progress
from localllm.engine.tape_backend import needed_kernels, packed_weights
from localllm.gguf import GGUFFile, open_gguf
from localllm.models import build


@dataclass(frozen=True)
class Preparation:
    """A model that may be loaded later. `gguf` must stay open meanwhile."""

    gguf: GGUFFile
    options: BackendOptions

    @classmethod
    def of(
        cls,
        paths: Sequence[str],
        digest: str,
        kv_cache_type: str,
        cache_dir: Path,
        on_progress: Progress,
        with_adapters: bool = False,
    ) -> Preparation:
        """Reads the graph of a model, in its usual size: other sizes need the same.

        `with_adapters` says that LoRA adapters will be applied.

        Raises:
            GGUFError, UnsupportedModelError: the model cannot be built.
        """
        gguf = open_gguf(paths)
        options = BackendOptions(
            graph=build(gguf).graph,
            n_ctx=4096,
            n_batch=512,
            n_slots=5,
            n_pages=128,
            n_threads=0,
            kv_cache_type=kv_cache_type,
            cache_dir=cache_dir,
            model_digest=digest,
            on_progress=on_progress,
            with_adapters=with_adapters,
        )
        return cls(gguf, options)

    def kernels(self) -> list[Kernel]:
        """What a step calls. Raises: OptionError, KernelError."""
        return needed_kernels(self.options)

    def repack(self) -> None:
        """Makes the cache file of the weights, or checks the one that is there. Raises: KernelError."""
        packed_weights(self.options)
