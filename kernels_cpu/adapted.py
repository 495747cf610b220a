"""Lowers a graph once more, with what LoRA adapters add to its products; it does not know which adapters there are.

The first part of a product's addition, A x, comes right after the product, which reads the same x. The second, B (A x),
needs all of the first, and comes after the last of the products that read x: so a layer waits once more for each group
of products. Everything else is as on the plain tape, whose memory this one shares: only one of them runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels_cpu.adapters import MAX_PER_ROW, AdapterTable, can_have_adapter
from kernels_cpu.fusion import Step, is_plain_product
from kernels_cpu.graph import Node, Value
from kernels_cpu.memory import untouched
from kernels_cpu.ops import lora
from kernels_cpu.tape import Lowering
from kernels_cpu.waiting import ALL, Access, Buffer, by_rows, columns_split

USUAL_RANK = 64
"""For counting memory that is touched as far as ranks go."""


class AdaptedLowering(Lowering):
    """A pass over the graph of a plain lowering, which has been run."""

    def __init__(self, plain: Lowering, table: AdapterTable) -> None:
        super().__init__(plain.graph, plain.weights, plain.sizes, plain.n_threads)
        self.share_memory(plain)
        self._table = table
        self._pending: list[Callable[[], None]] = []
        self._pending_source: Value | None = None
        self._scratch = 0

    def _finish_before(self, step: Step) -> None:
        continues = is_plain_product(step) and step.inputs[0] is self._pending_source
        if not continues:
            self._add_pending()

    def _lower(self, step: Step) -> None:
        super()._lower(step)
        if {self.graph.hidden, self.graph.logits} & {node.output for node in step.nodes.values()}:
            self._add_pending()

    def wanted(self, value: Value) -> tuple[bool, int]:
        """As on the plain tape, and as floats where an adapter reads it."""
        as_floats, bits = super().wanted(value)
        return as_floats or any(can_have_adapter(reader) for reader in self._readers[value]), bits

    def _linear(self, linear: Node, add: Node | None = None) -> None:
        super()._linear(linear, add)
        source, out = linear.inputs[0], self.buffer((add or linear).output)
        x, h = self.buffer(source), self._new_h(source.cols)
        count, n_blocks = self.step.count(source.rows), -(-source.cols // 32)
        where = self._where(linear)
        args = (count, x.address, x.stride, x.own, n_blocks, *where, h.address)
        reads = Access(x, ALL, few="own" if x.own else ALL)
        self.writer.add(lora.lora_down, args, [reads, Access(h, "rows", True, "segments")])

        n_units, (before, after) = -(-linear.output.cols // 32), self._shares[linear]

        def up() -> None:
            operands = (count, h.address, n_blocks, *where, out.address, out.stride, n_units, before, after)
            split = Access(out, columns_split(n_units, before, after), True)
            self.writer.add(lora.lora_up, (*operands, self._threads_scratch()), [Access(h, ALL), split])
            self._give_back("h", h)

        self._pending.append(up)
        self._pending_source = source

    def _add_pending(self) -> None:
        """Add the second parts of the products before."""
        for up in self._pending:
            up()
        self._pending.clear()
        self._pending_source = None

    def _embedding(self, node: Node) -> None:
        super()._embedding(node)
        out = self.buffer(node.output)
        operands = (self.at(self.step.ids), *self._where(node), out.address, out.stride, out.own)
        args = (self.step.count("n"), *operands, out.stride // 128, self._threads_scratch())
        self.writer.add(lora.lora_embedding, args, [by_rows(out, out.own > 0, writes=True)])

    def _where(self, node: Node) -> tuple[int, int, int]:
        """A matrix's entry in the table, the distance to that of the next place, and the list of applications."""
        rows = node.output.rows if node.op == "embedding" else node.inputs[0].rows
        return self._table.entry_address(node), self._table.place_bytes, self._table.applications_address(rows)

    def _new_h(self, n_cols: int) -> Buffer:
        """Memory for A x of all rows."""
        few = lora.FEW_ROWS * -(-n_cols // lora.SEGMENT)
        n_rows = MAX_PER_ROW * max(few, self.sizes.n_batch)
        free = [b for b in self._free.setdefault(("h", 0), []) if len(b.array) >= n_rows * lora.H_BYTES]
        if free:
            self._free["h", 0].remove(free[0])
            return free[0]
        array = untouched(n_rows * lora.H_BYTES)
        self.workspace_bytes += 4 * USUAL_RANK * max(few, self.sizes.n_batch)
        self.keep.append(array)
        return Buffer(array, 0)

    def _threads_scratch(self) -> int:
        if not self._scratch:
            self._scratch = self._hold(untouched(self.n_threads * lora.UP_SCRATCH_BYTES))
        return self._scratch
