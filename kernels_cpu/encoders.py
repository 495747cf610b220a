"""Lowers the operations that encoders have beside those of other models; `tape` has the others, and the memory.

A function takes the Lowering and the nodes of a step (see fusion).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernels_cpu.graph import Node
from kernels_cpu.memory import untouched
from kernels_cpu.ops import activation, attention_within, float_bits, layer_norm, pool
from kernels_cpu.waiting import ALL, Access, Buffer, by_rows, columns_split

if TYPE_CHECKING:
    from kernels_cpu.tape import Lowering


def position_embedding(lowering: Lowering, node: Node) -> None:
    """Rows of a matrix by the rows' positions."""
    lowering.add_rows_of_matrix(node, lowering.step.positions)


def layer_rows(
    lowering: Lowering, shift: Node | None = None, add: Node | None = None, norm: Node | None = None
) -> None:
    """Addition of a vector, of other rows, layer norm, and the quantising of the result."""
    nodes = [node for node in (shift, add, norm) if node]
    source, last = nodes[0].inputs[0], nodes[-1].output
    x, addend = lowering.buffer(source), None
    as_floats, bits = lowering.wanted(last)
    own = all(lowering.may_be_own(node.output) for node in nodes)
    if add:
        made = shift.output if shift else source
        addend = lowering.buffer(add.inputs[1] if made is add.inputs[0] else add.inputs[0])
    before = add or shift
    total = lowering.new_output(before, own=own) if before else None
    floats = lowering.new_output(norm, own=own) if norm and as_floats else None
    quantised = lowering.new_quantised(last, bits, own) if bits else None
    n_loaded = 32 * -(-source.cols // 32)
    result = floats or total
    args = (
        lowering.step.count(source.rows),
        source.cols,
        x.address,
        x.own,
        lowering.vector(shift.attrs["v"], n_loaded) if shift else 0,
        addend.address if addend else 0,
        addend.own if addend else 0,
        total.address if total else 0,
        *_norm_words(lowering, norm, n_loaded),
        floats.address if floats else 0,
        result.own if result else 0,
        quantised.address if quantised else 0,
        quantised.stride if quantised else 0,
        quantised.own if quantised else 0,
        bits,
    )
    reads = [by_rows(buffer, own) for buffer in (x, addend) if buffer]
    writes = [by_rows(buffer, own, writes=True) for buffer in (total, floats, quantised) if buffer]
    lowering.writer.add(layer_norm.layer_rows, args, [*reads, *writes])


def _norm_words(lowering: Lowering, norm: Node | None, n_loaded: int) -> tuple[int, int, int]:
    """Weight, bias and the bits of eps."""
    if norm is None:
        return 0, 0, 0
    bias = norm.attrs["b"]
    b = lowering.vector(bias, n_loaded) if bias else lowering.zeros(n_loaded)
    return lowering.vector(norm.attrs["w"], n_loaded), b, float_bits(norm.attrs["eps"])


def gelu(lowering: Lowering, node: Node) -> None:
    """The activation, in the columns that the thread has got from the product."""
    source = node.inputs[0]
    x = lowering.buffer(source)
    as_floats, bits = lowering.wanted(node.output)
    floats = lowering.new_output(node, in_place_of=source) if as_floats else None
    quantised = lowering.new_quantised(node.output, bits, own=False) if bits else None
    args = (
        lowering.step.count(node.output.rows),
        node.output.cols,
        x.address,
        floats.address if floats else 0,
        quantised.address if quantised else 0,
        quantised.stride if quantised else 0,
        bits,
    )
    split = columns_split(x.stride // 128)
    writes = [Access(buffer, split, True) for buffer in (floats, quantised) if buffer]
    lowering.writer.add(activation.gelu, args, [Access(x, split), *writes])


def pool_rows(lowering: Lowering, node: Node) -> None:
    """One row of each sequence."""
    source, step = node.inputs[0], lowering.step
    x, out = lowering.buffer(source), lowering.new_output(node)
    places = (lowering.at(array) for array in (step.output_rows, step.positions, step.slots))
    kind = pool.POOLINGS[node.attrs["kind"]]
    args = (step.count("n_out"), source.cols, step.count("n"), x.address, kind, *places, out.address)
    lowering.writer.add(pool.pool, args, [Access(x, ALL), by_rows(out, False, writes=True)])


def attend_within(lowering: Lowering, node: Node) -> None:
    """Attention without a cache."""
    q, k, v = (lowering.buffer(x) for x in node.inputs)
    out = lowering.new_output(node)
    scratch, thread_bytes = _scratch(lowering, node.attrs["head_dim"])
    args = (
        lowering.step.count("n"),
        *(word for buffer in (q, k, v, out) for word in (buffer.address, buffer.stride)),
        *(node.attrs[name] for name in ("n_head", "n_head_kv", "head_dim")),
        lowering.at(lowering.step.slots),
        float_bits(node.attrs["scale"]),
        node.attrs["window"],
        scratch.address,
        thread_bytes,
    )
    accesses = [*(Access(x, ALL) for x in (q, k, v)), Access(out, "items", True), Access(scratch, "threads", True)]
    lowering.writer.add(attention_within.attention_within, args, accesses)


def _scratch(lowering: Lowering, head_dim: int) -> tuple[Buffer, int]:
    """The memory that attention works in, shared by the layers of one size, and what a thread has of it."""
    key = ("within", head_dim)
    sizes = lowering.sizes
    n_positions = min(sizes.n_ctx, sizes.n_batch)
    layout = attention_within.WithinScratch(lowering.n_threads, n_positions, head_dim)
    if key not in lowering.shared:
        array = untouched(layout.n_bytes + 64)
        lowering.workspace_bytes += array.nbytes
        lowering.keep.append(array)
        lowering.shared[key] = Buffer(array[-array.ctypes.data % 64 :], 0)
    return lowering.shared[key], layout.thread_bytes


LOWER: dict[str, Callable[..., Any]] = {
    "position_embedding": position_embedding,
    "layer_rows": layer_rows,
    "gelu": gelu,
    "pool": pool_rows,
    "attention_within": attend_within,
}
"""By a step's `op`."""
