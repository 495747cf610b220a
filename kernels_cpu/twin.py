"""Evaluates a graph with NumPy, one plain function an operation, as the reference of the compiled kernels.

It is written to be read and compared with, knows nothing of speed, and allocates freely.
Sums of squares run in float64; everything else is float32 as in the compiled kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gguf
import numpy as np
import numpy.typing as npt

from kernels_cpu import KernelError
from kernels_cpu.graph import Graph, LowRank, Node, Pairing, Pooling, RopeSpec, StepInputs, Value, Vector, Weight
from kernels_cpu.quants.reference import DEQUANTISERS, dequantise_rows

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
Activations = Callable[[F32, Weight], F32]
"""Takes a linear layer's input [n, n_cols] and its weight, gives the input as the compiled kernel would see it."""


def dequantise(weight: Weight) -> F32:
    """The matrix as float32 [n_rows, n_cols], by the `gguf` package's reference or our own of newer types.

    Raises:
        KernelError: neither reads this type, or the bytes do not make `n_cols` elements a row.
    """
    rows = weight.data.reshape(weight.n_rows, -1)
    try:
        if weight.type_id in DEQUANTISERS:
            x = dequantise_rows(rows, weight.type_id)
        else:
            x = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(weight.type_id))
    except (ValueError, NotImplementedError) as error:
        raise KernelError(f"weight `{weight.name}`: cannot dequantise ggml type {weight.type_id}: {error}") from error
    if x.shape != (weight.n_rows, weight.n_cols):
        raise KernelError(
            f"weight `{weight.name}`: expected {weight.n_rows} x {weight.n_cols}, got bytes for {x.shape}"
        )
    return x.astype(np.float32, copy=False)


