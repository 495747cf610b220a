"""The description of a forward pass as a list of operations; it knows neither threads nor how anything is computed.

A model builds a `Graph` once. Afterwards `kernels_cpu.twin` evaluates it with NumPy and
`kernels_cpu.tape` lowers it to compiled kernels. A step runs `n` tokens (rows), each with
an id, a position and the sequence slot it belongs to, and asks for the logits of `n_out`
of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels_cpu import KernelError

Rows = Literal["n", "n_out"]
Pairing = Literal["interleaved", "half"]
Pooling = Literal["mean", "cls", "last"]

PAGE_POSITIONS = 32
"""Positions in a page of the KV cache."""


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix as a GGUF stores it: `n_rows` rows of `n_cols` elements (the contiguous dimension).

    `data` is uint8 [n_rows * row_bytes], the raw blocks of ggml type `type_id`, row after row;
    it is a view (of a mapped file, as a rule) and is never written to. `part_of` names the whole matrix and its row
    that comes first here, where this is some rows of one.
    """

    name: str
    type_id: int
    n_rows: int
    n_cols: int
    data: npt.NDArray[np.uint8]
    part_of: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        if self.n_rows < 1 or self.n_cols < 1:
            raise KernelError(
                f"weight `{self.name}`: expected at least one row and column, got {self.n_rows} x {self.n_cols}"
            )
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or self.data.nbytes % self.n_rows:
            raise KernelError(
                f"weight `{self.name}`: expected uint8 bytes that divide into {self.n_rows} rows, "
                f"got {self.data.dtype} {self.data.shape}"
            )

    @property
    def row_bytes(self) -> int:
        return self.data.nbytes // self.n_rows


@dataclass(frozen=True, eq=False)
class Vector:
    """A float32 vector [n]: the weight of a norm, or a bias."""

    name: str
    data: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.data.dtype != np.float32 or self.data.ndim != 1:
            raise KernelError(f"vector `{self.name}`: expected float32 [n], got {self.data.dtype} {self.data.shape}")

    @property
    def size(self) -> int:
        return int(self.data.shape[0])


@dataclass(frozen=True, eq=False)
class RopeSpec:
    """The angles of a rotary position embedding; what is left at its default has no effect.

    Pair i of `n_rot / 2` turns by `pos * freq_base^(-2i / n_rot)` radians, divided by `factors[i]` if given
    (float32 [n_rot / 2]) and multiplied by `freq_scale` (linear scaling: 1 / factor). With `ext_factor` not 0
    (YaRN, arXiv:2309.00071 section 3.2), pairs that turn more than `beta_fast` times within `n_ctx_orig` positions
    keep their angle, those below `beta_slow` are scaled by `freq_scale`, and a ramp lies between; the magnitude
    grows by 1 + 0.1 ln(1 / freq_scale). `attn_factor` multiplies cosine and sine in any case.
    """

    freq_base: float = 10000.0
    freq_scale: float = 1.0
    factors: npt.NDArray[np.float32] | None = None
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0

    def tables(self, n_rot: int, n_ctx: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosines and sines of positions 0 .. n_ctx - 1, each float32 [n_ctx, n_rot / 2], computed in float64."""
        angles = np.arange(n_ctx, dtype=np.float64)[:, None] * self.frequencies(n_rot)[None, :]
        magnitude = self.magnitude()
        return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)

    def frequencies(self, n_rot: int) -> npt.NDArray[np.float64]:
        """Radians per position of each pair, float64 [n_rot / 2]."""
        pair = np.arange(n_rot // 2, dtype=np.float64)
        full = self.freq_base ** (-2.0 * pair / n_rot)
        if self.factors is not None:
            if self.factors.shape != pair.shape:
                raise KernelError(f"rope: expected {n_rot // 2} frequency factors, got {self.factors.shape}")
            full = full / self.factors.astype(np.float64)
        scaled = full * self.freq_scale
        if self.ext_factor == 0.0:
            return scaled
        low, high = self._ramp_ends(n_rot)
        ramp = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
        share = ramp * self.ext_factor
        return scaled * (1.0 - share) + full * share

    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.ext_factor == 0.0:
            return self.attn_factor
        return self.attn_factor * (1.0 + 0.1 * math.log(1.0 / self.freq_scale))

    def _ramp_ends(self, n_rot: int) -> tuple[float, float]:
        """Pairs between which YaRN's ramp lies: those that turn beta_fast and beta_slow times within n_ctx_orig."""

        def pair_turning(n_turns: float) -> float:
            return n_rot * math.log(self.n_ctx_orig / (n_turns * 2 * math.pi)) / (2 * math.log(self.freq_base))

        low, high = math.floor(pair_turning(self.beta_fast)), math.ceil(pair_turning(self.beta_slow))
        return max(0, low), min(n_rot - 1, high)


@dataclass(frozen=True, eq=False)
class LowRank:
    """What an adapter adds to a matrix of n_rows x n_cols: scale · b @ a, a float32 [rank, n_cols], b [n_rows, rank].

    For the embedding of tokens a is float32 [n_rows, rank] and b [n_cols, rank]: row t grows by scale · b @ a[t].
    """

    a: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]
    scale: float

    @property
    def rank(self) -> int:
        return int(self.b.shape[1])


