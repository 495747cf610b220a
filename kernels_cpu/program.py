"""A graph as compiled kernels that run: a tape, another for rows with adapters, threads, workspace and KV cache.

It knows neither how a graph becomes a tape nor what a kernel computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kernels_cpu.adapted import AdaptedLowering
from kernels_cpu.adapters import MAX_PER_ROW, AdapterTable, PackedAdapter
from kernels_cpu.compile import Kernel, compile_all
from kernels_cpu.graph import Graph, StagedRows, StepInputs
from kernels_cpu.kv_pages import KVPages
from kernels_cpu.staged import run_staged
from kernels_cpu.tape import Lowering, TapeSizes
from kernels_cpu.team import ROUTINES, Team
from kernels_cpu.waiting import Buffer
from kernels_cpu.weights import PackedWeights

Progress = Callable[[int, int], None]


def kernels_of(graph: Graph, sizes: TapeSizes, n_threads: int, with_adapters: bool = False) -> list[Kernel]:
    """The kernels that a graph's program calls; its weights are not looked at.

    Raises: KernelError when something in the graph has no kernel.
    """
    nowhere = PackedWeights(np.zeros(1, np.uint8), defaultdict(int))
    lowering = Lowering(graph, nowhere, sizes, n_threads)
    lowering.run()
    if with_adapters:
        lowering = AdaptedLowering(lowering, AdapterTable(graph, 0))
        lowering.run()
    return [*lowering.writer.kernels(), *ROUTINES]


class _Tape:
    """A lowered graph, compiled: its rows, and where its results are."""

    def __init__(self, lowering: Lowering, progress: Progress | None) -> None:
        graph = lowering.graph
        self.logits = _floats(lowering.run(), graph.n_vocab)
        compile_all([*lowering.writer.kernels(), *ROUTINES], progress)
        self.lines = lowering.writer.tape()
        self.cuts = lowering.cuts
        self.lines_hidden = self.lines[: lowering.n_rows_hidden]
        self.hidden = self.logits
        if graph.hidden is not None and lowering.hidden is not None:
            self.hidden = _floats(lowering.hidden, graph.hidden.cols)


class TapeProgram:
    """A graph as compiled kernels with memory of their own: workspace and KV cache, the latter as `kv_pages` too."""

    def __init__(
        self,
        graph: Graph,
        weights: PackedWeights,
        sizes: TapeSizes,
        n_threads: int,
        progress: Progress | None = None,
        beside: TapeProgram | None = None,
    ) -> None:
        """Lowers and compiles; `progress(done, total)` counts kernels that were not in the disk cache. `beside` is a
        program whose threads this one uses too: it must outlive this one, and the two never run at the same time.

        Raises: KernelError when something in the graph has no kernel.
        """
        self._owns_team = beside is None
        self._team: Team = Team(n_threads) if beside is None else beside._team
        self._lowering = Lowering(graph, weights, sizes, self._team.n_threads)
        self._plain = _Tape(self._lowering, progress)
        self._adapted: _Tape | None = None
        self._table: AdapterTable | None = None
        self._step = self._lowering.step
        self._base_bytes = weights.nbytes + self._lowering.kv_bytes + self._lowering.workspace_bytes
        self.kv_pages = KVPages(self._lowering.kv_layers())

    @property
    def tape(self) -> npt.NDArray[np.int64]:
        """The rows for steps without adapters."""
        return self._plain.lines

    @property
    def memory_bytes(self) -> int:
        """Memory for weights, KV cache, workspace and adapters."""
        return self._base_bytes + (self._table.nbytes if self._table else 0)

    @property
    def n_stages(self) -> int:
        """Stages that rows may go through in steps of their own."""
        return len(self._plain.cuts) + 1

    def prepare_adapters(self, progress: Progress | None = None) -> None:
        """Make what steps with adapters run on, if it is not there yet; other threads may run steps meanwhile."""
        if self._adapted is None:
            graph, sizes = self._lowering.graph, self._lowering.sizes
            self._table = AdapterTable(graph, MAX_PER_ROW * sizes.n_slots)
            lowering = AdaptedLowering(self._lowering, self._table)
            self._adapted = _Tape(lowering, progress)
            self._base_bytes += lowering.workspace_bytes

    def put_adapter(self, place: int, adapter: PackedAdapter | None) -> None:
        """Fill a place in 0 .. PLACES - 1, or empty it, after `prepare_adapters`.

        Other threads may run steps meanwhile that do not use it.
        """
        assert self._table is not None, "adapters were not prepared"
        self._table.put(place, adapter)

    def run(self, step: StepInputs) -> npt.NDArray[np.float32]:
        """Logits float32 [n_out, n_vocab], valid until the next call."""
        n, n_out = self._step.set(step)
        tape = self._adapted_to(step, n) if step.adaptations else self._plain
        if step.staged is None:
            self._team.run(tape.lines, n)
        else:
            self._run_staged(tape, step, step.staged)
        return tape.logits[:n_out]

    def _run_staged(self, tape: _Tape, step: StepInputs, staged: StagedRows) -> None:
        def run(first: int, end: int, n: int) -> None:
            self._step.counts[0] = n
            if step.adaptations:
                self._adapted_to(step, n)
            self._team.run(tape.lines, n, first, end)

        run_staged(tape.cuts, len(tape.lines), len(step.ids), staged, self._team.n_threads, run)

    def run_hidden(self, step: StepInputs) -> npt.NDArray[np.float32]:
        """What stands for a text (see Graph.output), float32 [n_out, cols], valid until the next call."""
        n, n_out = self._step.set(step)
        tape = self._adapted_to(step, n) if step.adaptations else self._plain
        self._team.run(tape.lines_hidden, n)
        return tape.hidden[:n_out]

    def _adapted_to(self, step: StepInputs, n: int) -> _Tape:
        """The tape for adapters, once these are told what they do to the first n rows."""
        assert self._adapted is not None and self._table is not None, "adapters were not prepared"
        adaptations = tuple(replace(one, end=min(one.end, n)) for one in step.adaptations if one.first < n)
        self._table.set(adaptations, step.output_rows)
        return self._adapted

    def close(self) -> None:
        """End the threads, unless they are another's."""
        if self._owns_team:
            self._team.close()


def _floats(buffer: Buffer, n_cols: int) -> npt.NDArray[np.float32]:
    """A buffer as float32 [rows, n_cols]."""
    n_floats = len(buffer.array) // buffer.stride * (buffer.stride // 4)
    return buffer.array.view(np.float32)[:n_floats].reshape(-1, buffer.stride // 4)[:, :n_cols]
