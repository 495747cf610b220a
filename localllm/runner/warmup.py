"""Prepares what loading models takes, and loads none; it does not know who asks, or where progress goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_cpu import KernelError
from kernels_cpu.compile import Kernel, compile_to_disk, constraint_kernels, every_kernel
from localllm.engine.preparing import Preparation
from localllm.errors import LocalLLMError
from localllm.runner.model import Reporter

Send = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Warmup:
    """What to prepare: `models` have a `name`, `paths`, the `digest` of their weights, and `has_adapters`.

    With `repack` their weights are repacked, and a model that cannot be run is an error; without, they are whatever is
    in the store, and such a one is passed over. `all` is for the kernels of every type and operation.
    """

    models: list[dict[str, Any]]
    repack: bool
    all: bool
    cache_dir: str
    kv_cache_type: str

    def run(self, send: Send) -> None:
        """Sends progress (`status`, `completed`, `total`), and notes for people (`note`).

        Raises: LocalLLMError, KernelError, OSError.
        """
        report = Reporter(lambda message: send(_fields(message)))
        wanted: dict[str, Kernel] = {k.name: k for k in every_kernel()} if self.all else {}
        prepared: list[Preparation] = []
        for spec in self.models:
            try:
                one = self._prepare(spec, report)
                wanted |= {k.name: k for k in (*one.kernels(), *constraint_kernels())}
                prepared.append(one)
            except (LocalLLMError, KernelError) as error:
                if self.repack:
                    raise
                send({"note": f"passed over '{spec['name']}': {error}"})
        compile_to_disk(wanted.values(), lambda done, total: report("compiling kernels", done, total))
        if self.repack:
            for one in prepared:
                one.repack()
        send({"note": f"{len(wanted)} kernels are ready{self._for(len(prepared))}"})

    def _prepare(self, spec: dict[str, Any], report: Reporter) -> Preparation:
        with_adapters = bool(spec.get("has_adapters"))
        where = Path(self.cache_dir)
        return Preparation.of(spec["paths"], spec["digest"], self.kv_cache_type, where, report, with_adapters)

    def _for(self, n_models: int) -> str:
        if self.all:
            return ""
        weights = ", and their weights" if self.repack else ""
        return f" for {n_models} model{'' if n_models == 1 else 's'}{weights}"


def _fields(progress: Any) -> dict[str, Any]:
    return {"status": progress.status, "completed": progress.completed, "total": progress.total}
