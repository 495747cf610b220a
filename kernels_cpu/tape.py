"""Lowers a graph to a tape of compiled kernels; it runs nothing.

`fusion` says which operations make a row of the tape, `waiting` where its rows must wait for each other. Here they get
memory: each value is written in the forms that its readers want, as floats, quantised for products, or both. Values
made by rows are kept by every thread for itself when a step has few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_cpu import KernelError, encoders
from kernels_cpu.compile import Kernel
from kernels_cpu.fusion import Step, readers_of, steps_of
from kernels_cpu.graph import PAGE_POSITIONS, Graph, Node, RopeSpec, StepInputs, Value, Vector
from kernels_cpu.linear import SCRATCH_BYTES, act_row_bytes
from kernels_cpu.memory import untouched
from kernels_cpu.ops import COLUMNS, OWN_ROWS, ROWS, attention, elementwise, float_bits, gate, kv, rope, rows
from kernels_cpu.packing import packed_shape
from kernels_cpu.staged import Place, TapeCut
from kernels_cpu.stages import cuts_of
from kernels_cpu.waiting import ALL, Access, Buffer, TapeWriter, by_rows, columns_split
from kernels_cpu.weights import PackedWeights

Array = npt.NDArray[Any]

ACTIVATION_BITS = {"n": 8, "n_out": 16}
"""Bits of the activations of products. Rows whose logits are wanted are few, and their product is bound by
memory: there the second multiply-add costs nothing, and takes a third off the distance to exact arithmetic."""

READ_COPIES = ("linear", "add", "rms_norm", "layer_norm", "add_vector", "scale", "select_outputs")
"""Operations that can read a value of which each thread has a copy."""

IN_COLUMNS = ("swiglu", "geglu", "gelu", "softcap", "scale")
"""Operations that go on in the columns of the products that they read."""


@dataclass(frozen=True)
class TapeSizes:
    """Limits of a program: positions of a sequence, rows of a step, sequence slots, pages of the KV cache.

    `kv_type` is the type of the cache, a key of KV_ROUNDINGS.
    """

    n_ctx: int
    n_batch: int
    n_slots: int
    n_pages: int
    kv_type: str = "f16"

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


class Lowering:
    """One pass over a graph, by `run`; then `writer` has the tape and `keep` what its addresses point to.

    The first `n_rows_hidden` rows of the tape make what stands for a text (see Graph.output), in `hidden`. It may be
    left at `cuts`. `shared` is work memory of several operations, by a name of their choice.
    """

    def __init__(self, graph: Graph, weights: PackedWeights, sizes: TapeSizes, n_threads: int) -> None:
        self.graph, self.weights, self.sizes, self.n_threads = graph, weights, sizes, n_threads
        self.writer = TapeWriter()
        self.step = _StepArrays(sizes)
        self.keep: list[Array] = []
        self.kv_bytes = 0
        self.workspace_bytes = 0
        self.shared: dict[object, Buffer] = {}
        self.hidden: Buffer | None = None
        self.n_rows_hidden = 0
        self.cuts: list[TapeCut] = []
        self._at_step = 0
        self._values: dict[Value, Buffer] = {}
        self._quantised: dict[Value, Buffer] = {}
        self._free: dict[tuple[str, int], list[Buffer]] = {}
        self._vectors: dict[tuple[Vector, int], int] = {}
        self._nothing = Vector("zeros", np.zeros(0, np.float32))
        self._rope_tables: dict[tuple[RopeSpec, int], tuple[int, int]] = {}
        self._product_scratch = 0
        self._scratches: dict[tuple[int, int, int], tuple[Buffer, tuple[int, ...]]] = {}
        self._allocated: dict[tuple[str, int], list[Buffer]] = {}
        self._caches: list[Buffer] = []
        self._caches_made: list[Buffer] = []
        self._readers = readers_of(graph)
        self._steps = steps_of(graph)
        self._last_use = _last_uses(self._steps)
        self._shares = _shares(self._steps, self._readers)

    def run(self) -> Buffer:
        """Lower every step; gives the buffer of the logits."""
        if self.graph.logits is None:
            raise KernelError("graph: expected a call of `output`, got none")
        cuts = {cut.index: cut for cut in cuts_of(self._steps)}
        for index, step in enumerate(self._steps):
            self._at_step = index
            self._finish_before(step)
            if index in cuts:
                places = {value: Place(self._values[value]) for value in cuts[index].values}
                self.cuts.append(TapeCut(len(self.writer.rows), places))
            self._lower(step)
            if self.graph.hidden in [node.output for node in step.nodes.values()]:
                self.hidden, self.n_rows_hidden = self._values[self.graph.hidden], len(self.writer.rows)
            self._release()
        return self._values[self.graph.logits]

    def share_memory(self, other: Lowering) -> None:
        """Before `run`: use the memory of another lowering of this graph, which has been run, also its KV cache."""
        self.step, self.shared, self.keep = other.step, other.shared, other.keep
        self._vectors, self._rope_tables, self._scratches = other._vectors, other._rope_tables, other._scratches
        self._product_scratch, self._caches = other._product_scratch, list(other._caches_made)
        self._free = {key: list(buffers) for key, buffers in other._allocated.items()}

    def buffer(self, value: Value) -> Buffer:
        """Where a value lies as floats."""
        return self._values[value]

    def _finish_before(self, step: Step) -> None:
        """Lower what is left of the steps before one."""

    def _lower(self, step: Step) -> None:
        lower = getattr(self, f"_{step.op}", None)
        if lower is not None:
            lower(**step.nodes)
        elif step.op in encoders.LOWER:
            encoders.LOWER[step.op](self, **step.nodes)
        else:
            raise KernelError(f"tape: no kernel for the operation `{step.op}`")

    # ------------------------------------------------------------------ memory

    def _hold(self, array: Array) -> int:
        self.keep.append(array)
        return int(array.ctypes.data)

    def _new(self, kind: str, stride: int, own: bool) -> Buffer:
        free = self._free.setdefault((kind, stride), [])
        buffer = free.pop() if free else self._allocate(kind, stride)
        buffer.own = OWN_ROWS * stride if own else 0
        return buffer

    def _allocate(self, kind: str, stride: int) -> Buffer:
        n_rows = max(self.sizes.n_batch, OWN_ROWS * self.n_threads)
        array = untouched(n_rows * stride + 64)
        # Memory that is never touched is never had: as a rule one row of a sequence is an output.
        n_touched = self.sizes.n_slots if kind.endswith("n_out") else self.sizes.n_batch
        self.workspace_bytes += n_touched * stride
        self.keep.append(array)
        buffer = Buffer(array[-array.ctypes.data % 64 :], stride)
        self._allocated.setdefault((kind, stride), []).append(buffer)
        return buffer

    def new_output(self, node: Node, in_place_of: Value | None = None, own: bool = False) -> Buffer:
        """The buffer for a node's result as floats: that of an input which nobody reads any more, or another."""
        value = node.output
        stride = 128 * -(-value.cols // 32)
        if in_place_of is not None and self._last_use[in_place_of] <= self._at_step:
            buffer = self._values[in_place_of]
            if (buffer.stride, buffer.own > 0, in_place_of.rows) == (stride, own, value.rows):
                self._values[value] = buffer
                return buffer
        self._values[value] = self._new(value.rows, stride, own)
        return self._values[value]

    def new_quantised(self, value: Value, bits: int, own: bool) -> Buffer:
        """The buffer for a value as products read it."""
        self._quantised[value] = self._new(f"q8 {value.rows}", act_row_bytes(value.cols, bits), own)
        return self._quantised[value]

    def _release(self) -> None:
        """Give back the buffers of the values that this step was the last to read, once all threads are past it."""
        for values, kind in ((self._values, ""), (self._quantised, "q8 ")):
            for value in [v for v in values if self._last_use[v] == self._at_step]:
                buffer = values.pop(value)
                if buffer not in values.values():  # another value may have taken its place
                    self._give_back(kind + value.rows, buffer)

    def _give_back(self, kind: str, buffer: Buffer) -> None:
        free = self._free.setdefault((kind, buffer.stride), [])
        self.writer.after_barrier(lambda: free.append(buffer))

    def vector(self, vector: Vector, n: int) -> int:
        """The address of a vector, padded with zeros to n elements."""
        key = (vector, n)
        if key not in self._vectors:
            padded = np.zeros(n, np.float32)
            padded[: vector.size] = vector.data
            self._vectors[key] = self._hold(padded)
        return self._vectors[key]

    def zeros(self, n: int) -> int:
        """The address of n floats that are 0."""
        return self.vector(self._nothing, n)

    # ---------------------------------------------------------------- operations

    def _embedding(self, node: Node) -> None:
        self.add_rows_of_matrix(node, self.step.ids)

    def add_rows_of_matrix(self, node: Node, numbers: Array) -> None:
        """Rows of a matrix, their numbers being int32 [n]."""
        weight = node.attrs["weight"]
        shape, out = packed_shape(weight), self.new_output(node, own=self.may_be_own(node.output))
        w = self.weights.address(weight.name)
        where = (self.at(numbers), w, shape.n_blocks, shape.group_bytes)
        args = (self._count(node), *where, out.address, out.stride, out.own)
        self.writer.add(shape.quant.embedding, args, [by_rows(out, out.own > 0, writes=True)])

    def _linear(self, linear: Node, add: Node | None = None) -> None:
        """A product, with the addition to its result."""
        weight, bias = linear.attrs["weight"], linear.attrs["bias"]
        shape, source = packed_shape(weight), linear.inputs[0]
        bits = ACTIVATION_BITS[source.rows]
        x = self._values[source] if shape.quant.takes_floats else self._quantise(source, bits)
        addend = next(v for v in add.inputs if v is not linear.output) if add else None
        residual = self._values[addend] if addend else None
        residual_own = residual.own if residual else 0
        out = self.new_output(add or linear, in_place_of=addend)
        before, after = self._shares[linear]
        args = (
            self._count(linear),
            x.address,
            x.stride,
            self.weights.address(weight.name),
            out.address,
            out.stride,
            shape.n_blocks,
            shape.group_bytes,
            shape.n_groups,
            self.vector(bias, shape.n_groups * 16) if bias else 0,
            residual.address if residual else 0,
            x.own,
            residual_own,
            before,
            after,
            self._products_scratch(),
        )
        columns = columns_split(shape.n_groups // 2, before, after)
        accesses = [Access(x, ALL, few="own" if x.own else ALL), Access(out, columns, True)]
        if residual:
            accesses.append(Access(residual, columns, few="own" if residual.own else None))
        self.writer.add(shape.quant.linear if bits == 8 else shape.quant.linear_16, args, accesses)

    def _products_scratch(self) -> int:
        """The address of what each thread needs for a product."""
        if not self._product_scratch:
            array = np.zeros(self.n_threads * SCRATCH_BYTES + 64, np.uint8)
            self.workspace_bytes += array.nbytes
            self._product_scratch = self._hold(array[-array.ctypes.data % 64 :])
        return self._product_scratch

    def _quantise(self, value: Value, bits: int) -> Buffer:
        """The quantised form of a value; made now if what made the value could not."""
        if value not in self._quantised:
            self._add_rows(value, quantised=self.new_quantised(value, bits, own=True), bits=bits)
        return self._quantised[value]

    def wanted(self, value: Value) -> tuple[bool, int]:
        """The forms in which a value is read: whether as floats, and the bits of the quantised form (0: none)."""
        products = [
            reader
            for reader in self._readers[value]
            if reader.op == "linear" and not packed_shape(reader.attrs["weight"]).quant.takes_floats
        ]
        is_asked_for = value in (self.graph.logits, self.graph.hidden)
        as_floats = is_asked_for or len(products) < len(self._readers[value])
        return as_floats, ACTIVATION_BITS[value.rows] if products else 0

    def may_be_own(self, value: Value) -> bool:
        """Whether all that read a value can read the copy of their thread."""
        readers = (reader.op for reader in self._readers[value])
        return value is not self.graph.logits and all(op in READ_COPIES for op in readers)

    def _rows(self, norm_before: Node | None = None, add: Node | None = None, norm: Node | None = None) -> None:
        """Norm, addition, norm, and the quantising of the result."""
        nodes = [node for node in (norm_before, add, norm) if node]
        result = nodes[-1].output
        as_floats, bits = self.wanted(result)
        own = all(self.may_be_own(node.output) for node in nodes)
        x, addend, total = nodes[0].inputs[0], None, None
        if add:
            made = norm_before.output if norm_before else x
            addend = add.inputs[1] if made is add.inputs[0] else add.inputs[0]
            total = self.new_output(add, in_place_of=addend, own=own)
        floats = self.new_output(norm, own=own) if norm and as_floats else None
        quantised = self.new_quantised(result, bits, own) if bits else None
        self._add_rows(x, norm_before, addend, total, norm, floats, quantised, bits)

    def _add_rows(
        self,
        source: Value,
        norm_before: Node | None = None,
        addend: Value | None = None,
        total: Buffer | None = None,
        norm: Node | None = None,
        floats: Buffer | None = None,
        quantised: Buffer | None = None,
        bits: int = 0,
    ) -> None:
        """A row of the kernel `rows`, with the stages that are given."""
        x, other = self._values[source], self._values[addend] if addend else None
        n_loaded = 32 * -(-source.cols // 32)
        made = [buffer for buffer in (total, floats, quantised) if buffer]
        own = made[0].own > 0

        def weight(node: Node | None) -> tuple[int, int]:
            return (self.vector(node.attrs["w"], n_loaded), float_bits(node.attrs["eps"])) if node else (0, 0)

        def place(buffer: Buffer | None) -> tuple[int, int]:
            return (buffer.address, buffer.own) if buffer else (0, 0)

        args = (
            self.step.count(source.rows),
            source.cols,
            *place(x),
            *weight(norm_before),
            *place(other),
            place(total)[0],
            *weight(norm),
            place(floats)[0],
            made[0].own if made[0] is not quantised else 0,
            place(quantised)[0],
            quantised.stride if quantised else 0,
            place(quantised)[1],
            bits,
        )
        reads = [by_rows(buffer, own) for buffer in (x, other) if buffer]
        self.writer.add(rows.rows, args, [*reads, *(by_rows(buffer, own, writes=True) for buffer in made)])

    def _heads(self, head_norm: Node | None = None, rope: Node | None = None) -> None:
        """Norm and rotation of each head."""
        nodes = [node for node in (head_norm, rope) if node]
        source = nodes[0].inputs[0]
        x, out = self._values[source], self.new_output(nodes[-1], in_place_of=source)
        head_dim = nodes[0].attrs["head_dim"]
        n_heads = source.cols // head_dim
        args = (self._count(nodes[0]), x.address, out.address, out.stride, n_heads, head_dim)
        kernel, turn = self._turn(rope)
        norm = (
            (self.vector(head_norm.attrs["w"], head_dim), float_bits(head_norm.attrs["eps"])) if head_norm else (0, 0)
        )
        split = f"heads{n_heads}"
        self.writer.add(kernel, (*args, *norm, *turn), [Access(x, split), Access(out, split, True)])

    def _turn(self, node: Node | None) -> tuple[Kernel, tuple[int, ...]]:
        """The kernel and the arguments of a rotation, or of none."""
        if node is None:
            return rope.rope_half, (0, 0, 0, 0)
        kernel = rope.rope_interleaved if node.attrs["pairing"] == "interleaved" else rope.rope_half
        n_rot, positions = node.attrs["n_rot"], int(self.step.positions.ctypes.data)
        return kernel, (n_rot, positions, *self._rope_table(node.attrs["freqs"], n_rot))

    def _rope_table(self, spec: RopeSpec, n_rot: int) -> tuple[int, int]:
        """Addresses of the cosines and sines of all positions."""
        key = (spec, n_rot)
        if key not in self._rope_tables:
            cos, sin = (np.ascontiguousarray(t) for t in spec.tables(n_rot, self.sizes.n_ctx))
            self.workspace_bytes += cos.nbytes + sin.nbytes
            self._rope_tables[key] = self._hold(cos), self._hold(sin)
        return self._rope_tables[key]

    def _attention(self, node: Node) -> None:
        """Write keys and values into the cache, and attend."""
        q, k, v = (self._values[x] for x in node.inputs)
        n_head, n_head_kv, head_dim = (node.attrs[key] for key in ("n_head", "n_head_kv", "head_dim"))
        out = self.new_output(node)
        layout = kv.KVLayout(self.sizes.kv_type, n_head_kv, head_dim)
        cache = self._cache(layout.page_bytes)
        places = (self.at(self.step.positions), self.at(self.step.slots), self.at(self.step.page_tables))
        where = (*places, self.sizes.max_pages)
        shape = (cache.address, layout.page_bytes)
        parts = (layout.key_bytes, layout.value_bytes, layout.key_rotation, layout.value_rotation)
        scratch, words = self._attention_scratch(n_head, n_head_kv, head_dim)
        _, threads, thread_bytes, *_ = words
        operands = (self._count(node), k.address, k.stride, v.address, v.stride, *shape, n_head_kv, head_dim)
        # The keys' division is that of the rotary embedding before, which needs no waiting then.
        heads_kv = f"heads{n_head_kv}"
        self.writer.add(
            kv.KV_WRITE[self.sizes.kv_type],
            (*operands, *where, *parts, threads + attention.JOB_BYTES, thread_bytes),
            [
                *(Access(x, heads_kv) for x in (k, v)),
                Access(cache, heads_kv, True),
                Access(scratch, "threads", True),
            ],
        )
        numbers = (float_bits(node.attrs["scale"]), node.attrs["window"], float_bits(node.attrs["softcap"]))
        operands = (self._count(node), q.address, q.stride, out.address, out.stride, *shape, n_head, n_head_kv)
        accesses = [
            *(Access(x, "all") for x in (q, cache)),
            Access(out, "attention", True),
            Access(scratch, "threads", True),
        ]
        args = (*operands, head_dim, *where, *numbers, *words, *parts)
        self.writer.add(attention.attention, args, accesses, (attention.ATTENTION_TILE[self.sizes.kv_type],))

    def _cache(self, page_bytes: int) -> Buffer:
        """The pages of one layer."""
        if self._caches:
            return self._caches.pop(0)
        array = untouched(self.sizes.n_pages * page_bytes + 64)
        self.kv_bytes += array.nbytes
        self.keep.append(array)
        self._caches_made.append(Buffer(array[-array.ctypes.data % 64 :], page_bytes))
        return self._caches_made[-1]

    def kv_layers(self) -> list[npt.NDArray[np.uint8]]:
        """After `run`: the caches of the layers, each uint8 [n_pages, bytes of a page]."""
        n_pages = self.sizes.n_pages
        return [cache.array[: n_pages * cache.stride].reshape(n_pages, -1) for cache in self._caches_made]

    def _attention_scratch(self, n_head: int, n_head_kv: int, head_dim: int) -> tuple[Buffer, tuple[int, ...]]:
        """Scratch memory, shared by the layers of one shape, and the arguments that describe it."""
        key = (n_head, n_head_kv, head_dim)
        if key not in self._scratches:
            layout = attention.AttentionScratch(self.n_threads, self.sizes.n_ctx, *key)
            array = untouched(layout.n_bytes + 64)
            self.workspace_bytes += array.nbytes
            self.keep.append(array)
            buffer = Buffer(array[-array.ctypes.data % 64 :], 0)
            threads, partials = (buffer.address + n for n in (layout.threads_offset, layout.partials_offset))
            words = (buffer.address, threads, layout.thread_bytes, partials, layout.n_segments)
            self._scratches[key] = buffer, words
        return self._scratches[key]

    @staticmethod
    def at(array: Array) -> int:
        return int(array.ctypes.data)

    def _elementwise(self, node: Node, kernel: Kernel) -> None:
        """Rows that stay in the threads' copies, or columns of a product's result."""
        x = self._values[node.inputs[0]]
        own = x.own
        out = self.new_output(node, in_place_of=node.inputs[0], own=own > 0 and self.may_be_own(node.output))
        args = (self._count(node), node.output.cols, x.address, own, out.address, out.own, float_bits(node.attrs["c"]))
        if own:
            accesses = [by_rows(x, out.own > 0), by_rows(out, out.own > 0, writes=True)]
        else:
            split = columns_split(x.stride // 128)
            accesses = [Access(x, split), Access(out, split, True)]
        self.writer.add(kernel, (*args, ROWS if own else COLUMNS), accesses)

    def _scale(self, node: Node) -> None:
        self._elementwise(node, elementwise.scale)

    def _softcap(self, node: Node) -> None:
        self._elementwise(node, elementwise.softcap)

    def _gate(self, node: Node, kernel: Kernel) -> None:
        """The activation, in the columns that the thread has got from both products."""
        inputs = [self._values[v] for v in node.inputs]
        as_floats, bits = self.wanted(node.output)
        floats = self.new_output(node, in_place_of=node.inputs[0]) if as_floats else None
        quantised = self.new_quantised(node.output, bits, own=False) if bits else None
        args = (
            self._count(node),
            node.output.cols,
            *(buffer.address for buffer in inputs),
            floats.address if floats else 0,
            quantised.address if quantised else 0,
            quantised.stride if quantised else 0,
            bits,
        )
        split = columns_split(inputs[0].stride // 128)
        writes = [Access(buffer, split, True) for buffer in (floats, quantised) if buffer]
        self.writer.add(kernel, args, [*(Access(b, split) for b in inputs), *writes])

    def _swiglu(self, node: Node) -> None:
        self._gate(node, gate.swiglu)

    def _geglu(self, node: Node) -> None:
        self._gate(node, gate.geglu)

    def _select_outputs(self, node: Node) -> None:
        value = node.inputs[0]
        x, out = self._values[value], self.new_output(node, own=self.may_be_own(node.output))
        chosen = self.at(self.step.output_rows)
        args = (
            self._count(node),
            value.cols,
            self.step.count(value.rows),
            x.address,
            x.own,
            chosen,
            out.address,
            out.own,
        )
        reads = Access(x, ALL, few="own" if x.own and out.own else ALL)
        self.writer.add(elementwise.select_outputs, args, [reads, by_rows(out, out.own > 0, writes=True)])

    def _count(self, node: Node) -> int:
        return self.step.count(node.output.rows)


def _last_uses(steps: list[Step]) -> dict[Value, int]:
    """For each value the index of the last step that reads it; past all steps where none does, as with the logits."""
    last = {node.output: len(steps) for step in steps for node in step.nodes.values()}
    last.update({value: index for index, step in enumerate(steps) for value in step.inputs})
    return last


def _shares(steps: list[Step], readers: dict[Value, list[Node]]) -> dict[Node, tuple[int, int]]:
    """For each product the units of 32 columns before and after it in the list that the threads share out.

    Products of the same value make one list, so that small ones are shared out evenly; but what goes on in the columns
    of its products needs lists of equal length, and these products stand alone.
    """
    lists: dict[object, list[Node]] = {}
    for step in steps:
        if step.op == "linear":
            node = step.nodes["linear"]
            alone = "add" in step.nodes or any(reader.op in IN_COLUMNS for reader in readers[node.output])
            lists.setdefault(node if alone else node.inputs[0], []).append(node)
    shares: dict[Node, tuple[int, int]] = {}
    for products in lists.values():
        units = [packed_shape(node.attrs["weight"]).n_groups // 2 for node in products]
        shares |= {node: (sum(units[:i]), sum(units[i + 1 :])) for i, node in enumerate(products)}
    return shares
