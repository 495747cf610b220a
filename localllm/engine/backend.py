"""What computes a step for the engine, by name; the backends know pages and slots, and no sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernels_cpu.graph import Graph, LowRank, StepInputs

Bytes = npt.NDArray[np.uint8]

Progress = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class BackendOptions:
    """What a backend is made for; the sizes are those of the engine. `with_adapters` is for preparing kernels alone:
    a backend needs no such notice. `beside` is a backend whose threads this one may use too: it is closed after this
    one, and the two never run at the same time.
    """

    graph: Graph
    n_ctx: int
    n_batch: int
    n_slots: int
    n_pages: int
    n_threads: int
    kv_cache_type: str
    cache_dir: Path | None
    model_digest: str | None
    on_progress: Progress | None
    with_adapters: bool = False
    beside: Backend | None = None


class Backend(Protocol):
    """Runs steps over weights and a KV cache of its own."""

    @property
    def memory_bytes(self) -> int:
        """Memory for weights, KV cache and workspace."""

    @property
    def n_stages(self) -> int:
        """Stages that rows may go through in steps of their own (`StepInputs.staged`)."""

    def run(self, step: StepInputs) -> npt.NDArray[np.float32]:
        """Logits float32 [n_out, n_vocab], valid until the next call. Raises KernelError."""

    def run_hidden(self, step: StepInputs) -> npt.NDArray[np.float32]:
        """What stands for a text (see Graph.output), float32 [n_out, cols], valid until the next call. Raises
        KernelError."""

    def copy_page(self, of: int, to: int) -> None:
        """Copy the keys and values of a page, in all layers, to another."""

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys and values of a page, in all layers."""

    @property
    def kv_identity(self) -> str:
        """What these bytes depend on beside the model, the KV type, the adapters and the tokens up to the page's end: a
        text that changes with code and CPU path."""

    def read_page(self, page: int) -> Bytes:
        """A copy of the keys and values of a page, uint8 [page_bytes]. Any thread may read one that no step writes."""

    def write_page(self, page: int, content: Bytes) -> None:
        """Fill a page with what `read_page` gave."""

    def put_adapter(self, place: int, matrices: Mapping[str, LowRank]) -> int:
        """Fill a place with an adapter, by the names of the graph's `adapters.targets`; gives the bytes it takes.

        Another thread may run steps meanwhile that do not use the place; at the first call it may take some seconds.
        Raises KernelError.
        """

    def drop_adapter(self, place: int) -> None:
        """Empty a place, under the same condition."""

    def close(self) -> None:
        """Gives back threads and memory."""