def quantise_activations(x: F32, block: int = 32, levels: int = 127) -> F32:
    """x [n, cols] as integers of `block` columns with one float32 scale would hold it.

    Per block d = max|x| / levels and q = round(x / d), half to even; the result is q * d. A block of zeros stays zero;
    the last block of a row may be shorter.
    """
    n, cols = x.shape
    padded = np.zeros((n, -(-cols // block), block), np.float32)
    padded.reshape(n, -1)[:, :cols] = x
    d = np.abs(padded).max(axis=2, keepdims=True) / np.float32(levels)
    q = np.rint(np.divide(padded, d, out=np.zeros_like(padded), where=d > 0))
    return np.ascontiguousarray((q * d).reshape(n, -1)[:, :cols])


ACTIVATIONS: dict[str, Activations] = {
    "f32": lambda x, weight: x,
    "q8": lambda x, weight: quantise_activations(x),
}
"""The input of linear layers as it is, or as int8 in blocks of 32 columns with a float32 scale."""


def twin_embedding(ids: I32, weight: Weight) -> F32:
    """Rows `ids` [n] of `weight`, dequantised: float32 [n, n_cols]. Raises KernelError for an id that is no row."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < weight.n_rows:
        raise KernelError(f"embedding: expected token ids in 0..{weight.n_rows - 1}, got {ids.min()}..{ids.max()}")
    rows = weight.data.reshape(weight.n_rows, -1)[ids]
    return dequantise(
        Weight(weight.name, weight.type_id, len(ids), weight.n_cols, np.ascontiguousarray(rows).reshape(-1))
    )


def twin_linear(x: F32, weight: Weight, bias: Vector | None = None, act: str = "f32") -> F32:
    """x [n, n_cols] @ dequantised weight.T + bias -> float32 [n, n_rows]; `act` is a key of ACTIVATIONS."""
    y = ACTIVATIONS[act](x, weight) @ dequantise(weight).T
    return y if bias is None else y + bias.data


def twin_lora(x: F32, adapter: LowRank, scale: float) -> F32:
    """What an adapter adds to the product with x [n, n_cols], `scale` times: float32 [n, n_rows]."""
    return np.float32(adapter.scale * scale) * ((x @ adapter.a.T) @ adapter.b.T)


def twin_rms_norm(x: F32, w: F32, eps: float) -> F32:
    """x * w / sqrt(mean(x^2) + eps) over the last axis; x [..., cols], w [cols]."""
    mean_square = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    return (x * (1.0 / np.sqrt(mean_square + eps)).astype(np.float32)) * w


def twin_layer_norm(x: F32, w: F32, b: F32 | None, eps: float) -> F32:
    """(x - mean(x)) * w / sqrt(var(x) + eps) + b over the last axis; x [..., cols], w and b [cols]."""
    deviation = x.astype(np.float64) - np.mean(x, axis=-1, keepdims=True, dtype=np.float64)
    variance = np.mean(np.square(deviation), axis=-1, keepdims=True)
    y = (deviation / np.sqrt(variance + eps)).astype(np.float32) * w
    return y if b is None else y + b


def twin_head_norm(x: F32, w: F32, eps: float, head_dim: int) -> F32:
    """RMS norm of each run of head_dim columns: x [n, n_head * head_dim], w [head_dim]."""
    return twin_rms_norm(x.reshape(len(x), -1, head_dim), w, eps).reshape(x.shape)


def twin_rope(x: F32, positions: I32, cos: F32, sin: F32, head_dim: int, pairing: Pairing) -> F32:
    """Turns the pairs of each head by its row's position.

    x is [n, n_head * head_dim], positions [n], cos and sin [n_ctx, n_rot / 2]. Pair i is columns (2i, 2i + 1) of a
    head if interleaved, (i, i + n_rot / 2) if half. Columns from n_rot on are kept.
    """
    n_pairs = cos.shape[1]
    y = x.reshape(len(x), -1, head_dim).copy()
    first = slice(0, 2 * n_pairs, 2) if pairing == "interleaved" else slice(0, n_pairs)
    second = slice(1, 2 * n_pairs, 2) if pairing == "interleaved" else slice(n_pairs, 2 * n_pairs)
    a, b = y[:, :, first].copy(), y[:, :, second].copy()
    c, s = cos[positions][:, None, :], sin[positions][:, None, :]
    y[:, :, first] = a * c - b * s
    y[:, :, second] = a * s + b * c
    return y.reshape(x.shape)


def twin_attention(
    q: F32,
    keys: F32,
    values: F32,
    positions: I32,
    n_head: int,
    n_head_kv: int,
    head_dim: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> F32:
    """Causal attention of some rows of one sequence.

    q is [n, n_head * head_dim] at `positions` [n]; keys and values are [n_kv, n_head_kv * head_dim] of positions
    0 .. n_kv - 1. A row at position p sees p' <= p, and p - p' < window if window > 0. Scores are q.k * scale, then
    softcap * tanh(score / softcap) if softcap > 0. Gives [n, n_head * head_dim].
    """
    n, n_kv, group = len(q), len(keys), n_head // n_head_kv
    queries = q.reshape(n, n_head_kv, group, head_dim).transpose(1, 2, 0, 3)
    k = keys.reshape(n_kv, n_head_kv, 1, head_dim).transpose(1, 2, 3, 0)
    v = values.reshape(n_kv, n_head_kv, 1, head_dim).transpose(1, 2, 0, 3)
    scores = (queries @ k) * np.float32(scale)
    if softcap > 0:
        scores = twin_softcap(scores, softcap)
    distance = positions[:, None].astype(np.int64) - np.arange(n_kv)[None, :]
    hidden = (distance < 0) | ((distance >= window) if window > 0 else False)
    scores = np.where(hidden, np.float32(-np.inf), scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.ascontiguousarray((weights @ v).transpose(2, 0, 1, 3)).reshape(n, n_head * head_dim)


def twin_attention_within(
    q: F32, k: F32, v: F32, n_head: int, n_head_kv: int, head_dim: int, scale: float, window: int = 0
) -> F32:
    """Attention of the rows of one sequence to each other, before and after.

    q is [n, n_head * head_dim], k and v are [n, n_head_kv * head_dim], at positions 0 .. n - 1. With window > 0, rows
    see those at most window // 2 away. Gives [n, n_head * head_dim].
    """
    n, group = len(q), n_head // n_head_kv
    queries = q.reshape(n, n_head_kv, group, head_dim).transpose(1, 2, 0, 3)
    keys = k.reshape(n, n_head_kv, 1, head_dim).transpose(1, 2, 3, 0)
    scores = (queries @ keys) * np.float32(scale)
    distance = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
    scores = np.where((distance > window // 2) & (window > 0), np.float32(-np.inf), scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    values = v.reshape(n, n_head_kv, 1, head_dim).transpose(1, 2, 0, 3)
    return np.ascontiguousarray((weights @ values).transpose(2, 0, 1, 3)).reshape(n, n_head * head_dim)


def twin_pool(x: F32, kind: Pooling) -> F32:
    """The mean, first or last of the rows of one sequence, x [n, cols] -> [cols]. The mean adds them up in order."""
    if kind != "mean":
        return x[0 if kind == "cls" else -1]
    total = x[0].copy()
    for row in x[1:]:
        total += row
    return total / np.float32(len(x))


def twin_gelu(x: F32) -> F32:
    """x (1 + erf(x / sqrt(2))) / 2 (arXiv:1606.08415 section 2), in float64."""
    wide = x.astype(np.float64)
    erf = np.array([math.erf(value) for value in (wide * math.sqrt(0.5)).ravel()]).reshape(x.shape)
    return (0.5 * wide * (1.0 + erf)).astype(np.float32)


def twin_add_vector(x: F32, v: Vector) -> F32:
    """x [n, cols] + v [cols]"""
    return x + v.data


def twin_scale(x: F32, c: float) -> F32:
    """x * c"""
    return x * np.float32(c)


def twin_softcap(x: F32, c: float) -> F32:
    """c * tanh(x / c)"""
    return np.float32(c) * np.tanh(x / np.float32(c))


def twin_add(x: F32, y: F32) -> F32:
    """x + y"""
    return x + y


def twin_swiglu(gate: F32, up: F32) -> F32:
    """gate / (1 + exp(-gate)) * up, of equal shapes."""
    with np.errstate(over="ignore"):
        return gate / (np.float32(1) + np.exp(-gate)) * up


def twin_geglu(gate: F32, up: F32) -> F32:
    """GELU's tanh form (arXiv:1606.08415 section 2) of gate, times up, of equal shapes."""
    inner = np.float32(np.sqrt(2 / np.pi)) * gate * (np.float32(1) + np.float32(0.044715) * gate * gate)
    return np.float32(0.5) * gate * (np.float32(1) + np.tanh(inner)) * up


class KVStore(Protocol):
    """Where keys and values of earlier steps are kept."""

    def write(self, layer: int, step: StepInputs, k: F32, v: F32) -> None:
        """Keeps k and v [n, n_head_kv * head_dim], row i at `step.positions[i]` of slot `step.slots[i]`."""

    def read(self, layer: int, step: StepInputs, slot: int, n_kv: int) -> tuple[F32, F32]:
        """Keys and values of positions 0 .. n_kv - 1 of a slot, float32 [n_kv, n_head_kv * head_dim] each."""


class PlainKV:
    """A KV cache of one array per layer and slot, without pages; what is stored is rounded to `dtype`."""

    def __init__(self, dtype: npt.DTypeLike = np.float32) -> None:
        self._dtype = dtype
        self._rows: dict[tuple[int, int], npt.NDArray[Any]] = {}

    def write(self, layer: int, step: StepInputs, k: F32, v: F32) -> None:
        pairs = np.stack([k, v], axis=1).astype(self._dtype)
        for slot in np.unique(step.slots):
            mine = step.slots == slot
            positions = step.positions[mine]
            rows = self._grown(layer, int(slot), int(positions.max()) + 1, pairs.shape[1:])
            rows[positions] = pairs[mine]

    def read(self, layer: int, step: StepInputs, slot: int, n_kv: int) -> tuple[F32, F32]:
        rows = self._rows[layer, slot][:n_kv].astype(np.float32)
        return rows[:, 0], rows[:, 1]

    def _grown(self, layer: int, slot: int, n_rows: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        old = self._rows.get((layer, slot), np.zeros((0, *shape), self._dtype))
        if len(old) < n_rows:
            old = np.concatenate([old, np.zeros((n_rows - len(old), *shape), self._dtype)])
        self._rows[layer, slot] = old
        return old


class Twin:
    """Runs steps of a graph. `activations` (a key of ACTIVATIONS, or a function) is applied before every linear layer.

    Dequantised matrices are kept, so that a second step costs only arithmetic. `adapters` are those that steps may
    name, by place: each a LowRank by the name of the matrix that it changes.
    """

    def __init__(
        self, graph: Graph, n_ctx: int, kv: KVStore | None = None, activations: str | Activations = "f32"
    ) -> None:
        self.graph = graph
        self.n_ctx = n_ctx
        self._kv = PlainKV() if kv is None else kv
        self._activations = ACTIVATIONS[activations] if isinstance(activations, str) else activations
        self.adapters: dict[int, Mapping[str, LowRank]] = {}
        self._embeddings = {node.attrs["weight"].name for node in graph.nodes if node.op == "embedding"}
        self._matrices: dict[Weight, F32] = {}
        self._tables: dict[tuple[RopeSpec, int], tuple[F32, F32]] = {}
        self._last_use = {x.index: i for i, node in enumerate(graph.nodes) for x in node.inputs}

    def run(self, step: StepInputs) -> F32:
        """Logits float32 [n_out, n_vocab] of the step's output rows.

        Raises:
            KernelError: a position beyond the context, or a token id beyond the vocabulary.
        """
        return self._until(self.graph.logits, step)

    def run_hidden(self, step: StepInputs) -> F32:
        """What stands for a text (see Graph.output), float32 [n_out, cols]. Raises: as run."""
        return self._until(self.graph.hidden, step)

    def _until(self, result: Value | None, step: StepInputs) -> F32:
        if result is None:
            raise KernelError("graph: expected a call of `output`, got none")
        self._check(step)
        values: dict[int, F32] = {}
        for i, node in enumerate(self.graph.nodes[: result.index + 1]):
            values[node.output.index] = self._evaluate(node, [values[x.index] for x in node.inputs], step)
            for x in node.inputs:
                if self._last_use[x.index] == i:
                    values.pop(x.index, None)
        return values[result.index]

    def _check(self, step: StepInputs) -> None:
        if len(step.positions) and not 0 <= step.positions.min() <= step.positions.max() < self.n_ctx:
            raise KernelError(f"step: expected positions in 0..{self.n_ctx - 1}, got {step.positions.max()}")

    def _evaluate(self, node: Node, inputs: list[F32], step: StepInputs) -> F32:
        if node.op in ELEMENTWISE:
            return ELEMENTWISE[node.op](*inputs, **node.attrs)
        operation = getattr(self, f"_{node.op}", None)
        if operation is None:
            raise KernelError(f"twin: expected a known operation, got `{node.op}`")
        result: F32 = operation(inputs, step, **node.attrs)
        return result

    def _embedding(self, inputs: list[F32], step: StepInputs, weight: Weight) -> F32:
        y = twin_embedding(step.ids, weight)
        for one in step.adaptations:
            adapter = self.adapters[one.place].get(weight.name)
            if adapter is not None:
                rows = adapter.a[step.ids[one.first : one.end]]
                y[one.first : one.end] += np.float32(adapter.scale * one.scale) * (rows @ adapter.b.T)
        return y

    def _position_embedding(self, inputs: list[F32], step: StepInputs, weight: Weight) -> F32:
        return twin_embedding(step.positions, weight)

    def _layer_norm(self, inputs: list[F32], step: StepInputs, w: Vector, b: Vector | None, eps: float) -> F32:
        return twin_layer_norm(inputs[0], w.data, b.data if b else None, eps)

    def _attention_within(self, inputs: list[F32], step: StepInputs, **attrs: Any) -> F32:
        out = np.empty_like(inputs[0])
        for slot in np.unique(step.slots):
            mine = step.slots == slot
            out[mine] = twin_attention_within(*(x[mine] for x in inputs), **attrs)
        return out

    def _pool(self, inputs: list[F32], step: StepInputs, kind: Pooling) -> F32:
        slots = step.slots[step.output_rows]
        rows = [twin_pool(inputs[0][step.slots == slot], kind) for slot in slots]
        return np.stack(rows) if rows else np.zeros((0, inputs[0].shape[1]), np.float32)

    def _select_outputs(self, inputs: list[F32], step: StepInputs) -> F32:
        return inputs[0][step.output_rows]

    def _rms_norm(self, inputs: list[F32], step: StepInputs, w: Vector, eps: float) -> F32:
        return twin_rms_norm(inputs[0], w.data, eps)

    def _head_norm(self, inputs: list[F32], step: StepInputs, w: Vector, eps: float, head_dim: int) -> F32:
        return twin_head_norm(inputs[0], w.data, eps, head_dim)

    def _linear(
        self, inputs: list[F32], step: StepInputs, weight: Weight, bias: Vector | None, adapter_gain: float
    ) -> F32:
        if weight not in self._matrices:
            self._matrices[weight] = dequantise(weight)
        y = self._activations(inputs[0], weight) @ self._matrices[weight].T
        y = y if bias is None else y + bias.data
        self._adapt(y, inputs[0], step, weight, adapter_gain)
        return y

    def _adapt(self, y: F32, x: F32, step: StepInputs, weight: Weight, gain: float) -> None:
        """Add to y what adapters add; a matrix that is also the embedding is changed only there."""
        name, first = weight.part_of or (weight.name, 0)
        for one in step.adaptations:
            adapter = self.adapters[one.place].get(name)
            if adapter is None or name in self._embeddings:
                continue
            part = LowRank(adapter.a, adapter.b[first : first + weight.n_rows], adapter.scale * gain)
            start, end = (one.first, one.end) if len(y) == len(step.ids) else self._outputs(step, one.first, one.end)
            y[start:end] += twin_lora(x[start:end], part, one.scale)

    @staticmethod
    def _outputs(step: StepInputs, first: int, end: int) -> tuple[int, int]:
        """First and end of the output rows among rows first .. end - 1."""
        start, stop = np.searchsorted(step.output_rows, [first, end])
        return int(start), int(stop)

    def _rope(
        self, inputs: list[F32], step: StepInputs, head_dim: int, n_rot: int, pairing: Pairing, freqs: RopeSpec
    ) -> F32:
        if (freqs, n_rot) not in self._tables:
            self._tables[freqs, n_rot] = freqs.tables(n_rot, self.n_ctx)
        cos, sin = self._tables[freqs, n_rot]
        return twin_rope(inputs[0], step.positions, cos, sin, head_dim, pairing)

    def _attention(self, inputs: list[F32], step: StepInputs, layer: int, **attrs: Any) -> F32:
        q, k, v = inputs
        self._kv.write(layer, step, k, v)
        out = np.empty_like(q)
        for slot in np.unique(step.slots):
            mine = step.slots == slot
            positions = step.positions[mine]
            keys, values = self._kv.read(layer, step, int(slot), int(positions.max()) + 1)
            out[mine] = twin_attention(q[mine], keys, values, positions, **attrs)
        return out


ELEMENTWISE: dict[str, Callable[..., F32]] = {
    "scale": twin_scale,
    "softcap": twin_softcap,
    "add": twin_add,
    "swiglu": twin_swiglu,
    "geglu": twin_geglu,
    "gelu": twin_gelu,
    "add_vector": twin_add_vector,
}
