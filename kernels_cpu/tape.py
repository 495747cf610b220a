"""Lowers a graph to a tape of compiled kernels, and runs it.

Three things happen on the way. Activations are quantised once for all the products that read them.
An addition whose operand is a product becomes the product's epilogue. Barriers are put only where a
thread would read what another writes: each operand of a row says how its threads divide it, and
two rows that divide it alike need not wait for each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_cpu import KernelError
from kernels_cpu.compile import Kernel, compile_all
from kernels_cpu.graph import PAGE_POSITIONS, Graph, Node, RopeSpec, StepInputs, Value, Vector
from kernels_cpu.linear import act_row_bytes
from kernels_cpu.ops import COLUMNS, ROWS, attention, elementwise, gate, kv, norm, quantize, rope
from kernels_cpu.ops.kv import kv_page_bytes
from kernels_cpu.packing import packed_shape
from kernels_cpu.team import BARRIER_AFTER, FIRST_ARGUMENT, KERNEL, Team
from kernels_cpu.weights import PackedWeights

Array = npt.NDArray[Any]

ACTIVATION_BITS = {"n": 8, "n_out": 16}
"""Bits of the activations of products. Rows whose logits are wanted are few, and their product is bound by
memory: there the second multiply-add costs nothing, and takes a third off the distance to exact arithmetic."""


def float_bits(x: float) -> int:
    """A float32 as a tape row carries it."""
    return int(struct.unpack("<i", struct.pack("<f", x))[0])


@dataclass(eq=False)
class Buffer:
    """Memory of the workspace: `n_rows` rows, `stride` bytes apart. Zeros at first; pad columns stay zero."""

    array: Array
    stride: int

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)


@dataclass(frozen=True)
class Access:
    """That a row of the tape touches a buffer, and how its threads divide it.

    `split` names the division; rows with the same split of a buffer touch the same part of it in the same
    thread. "all" means that every thread touches everything.
    """

    buffer: Buffer
    split: str
    writes: bool = False


@dataclass
class Row:
    """A row of the tape before it has addresses of code; `calls` are kernels it calls, its last arguments."""

    kernel: Kernel
    args: tuple[int, ...]
    calls: tuple[Kernel, ...] = ()
    barrier: bool = False


@dataclass
class _Touched:
    """What has happened to a buffer since the last barrier."""

    readers: set[str] = field(default_factory=set)
    writers: set[str] = field(default_factory=set)

    def conflicts(self, access: Access) -> bool:
        others = self.writers | self.readers if access.writes else self.writers
        return any(split != access.split or split == "all" for split in others)


class TapeWriter:
    """Collects rows and finds where they must wait."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._touched: dict[Buffer, _Touched] = {}
        self._freed: list[Callable[[], None]] = []

    def add(
        self, kernel: Kernel, args: tuple[int, ...], accesses: list[Access], calls: tuple[Kernel, ...] = ()
    ) -> None:
        """Append a row; the row before gets a barrier if this one depends on other threads' work."""
        if any(self._touched[a.buffer].conflicts(a) for a in accesses if a.buffer in self._touched):
            self.barrier()
        for a in accesses:
            touched = self._touched.setdefault(a.buffer, _Touched())
            (touched.writers if a.writes else touched.readers).add(a.split)
        self.rows.append(Row(kernel, args, calls))

    def last_split(self, buffer: Buffer) -> str | None:
        """How the rows since the last barrier that wrote the buffer divide it; None if there was none."""
        touched = self._touched.get(buffer)
        return next(iter(touched.writers), None) if touched else None

    def barrier(self) -> None:
        """Let all threads meet after the last row; what was released may be used again from here on."""
        self.rows[-1].barrier = True
        self._touched.clear()
        for free in self._freed:
            free()
        self._freed.clear()

    def after_barrier(self, action: Callable[[], None]) -> None:
        """Call `action` at the next barrier."""
        self._freed.append(action)

    def tape(self) -> npt.NDArray[np.int64]:
        """The rows as int64 [n_rows, words]. Compiles what is not compiled yet."""
        words = FIRST_ARGUMENT + max(len(row.args) + len(row.calls) for row in self.rows)
        tape = np.zeros((len(self.rows), -(-words // 8) * 8), np.int64)
        for line, row in zip(tape, self.rows, strict=True):
            line[KERNEL], line[BARRIER_AFTER] = row.kernel.address(), row.barrier
            args = (*row.args, *(called.address() for called in row.calls))
            line[FIRST_ARGUMENT : FIRST_ARGUMENT + len(args)] = args
        return tape


@dataclass(frozen=True)
class TapeSizes:
    """Limits of a program: positions of a sequence, rows of a step, sequence slots, pages of the KV cache."""

    n_ctx: int
    n_batch: int
    n_slots: int
    n_pages: int

    @property
    def max_pages(self) -> int:
        """Entries of a slot's page table."""
        return -(-self.n_ctx // PAGE_POSITIONS)


class _StepArrays:
    """The step's inputs at addresses that do not change."""

    def __init__(self, sizes: TapeSizes) -> None:
        self.counts = np.zeros(16, np.int64)  # n at word 0, n_out at word 8: a cache line each
        self.ids, self.positions, self.slots, self.output_rows = (np.zeros(sizes.n_batch, np.int32) for _ in range(4))
        self.page_tables = np.zeros((sizes.n_slots, sizes.max_pages), np.int32)

    def set(self, step: StepInputs) -> tuple[int, int]:
        """Copy a step in; gives n and n_out."""
        n, n_out = len(step.ids), len(step.output_rows)
        self.counts[0], self.counts[8] = n, n_out
        self.ids[:n], self.positions[:n], self.slots[:n] = step.ids, step.positions, step.slots
        self.output_rows[:n_out] = step.output_rows
        self.page_tables[: len(step.page_tables), : step.page_tables.shape[1]] = step.page_tables
        return n, n_out

    def count(self, rows: str) -> int:
        """The address of the word that counts the rows of a value."""
        return int(self.counts.ctypes.data) + (0 if rows == "n" else 64)


class _Lowering:
    """One pass over a graph; afterwards `writer` has the tape and `keep` what its addresses point to."""

    def __init__(self, graph: Graph, weights: PackedWeights, sizes: TapeSizes, n_threads: int) -> None:
        self.graph, self.weights, self.sizes, self.n_threads = graph, weights, sizes, n_threads
        self.writer = TapeWriter()
        self.step = _StepArrays(sizes)
        self.keep: list[Array] = []
        self.kv_bytes = 0
        self.workspace_bytes = 0
        self._values: dict[Value, Buffer] = {}
        self._quantised: dict[Value, Buffer] = {}
        self._free: dict[tuple[str, int], list[Buffer]] = {}
        self._vectors: dict[tuple[Vector, int], int] = {}
        self._rope_tables: dict[tuple[RopeSpec, int], tuple[int, int]] = {}
        self._scratches: dict[tuple[int, int, int], tuple[Buffer, tuple[int, ...]]] = {}
        self._last_use = _last_uses(graph)
        self._epilogues = _find_epilogues(graph)

    def run(self) -> Buffer:
        """Lower every node; gives the buffer of the logits."""
        absorbed = set(self._epilogues.values())
        for node in self.graph.nodes:
            if node not in absorbed:
                lower = getattr(self, f"_{node.op}", None)
                if lower is None:
                    raise KernelError(f"tape: no kernel for the operation `{node.op}`")
                lower(node)
                self._release(node.output.index, self._values[self._epilogues.get(node, node).output])
        if self.graph.logits is None:
            raise KernelError("graph: expected a call of `output`, got none")
        self.writer.barrier()
        return self._values[self.graph.logits]

    # ------------------------------------------------------------------ memory

    def _hold(self, array: Array) -> int:
        self.keep.append(array)
        return int(array.ctypes.data)

    def _new(self, kind: str, stride: int) -> Buffer:
        free = self._free.setdefault((kind, stride), [])
        if free:
            return free.pop()
        array = np.zeros(self.sizes.n_batch * stride + 64, np.uint8)
        # Memory that is never touched is never had: as a rule one row of a sequence is an output.
        n_touched = self.sizes.n_slots if kind.endswith("n_out") else self.sizes.n_batch
        self.workspace_bytes += n_touched * stride
        self.keep.append(array)
        return Buffer(array[-array.ctypes.data % 64 :], stride)

    def _output(self, node: Node, in_place_of: Value | None = None) -> Buffer:
        """The buffer for a node's result: that of an input which nobody reads any more, or another."""
        value = node.output
        stride = 128 * -(-value.cols // 32)
        if in_place_of is not None and self._dies_at(in_place_of, node):
            buffer = self._values[in_place_of]
            if buffer.stride == stride and in_place_of.rows == value.rows:
                self._values[value] = buffer
                return buffer
        self._values[value] = self._new(value.rows, stride)
        return self._values[value]

    def _dies_at(self, value: Value, node: Node) -> bool:
        return self._last_use.get(value, -1) <= node.output.index and value not in self._quantised

    def _release(self, index: int, live: Buffer) -> None:
        """Give back the buffers of values last read by node `index`, once all threads are past it; but not `live`."""
        for value in [v for v, last in self._last_use.items() if last == index and v in self._values]:
            buffer = self._values.pop(value)
            if buffer is not live:
                self._give_back(value.rows, buffer)
            if value in self._quantised:
                self._give_back(f"q8 {value.rows}", self._quantised.pop(value))

    def _give_back(self, kind: str, buffer: Buffer) -> None:
        free = self._free.setdefault((kind, buffer.stride), [])
        self.writer.after_barrier(lambda: free.append(buffer))

    def _vector(self, vector: Vector, n: int) -> int:
        """The address of a vector, padded with zeros to n elements."""
        key = (vector, n)
        if key not in self._vectors:
            padded = np.zeros(n, np.float32)
            padded[: vector.size] = vector.data
            self._vectors[key] = self._hold(padded)
        return self._vectors[key]

    # ---------------------------------------------------------------- operations

    def _embedding(self, node: Node) -> None:
        weight = node.attrs["weight"]
        shape, out = packed_shape(weight), self._output(node)
        ids = int(self.step.ids.ctypes.data)
        w = self.weights.address(weight.name)
        args = (self._count(node), ids, w, shape.n_blocks, shape.group_bytes, out.address, out.stride)
        self.writer.add(shape.quant.embedding, args, [Access(out, "rows", True)])

    def _linear(self, node: Node) -> None:
        """A product, with the addition that follows it where only that reads it."""
        weight, bias = node.attrs["weight"], node.attrs["bias"]
        shape, source = packed_shape(weight), node.inputs[0]
        bits = ACTIVATION_BITS[source.rows]
        x = self._values[source] if shape.quant.takes_floats else self._quantise(source, bits)
        sum_node = self._epilogues.get(node)
        residual = None
        if sum_node is None:
            out = self._output(node)
        else:
            addend = next(v for v in sum_node.inputs if v is not node.output)
            residual = self._values[addend]
            out = self._output(sum_node, in_place_of=addend)
            self._values[node.output] = out
        args = (
            self._count(node),
            x.address,
            x.stride,
            self.weights.address(weight.name),
            out.address,
            out.stride,
            shape.n_blocks,
            shape.group_bytes,
            shape.n_groups,
            self._vector(bias, shape.n_groups * 16) if bias else 0,
            residual.address if residual else 0,
        )
        columns = f"columns{shape.n_groups // 2}"
        accesses = [Access(x, "all"), Access(out, columns, True)]
        if residual:
            accesses.append(Access(residual, columns))
        self.writer.add(shape.quant.linear if bits == 8 else shape.quant.linear_16, args, accesses)
        if sum_node is not None:
            self._release(sum_node.output.index, out)

    def _quantise(self, value: Value, bits: int) -> Buffer:
        """The quantised form of a value, made at its first use."""
        if value not in self._quantised:
            x = self._values[value]
            n_blocks = -(-value.cols // 32)
            out = self._new(f"q8 {value.rows}", act_row_bytes(value.cols, bits))
            # Go on dividing the value as the row that made it did: then there is nothing to wait for.
            by_rows = self.writer.last_split(x) == "rows"
            split = "rows" if by_rows else f"columns{n_blocks}"
            mode = ROWS if by_rows else COLUMNS
            args = (self.step.count(value.rows), x.address, x.stride, out.address, out.stride, n_blocks, mode)
            kernel = quantize.quantize_q8 if bits == 8 else quantize.quantize_q16
            self.writer.add(kernel, args, [Access(x, split), Access(out, split, True)])
            self._quantised[value] = out
        return self._quantised[value]

    def _rms_norm(self, node: Node) -> None:
        x = self._values[node.inputs[0]]
        out = self._output(node, in_place_of=node.inputs[0])
        n_cols = node.output.cols
        w = self._vector(node.attrs["w"], 32 * -(-n_cols // 32))
        args = (self._count(node), x.address, x.stride, w, out.address, out.stride, n_cols)
        accesses = [Access(x, "rows"), Access(out, "rows", True)]
        self.writer.add(norm.rms_norm, (*args, float_bits(node.attrs["eps"])), accesses)

    def _head_norm(self, node: Node) -> None:
        x = self._values[node.inputs[0]]
        out = self._output(node, in_place_of=node.inputs[0])
        head_dim = node.attrs["head_dim"]
        n_heads = node.output.cols // head_dim
        w = self._vector(node.attrs["w"], 32 * -(-head_dim // 32))
        args = (self._count(node), x.address, x.stride, w, out.address, out.stride, n_heads, head_dim)
        split = f"heads{n_heads}"
        accesses = [Access(x, split), Access(out, split, True)]
        self.writer.add(norm.head_norm, (*args, float_bits(node.attrs["eps"])), accesses)

    def _rope(self, node: Node) -> None:
        x = self._values[node.inputs[0]]
        out = self._output(node, in_place_of=node.inputs[0])
        head_dim, n_rot = node.attrs["head_dim"], node.attrs["n_rot"]
        n_heads = node.output.cols // head_dim
        kernel = rope.rope_interleaved if node.attrs["pairing"] == "interleaved" else rope.rope_half
        positions = int(self.step.positions.ctypes.data)
        args = (self._count(node), x.address, x.stride, out.address, out.stride, n_heads, head_dim, n_rot, positions)
        split = f"heads{n_heads}"
        accesses = [Access(x, split), Access(out, split, True)]
        self.writer.add(kernel, (*args, *self._rope_table(node.attrs["freqs"], n_rot)), accesses)

    def _rope_table(self, spec: RopeSpec, n_rot: int) -> tuple[int, int]:
        """Addresses of the cosines and sines of all positions."""
        key = (spec, n_rot)
        if key not in self._rope_tables:
            cos, sin = (np.ascontiguousarray(t) for t in spec.tables(n_rot, self.sizes.n_ctx))
            self._rope_tables[key] = self._hold(cos), self._hold(sin)
        return self._rope_tables[key]

    def _attention(self, node: Node) -> None:
        """Write keys and values into the cache, attend in parts, and merge the parts."""
        q, k, v = (self._values[x] for x in node.inputs)
        n_head, n_head_kv, head_dim = (node.attrs[key] for key in ("n_head", "n_head_kv", "head_dim"))
        out = self._output(node)
        page_bytes = kv_page_bytes(n_head_kv, head_dim)
        cache = self._cache(page_bytes)
        places = (self._at(self.step.positions), self._at(self.step.slots), self._at(self.step.page_tables))
        where = (*places, self.sizes.max_pages)
        shape = (cache.address, page_bytes)
        heads_kv = f"kv{n_head_kv}"
        self.writer.add(
            kv.kv_write,
            (self._count(node), k.address, k.stride, v.address, v.stride, *shape, n_head_kv, head_dim, *where),
            [Access(k, heads_kv), Access(v, heads_kv), Access(cache, heads_kv, True)],
        )
        numbers = (float_bits(node.attrs["scale"]), node.attrs["window"], float_bits(node.attrs["softcap"]))
        heads = (n_head, n_head_kv, head_dim)
        operands = (self._count(node), q.address, q.stride, out.address, out.stride, *shape, *heads)
        scratch, words = self._attention_scratch(n_head, n_head_kv, head_dim)
        args = (*operands, *where, *numbers, *words)
        partial = [
            Access(q, "all"),
            Access(cache, "all"),
            Access(out, "attention", True),
            Access(scratch, "parts", True),
        ]
        self.writer.add(attention.attention_partial, args, partial, (attention.attention_tile,))
        merge = [Access(scratch, "all", True), Access(out, f"heads{n_head}", True)]
        self.writer.add(attention.attention_merge, args, merge)

    def _cache(self, page_bytes: int) -> Buffer:
        """The pages of one layer."""
        array = np.zeros(self.sizes.n_pages * page_bytes + 64, np.uint8)
        self.kv_bytes += array.nbytes
        self.keep.append(array)
        return Buffer(array[-array.ctypes.data % 64 :], page_bytes)

    def _attention_scratch(self, n_head: int, n_head_kv: int, head_dim: int) -> tuple[Buffer, tuple[int, ...]]:
        """Scratch memory, shared by the layers of one shape, and the arguments that describe it."""
        key = (n_head, n_head_kv, head_dim)
        if key not in self._scratches:
            layout = attention.AttentionScratch(self.n_threads, self.sizes.n_ctx, *key)
            array = np.zeros(layout.n_bytes + 64, np.uint8)
            self.workspace_bytes += array.nbytes
            self.keep.append(array)
            buffer = Buffer(array[-array.ctypes.data % 64 :], 0)
            words = (buffer.address, layout.thread_bytes, buffer.address + layout.partials_offset, layout.n_segments)
            self._scratches[key] = buffer, words
        return self._scratches[key]

    @staticmethod
    def _at(array: Array) -> int:
        return int(array.ctypes.data)

    def _elementwise(self, node: Node, kernel: Kernel, *numbers: int) -> None:
        inputs = [self._values[v] for v in node.inputs]
        out = self._output(node, in_place_of=node.inputs[0])
        operands = [word for b in (*inputs, out) for word in (b.address, b.stride)]
        split = f"flat{-(-node.output.cols // 32)}"
        accesses = [*(Access(b, split) for b in inputs), Access(out, split, True)]
        self.writer.add(kernel, (self._count(node), *operands, node.output.cols, *numbers), accesses)

    def _add(self, node: Node) -> None:
        self._elementwise(node, elementwise.add)

    def _scale(self, node: Node) -> None:
        self._elementwise(node, elementwise.scale, float_bits(node.attrs["c"]))

    def _softcap(self, node: Node) -> None:
        self._elementwise(node, elementwise.softcap, float_bits(node.attrs["c"]))

    def _gate(self, node: Node, kernel: Kernel) -> None:
        inputs = [self._values[v] for v in node.inputs]
        out = self._output(node, in_place_of=node.inputs[0])
        operands = [word for b in (*inputs, out) for word in (b.address, b.stride)]
        split = f"columns{-(-node.output.cols // 32)}"
        accesses = [*(Access(b, split) for b in inputs), Access(out, split, True)]
        self.writer.add(kernel, (self._count(node), *operands, node.output.cols, COLUMNS), accesses)

    def _swiglu(self, node: Node) -> None:
        self._gate(node, gate.swiglu)

    def _geglu(self, node: Node) -> None:
        self._gate(node, gate.geglu)

    def _select_outputs(self, node: Node) -> None:
        x, out = self._values[node.inputs[0]], self._output(node)
        rows = int(self.step.output_rows.ctypes.data)
        args = (self._count(node), x.address, x.stride, rows, out.address, out.stride, node.output.cols)
        self.writer.add(elementwise.select_outputs, args, [Access(x, "all"), Access(out, "select", True)])

    def _count(self, node: Node) -> int:
        return self.step.count(node.output.rows)


def _last_uses(graph: Graph) -> dict[Value, int]:
    """For each value the index of the last node that reads it; the logits are never given back."""
    last = {value: node.output.index for node in graph.nodes for value in node.inputs}
    for node in graph.nodes:
        last.setdefault(node.output, node.output.index)
    if graph.logits is not None:
        del last[graph.logits]
    return last


def _find_epilogues(graph: Graph) -> dict[Node, Node]:
    """Products whose only reader is the addition right after them, with that addition.

    Right after: the other operand then exists when the product runs.
    """
    n_readers: dict[Value, int] = {}
    for node in graph.nodes:
        for value in node.inputs:
            n_readers[value] = n_readers.get(value, 0) + 1
    found = {}
    for node, after in zip(graph.nodes, graph.nodes[1:], strict=False):
        if (
            node.op == "linear"
            and after.op == "add"
            and n_readers.get(node.output) == 1
            and node.output in after.inputs
        ):
            found[node] = after
    return found


class TapeProgram:
    """A graph as compiled kernels with memory of their own: workspace and KV cache."""

    def __init__(
        self,
        graph: Graph,
        weights: PackedWeights,
        sizes: TapeSizes,
        n_threads: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Lowers and compiles; `progress(done, total)` counts kernels that were not in the disk cache.

        Raises: KernelError when something in the graph has no kernel.
        """
        lowering = _Lowering(graph, weights, sizes, n_threads)
        self._logits = lowering.run()
        self._step, self._keep, self._weights = lowering.step, lowering.keep, weights
        compile_all([k for row in lowering.writer.rows for k in (row.kernel, *row.calls)], progress)
        self.tape = lowering.writer.tape()
        self.n_barriers = sum(row.barrier for row in lowering.writer.rows)
        self.memory_bytes = weights.nbytes + lowering.kv_bytes + lowering.workspace_bytes
        self._n_vocab = graph.n_vocab
        self._team = Team(n_threads)

    def run(self, step: StepInputs) -> npt.NDArray[np.float32]:
        """Logits float32 [n_out, n_vocab], valid until the next call."""
        _, n_out = self._step.set(step)
        self._team.run(self.tape)
        logits = self._logits.array[: n_out * self._logits.stride].view(np.float32)
        return logits.reshape(n_out, self._logits.stride // 4)[:, : self._n_vocab]

    def close(self) -> None:
        """End the threads."""
        self._team.close()
