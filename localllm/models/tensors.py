"""Takes a model's tensors out of a GGUF by name and shape, and sees that all are used; it knows no architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_cpu.graph import Graph, Value, Vector, Weight
from localllm.errors import GGUFError, UnsupportedModelError

if TYPE_CHECKING:
    from localllm.gguf import GGUFFile, TensorInfo

_VECTOR_DTYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear layer of a file: matrix, optional bias, and a factor on the matrix (1.0 where the file has none)."""

    weight: Weight
    bias: Vector | None
    scale: float

    def apply(self, g: Graph, x: Value) -> Value:
        """x @ (weight * scale).T + bias"""
        if self.scale == 1.0:
            return g.linear(x, self.weight, self.bias)
        bias = None
        if self.bias is not None:
            bias = Vector(self.bias.name, self.bias.data / np.float32(self.scale))
        return g.scale(g.linear(x, self.weight, bias, adapter_gain=1.0 / self.scale), self.scale)


class Tensors:
    """The tensors of a file. What an architecture takes is ticked off; `finish` names what is left.

    Names are full (`blk.0.attn_q.weight`), stems are without the suffix. Shapes are (rows, columns), the columns being
    contiguous. All methods raise GGUFError where a tensor is missing or has another shape.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._tensors = file.tensors
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def n_rows(self, name: str) -> int:
        """Rows of a matrix, without ticking it off."""
        shape = _without_ones(self._find(name).shape)
        if len(shape) > 2:
            raise GGUFError(f"tensor `{name}`: expected two dimensions, got {list(shape)}")
        return shape[1] if len(shape) == 2 else 1

    def matrix(self, name: str, n_rows: int, n_cols: int) -> Weight:
        """A matrix of any type, as the file stores it."""
        info = self._take(name, (n_cols, n_rows))
        return Weight(name, int(info.type), n_rows, n_cols, info.data)

    def vector(self, name: str, size: int) -> Vector:
        """A vector as float32; stored as F32 or F16."""
        info = self._take(name, (size,))
        dtype = _VECTOR_DTYPES.get(int(info.type))
        if dtype is None:
            raise UnsupportedModelError(f"tensor `{name}`: expected type F32 or F16, got {info.type.name}")
        return Vector(name, info.data.view(dtype).astype(np.float32, copy=False))

    def first_row(self, name: str, n_cols: int) -> Vector:
        """The first row of a matrix, as float32; stored as F32 or F16."""
        n_rows = self.n_rows(name)
        info = self._take(name, (n_cols, n_rows))
        dtype = _VECTOR_DTYPES.get(int(info.type))
        if dtype is None:
            raise UnsupportedModelError(f"tensor `{name}`: expected type F32 or F16, got {info.type.name}")
        return Vector(f"{name}[0]", info.data.view(dtype)[:n_cols].astype(np.float32))

    def optional_vector(self, name: str, size: int) -> Vector | None:
        """A vector, or None if the file has none."""
        return self.vector(name, size) if name in self else None

    def projection(self, stem: str, n_rows: int, n_cols: int) -> Projection:
        """`stem.weight` with its optional `.bias` and `.scale`.

        `.input_scale` is meant for activations in the four-bit NVFP4 type; they are more exact here.
        """
        weight = self.matrix(f"{stem}.weight", n_rows, n_cols)
        bias = self.optional_vector(f"{stem}.bias", n_rows)
        scale = self.optional_vector(f"{stem}.scale", 1)
        self.skip(f"{stem}.input_scale")
        return Projection(weight, bias, 1.0 if scale is None else float(scale.data[0]))

    def qkv(self, block: str, n_embd: int, n_q: int, n_kv: int) -> tuple[Projection, Projection, Projection]:
        """Projections to queries, keys and values of a block: three tensors, or the rows of a fused `attn_qkv`."""
        if f"{block}.attn_qkv.weight" not in self:
            q = self.projection(f"{block}.attn_q", n_q, n_embd)
            k = self.projection(f"{block}.attn_k", n_kv, n_embd)
            return q, k, self.projection(f"{block}.attn_v", n_kv, n_embd)
        fused = self.projection(f"{block}.attn_qkv", n_q + 2 * n_kv, n_embd)
        ends = (n_q, n_q + n_kv, n_q + 2 * n_kv)
        q, k, v = (_rows(fused, end - size, end) for end, size in zip(ends, (n_q, n_kv, n_kv), strict=True))
        return q, k, v

    def output(self, embedding: Weight) -> Projection:
        """The projection to logits: `output`, or the embedding itself where the file has none (tied)."""
        if "output.weight" in self:
            return self.projection("output", embedding.n_rows, embedding.n_cols)
        return Projection(embedding, self.optional_vector("output.bias", embedding.n_rows), 1.0)

    def skip(self, name: str) -> None:
        """Ticks off a tensor that is known and has no part in generating text, if the file has it."""
        if name in self:
            self._taken.add(name)

    def finish(self) -> None:
        """Raises UnsupportedModelError if the file holds tensors that the architecture does not know."""
        surplus = [name for name in self._tensors if name not in self._taken]
        if surplus:
            more = f" and {len(surplus) - 3} more" if len(surplus) > 3 else ""
            names = ", ".join(f"`{name}`" for name in surplus[:3])
            raise UnsupportedModelError(f"unexpected tensors: {names}{more}")

    def _find(self, name: str) -> TensorInfo:
        if name not in self._tensors:
            raise GGUFError(f"missing tensor `{name}`")
        return self._tensors[name]

    def _take(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._find(name)
        if _without_ones(info.shape) != _without_ones(shape):
            raise GGUFError(f"tensor `{name}`: expected shape {list(shape)}, got {list(info.shape)}")
        self._taken.add(name)
        return info


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as some writers leave it, which drop dimensions of 1 at the end."""
    n = len(shape)
    while n > 1 and shape[n - 1] == 1:
        n -= 1
    return tuple(shape[:n])


def normed(g: Graph, t: Tensors, stem: str, x: Value, eps: float) -> Value:
    """The layer norm of x with `stem.weight` and its optional `.bias`."""
    return g.layer_norm(x, t.vector(f"{stem}.weight", x.cols), t.optional_vector(f"{stem}.bias", x.cols), eps)


def _rows(p: Projection, first: int, end: int) -> Projection:
    """Rows first .. end - 1 of a projection."""
    w = p.weight
    part = f"{w.name}[{first}:{end}]"
    data = w.data[first * w.row_bytes : end * w.row_bytes]
    weight = Weight(part, w.type_id, end - first, w.n_cols, data, part_of=(w.name, first))
    bias = None if p.bias is None else Vector(f"{p.bias.name}[{first}:{end}]", p.bias.data[first:end])
    return Projection(weight, bias, p.scale)