@dataclass(frozen=True)
class Adaptation:
    """That the adapter in a place changes the matrices for rows first .. end - 1 of a step, `scale` times."""

    first: int
    end: int
    place: int
    scale: float


@dataclass(frozen=True, eq=False)
class StagedRows:
    """That the last rows of a step, those from `first` on, go through the stages begin .. end - 1 of a graph only (see
    `stages`): through those before they went in earlier steps, through the rest they will. In `values` they are kept
    between steps, by whoever evaluates them; before stage 0 it is empty.
    """

    first: int
    begin: int
    end: int
    values: dict[Value, npt.NDArray[np.uint8]]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """What one step runs; every array is int32 and C-order.

    Row i is token `ids[i]` at position `positions[i]` of the sequence in slot `slots[i]`, each [n]. A slot's row of
    `page_tables` [n_slots, max_pages] names the pages of its cache: position p lies in page
    `page_tables[slot, p // 32]` at p % 32. `output_rows` [n_out] are the rows whose logits are wanted, in this order.
    With `adaptations` the output rows ascend; those of one row are applied in their order. Of `staged` rows there is an
    output only once they are through.
    """

    ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    page_tables: npt.NDArray[np.int32]
    output_rows: npt.NDArray[np.int32]
    adaptations: tuple[Adaptation, ...] = ()
    staged: StagedRows | None = None


@dataclass(frozen=True, eq=False)
class Value:
    """The result of node `index`: float32 [rows, cols], the rows being tokens ("n") or outputs ("n_out")."""

    index: int
    rows: Rows
    cols: int


@dataclass(frozen=True, eq=False)
class Node:
    """One operation. `attrs` holds its weights, RopeSpec and numbers under the names of the builder's arguments."""

    op: str
    inputs: list[Value]
    attrs: dict[str, Any]
    output: Value


@dataclass(frozen=True)
class KVLayer:
    """What one position of a layer's KV cache holds: a key and a value of `n_head_kv * head_dim` elements each."""

    n_head_kv: int
    head_dim: int


@dataclass
class Graph:
    """Builds and holds a forward pass; `nodes` is in the order of execution.

    All methods raise KernelError when shapes do not fit.
    """

    nodes: list[Node] = field(default_factory=list)
    kv_layers: dict[int, KVLayer] = field(default_factory=dict)
    logits: Value | None = None
    hidden: Value | None = None

    def embedding(self, weight: Weight) -> Value:
        """Row `token id` of `weight`, dequantised -> [n, n_cols]."""
        return self._add("embedding", [], {"weight": weight}, "n", weight.n_cols)

    def position_embedding(self, weight: Weight) -> Value:
        """Row `position` of `weight`, dequantised -> [n, n_cols]."""
        return self._add("position_embedding", [], {"weight": weight}, "n", weight.n_cols)

    def add_vector(self, x: Value, v: Vector) -> Value:
        """x + v, the same for every row."""
        self._check("add_vector", f"a vector of {x.cols} elements", v.size == x.cols, f"{v.size} in `{v.name}`")
        return self._add("add_vector", [x], {"v": v}, x.rows, x.cols)

    def layer_norm(self, x: Value, w: Vector, b: Vector | None, eps: float) -> Value:
        """(x - mean(x)) * w / sqrt(mean((x - mean(x))^2) + eps) + b, the means over a row."""
        for vector in (w, b) if b else (w,):
            self._check("layer_norm", f"{x.cols} elements", vector.size == x.cols, f"{vector.size} in `{vector.name}`")
        return self._add("layer_norm", [x], {"w": w, "b": b, "eps": float(eps)}, x.rows, x.cols)

    def scale(self, x: Value, c: float) -> Value:
        """x * c"""
        return self._add("scale", [x], {"c": float(c)}, x.rows, x.cols)

    def softcap(self, x: Value, c: float) -> Value:
        """c * tanh(x / c)"""
        self._check("softcap", "c > 0", c > 0, c)
        return self._add("softcap", [x], {"c": float(c)}, x.rows, x.cols)

    def rms_norm(self, x: Value, w: Vector, eps: float) -> Value:
        """x * w / sqrt(mean(x^2) + eps), the mean over a row."""
        self._check("rms_norm", f"a weight of {x.cols} elements", w.size == x.cols, f"{w.size} in `{w.name}`")
        return self._add("rms_norm", [x], {"w": w, "eps": float(eps)}, x.rows, x.cols)

    def head_norm(self, x: Value, w: Vector, eps: float, head_dim: int) -> Value:
        """RMS norm of each run of `head_dim` columns, all with the same weight [head_dim]."""
        self._check("head_norm", f"a multiple of head_dim = {head_dim} columns", _divides(head_dim, x.cols), x.cols)
        self._check("head_norm", f"a weight of {head_dim} elements", w.size == head_dim, f"{w.size} in `{w.name}`")
        return self._add("head_norm", [x], {"w": w, "eps": float(eps), "head_dim": head_dim}, x.rows, x.cols)

    def linear(self, x: Value, weight: Weight, bias: Vector | None = None, adapter_gain: float = 1.0) -> Value:
        """x @ weight.T + bias -> [rows, weight.n_rows]

        What an adapter adds to the product is multiplied by `adapter_gain`, to make up for an operation that follows.
        """
        self._check("linear", f"`{weight.name}` with {x.cols} columns", weight.n_cols == x.cols, weight.n_cols)
        if bias is not None:
            self._check(
                "linear",
                f"a bias of {weight.n_rows} elements",
                bias.size == weight.n_rows,
                f"{bias.size} in `{bias.name}`",
            )
        attrs = {"weight": weight, "bias": bias, "adapter_gain": adapter_gain}
        return self._add("linear", [x], attrs, x.rows, weight.n_rows)

    def rope(self, x: Value, head_dim: int, n_rot: int, pairing: Pairing, freqs: RopeSpec) -> Value:
        """Rotates the first `n_rot` columns of each head by the row's position.

        Pairs are columns (2i, 2i + 1) when interleaved, (i, i + n_rot / 2) for halves: (a, b) becomes
        (a cos - b sin, a sin + b cos). Columns from n_rot on are kept.
        """
        self._check("rope", "rows that are tokens (n)", x.rows == "n", x.rows)
        self._check("rope", f"a multiple of head_dim = {head_dim} columns", _divides(head_dim, x.cols), x.cols)
        self._check("rope", f"an even n_rot in 2..{head_dim}", 2 <= n_rot <= head_dim and n_rot % 2 == 0, n_rot)
        self._check("rope", "pairing interleaved or half", pairing in ("interleaved", "half"), pairing)
        attrs = {"head_dim": head_dim, "n_rot": n_rot, "pairing": pairing, "freqs": freqs}
        return self._add("rope", [x], attrs, x.rows, x.cols)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        layer: int,
        n_head: int,
        n_head_kv: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Value:
        """Writes k and v into the KV cache of `layer`, then attends causally -> [n, n_head * head_dim].

        Scores are q.k * scale, then soft-capped (if softcap > 0). A row at position p of a sequence sees the positions
        p' <= p of the same sequence, and only those with p - p' < window if window > 0. Query head h reads key head
        h // (n_head / n_head_kv).
        """
        self._check(
            "attention", "n_head as a multiple of n_head_kv", _divides(n_head_kv, n_head), f"{n_head} and {n_head_kv}"
        )
        for name, x, cols in (
            ("q", q, n_head * head_dim),
            ("k", k, n_head_kv * head_dim),
            ("v", v, n_head_kv * head_dim),
        ):
            self._check("attention", f"{name} [n, {cols}]", x.rows == "n" and x.cols == cols, f"[{x.rows}, {x.cols}]")
        self._check("attention", "a layer that has no cache yet", layer not in self.kv_layers, layer)
        self._check("attention", "window and softcap >= 0", window >= 0 and softcap >= 0, f"{window} and {softcap}")
        self.kv_layers[layer] = KVLayer(n_head_kv, head_dim)
        attrs = {
            "layer": layer,
            "n_head": n_head,
            "n_head_kv": n_head_kv,
            "head_dim": head_dim,
            "scale": float(scale),
            "window": int(window),
            "softcap": float(softcap),
        }
        return self._add("attention", [q, k, v], attrs, "n", n_head * head_dim)

    def attention_within(
        self, q: Value, k: Value, v: Value, n_head: int, n_head_kv: int, head_dim: int, scale: float, window: int = 0
    ) -> Value:
        """Attends to all positions of the same sequence, before and after -> [n, n_head * head_dim].

        Needs no cache, but every sequence whole, from position 0 on, in one step. A row at position p sees the
        positions p', and only those with |p - p'| <= window // 2 if window > 0. Query head h reads key head
        h // (n_head / n_head_kv).
        """
        name = "attention_within"
        self._check(name, "n_head as a multiple of n_head_kv", _divides(n_head_kv, n_head), f"{n_head} and {n_head_kv}")
        for operand, x, heads in (("q", q, n_head), ("k", k, n_head_kv), ("v", v, n_head_kv)):
            fits = x.rows == "n" and x.cols == heads * head_dim
            self._check(name, f"{operand} [n, {heads * head_dim}]", fits, f"[{x.rows}, {x.cols}]")
        self._check(name, "a window >= 0", window >= 0, window)
        attrs = {"n_head": n_head, "n_head_kv": n_head_kv, "head_dim": head_dim, "scale": float(scale)}
        return self._add(name, [q, k, v], {**attrs, "window": int(window)}, "n", n_head * head_dim)

    def add(self, x: Value, y: Value) -> Value:
        """x + y"""
        return self._binary("add", x, y)

    def swiglu(self, gate: Value, up: Value) -> Value:
        """gate / (1 + exp(-gate)) * up"""
        return self._binary("swiglu", gate, up)

    def geglu(self, gate: Value, up: Value) -> Value:
        """0.5 gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) * up"""
        return self._binary("geglu", gate, up)

    def gelu(self, x: Value) -> Value:
        """x (1 + erf(x / sqrt(2))) / 2"""
        return self._add("gelu", [x], {}, x.rows, x.cols)

    def pool(self, x: Value, kind: Pooling) -> Value:
        """One row of each sequence that has an output row: [n, cols] -> [n_out, cols].

        It is the mean of the sequence's rows, its first or its last. Every sequence must be whole, in one step.
        """
        self._check("pool", "rows that are tokens (n)", x.rows == "n", x.rows)
        self._check("pool", "mean, cls or last", kind in ("mean", "cls", "last"), kind)
        return self._add("pool", [x], {"kind": kind}, "n_out", x.cols)

    def select_outputs(self, x: Value) -> Value:
        """The rows whose logits the step asks for, in the order asked: [n, cols] -> [n_out, cols]."""
        self._check("select_outputs", "rows that are tokens (n)", x.rows == "n", x.rows)
        return self._add("select_outputs", [x], {}, "n_out", x.cols)

    def output(self, logits: Value, hidden: Value | None = None) -> None:
        """Names the step's result, [n_out, n_vocab], and what stands for a text, [n_out, cols].

        The latter is, unless it is given, what the last product reads.
        """
        self._check("output", "rows that are outputs (n_out)", logits.rows == "n_out", logits.rows)
        self._check("output", "one result", self.logits is None, "a second one")
        self.logits = logits
        self.hidden = hidden or self._read_by_last_product(logits)

    def _read_by_last_product(self, logits: Value) -> Value | None:
        node = self.nodes[logits.index]
        while node.op in ("softcap", "scale"):
            node = self.nodes[node.inputs[0].index]
        return node.inputs[0] if node.op == "linear" else None

    @property
    def is_bidirectional(self) -> bool:
        """Whether rows see what comes after them, so that a sequence must be whole in one step."""
        return any(node.op == "attention_within" for node in self.nodes)

    @property
    def n_vocab(self) -> int:
        """Columns of the result. Raises KernelError before `output`."""
        if self.logits is None:
            raise KernelError("graph: expected a call of `output`, got none")
        return self.logits.cols

    def weights(self) -> Iterator[Weight]:
        """Each matrix once, in the order of first use."""
        return iter(dict.fromkeys(a for node in self.nodes for a in node.attrs.values() if isinstance(a, Weight)))

    def _binary(self, op: str, x: Value, y: Value) -> Value:
        self._check(
            op, f"two values [{x.rows}, {x.cols}]", (x.rows, x.cols) == (y.rows, y.cols), f"[{y.rows}, {y.cols}]"
        )
        return self._add(op, [x, y], {}, x.rows, x.cols)

    def _add(self, op: str, inputs: list[Value], attrs: dict[str, Any], rows: Rows, cols: int) -> Value:
        for x in inputs:
            known = x.index < len(self.nodes) and self.nodes[x.index].output is x
            self._check(op, "inputs made by this graph", known, f"value {x.index}")
        output = Value(len(self.nodes), rows, cols)
        self.nodes.append(Node(op, inputs, attrs, output))
        return output

    @staticmethod
    def _check(op: str, expected: str, holds: bool, got: object) -> None:
        if not holds:
            raise KernelError(f"{op}: expected {expected}, got {got}")


def _divides(part: int, whole: int) -> bool:
    return part > 0 and whole % part == 0
