"""LoRA adapters as kernels see them: which matrices of a graph can have one, and the table of those in force.

An adapter adds scale · B A to a matrix (arXiv:2106.09685), at run time: y = W x + scale · B (A x). It knows no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_cpu import KernelError
from kernels_cpu.graph import Adaptation, Graph, LowRank, Node
from kernels_cpu.ops import float_bits
from kernels_cpu.ops.lora import APPLICATION_WORDS, FIRST_APPLICATION, MATRIX_WORDS, MAX_RANK

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

PLACES = 32
"""Adapters that can be in force at once."""

MAX_PER_ROW = 8
"""Adapters that a row of a step can have."""

_TOP_EXPONENT = 14
"""Halves are stored times a power of 2 that brings the largest just below 2^14: so many small ones stay exact."""


@dataclass(frozen=True)
class Part:
    """Rows of a matrix from `first_row` on, `n_rows` of them, that the node with entry `index` of the table multiplies.

    `gain` is what an adapter's part is multiplied by there.
    """

    index: int
    first_row: int
    n_rows: int
    gain: float


@dataclass
class Target:
    """A matrix that can have an adapter."""

    n_rows: int
    n_cols: int
    is_embedding: bool
    parts: list[Part] = field(default_factory=list)

    def shapes(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Shapes of a and b of that rank."""
        if self.is_embedding:
            return (self.n_rows, rank), (self.n_cols, rank)
        return (rank, self.n_cols), (self.n_rows, rank)


def can_have_adapter(node: Node) -> bool:
    """Whether adapters may change what a node computes."""
    return node.op in ("linear", "embedding")


def entries(graph: Graph) -> dict[Node, int]:
    """The entry in the table of each node that can have an adapter."""
    return {node: index for index, node in enumerate(filter(can_have_adapter, graph.nodes))}


def targets(graph: Graph) -> dict[str, Target]:
    """What adapters can change, by the names of tensors.

    A matrix that is both embedding and head is changed as an embedding alone. A matrix of which several nodes multiply
    some rows each is one target.
    """
    found: dict[str, Target] = {}
    for node, index in entries(graph).items():
        weight, is_embedding = node.attrs["weight"], node.op == "embedding"
        name, first = weight.part_of or (weight.name, 0)
        target = found.setdefault(name, Target(0, weight.n_cols, is_embedding))
        if target.is_embedding == is_embedding:
            target.n_rows = max(target.n_rows, first + weight.n_rows)
            target.parts.append(Part(index, first, weight.n_rows, node.attrs.get("adapter_gain", 1.0)))
    return found


class PackedAdapter:
    """An adapter for the kernels: `words` are its entries of the table, int64 [matrices, MATRIX_WORDS]."""

    def __init__(self, found: Mapping[str, Target], matrices: Mapping[str, LowRank]) -> None:
        """Packs what is given, by the names of targets. Raises: KernelError for shapes that do not fit."""
        n_entries = 1 + max(part.index for target in found.values() for part in target.parts)
        self.words: I64 = np.zeros((n_entries, MATRIX_WORDS), np.int64)
        self.nbytes = 0
        self._keep: list[Any] = []
        for name, pair in matrices.items():
            self._add(name, found[name], pair)

    def _add(self, name: str, target: Target, pair: LowRank) -> None:
        shapes = pair.a.shape, pair.b.shape
        if shapes != target.shapes(pair.rank) or not 1 <= pair.rank <= MAX_RANK:
            raise KernelError(f"adapter of `{name}`: expected {target.n_rows} x {target.n_cols}, got {shapes}")
        a, exponent = _halves(pair.a)
        packed_a = self._hold(_embedding_rows(a) if target.is_embedding else _groups_of_rows(a))
        for part in target.parts:
            rows = slice(None) if target.is_embedding else slice(part.first_row, part.first_row + part.n_rows)
            b, own_exponent = _halves(pair.b[rows])
            factor = math.ldexp(pair.scale * part.gain, -exponent - own_exponent)
            entry = (packed_a, self._hold(_units_of_columns(b)), pair.rank, float_bits(factor))
            self.words[part.index] = entry

    def _hold(self, array: npt.NDArray[np.float16]) -> int:
        self._keep.append(array)
        self.nbytes += array.nbytes
        return int(array.ctypes.data)


def _halves(x: F32) -> tuple[npt.NDArray[np.float16], int]:
    """x times 2^exponent as halves, and the exponent."""
    largest = float(np.abs(x).max(initial=0.0))
    exponent = _TOP_EXPONENT - math.frexp(largest)[1] if largest > 0 else 0
    return np.ldexp(x, exponent).astype(np.float16), exponent


def _filled(x: npt.NDArray[np.float16], axis: int, unit: int) -> npt.NDArray[np.float16]:
    """x with zeros up to a multiple of `unit` along an axis."""
    widths = [(0, -x.shape[i] % unit if i == axis else 0) for i in range(x.ndim)]
    return np.pad(x, widths)


def _groups_of_rows(a: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """[rank, n_cols] -> [rank / 16][n_cols, filled up to 32s][16]"""
    filled = _filled(_filled(a, 0, 16), 1, 32)
    return np.ascontiguousarray(filled.reshape(-1, 16, filled.shape[1]).transpose(0, 2, 1))


def _units_of_columns(b: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """[n_rows, rank] -> [n_rows / 32][rank][32]"""
    filled = _filled(b, 0, 32)
    return np.ascontiguousarray(filled.reshape(-1, 32, b.shape[1]).transpose(0, 2, 1))


def _embedding_rows(a: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """[tokens, rank] -> [tokens][rank, filled up to 16s]"""
    return np.ascontiguousarray(_filled(a, 1, 16))


class AdapterTable:
    """Where the kernels find adapters, and what they do to the rows of a step; the addresses do not change.

    A place that no row of a running step uses may be filled and emptied at any time.
    """

    def __init__(self, graph: Graph, n_applications: int) -> None:
        self.entries = entries(graph)
        self._words: I64 = np.zeros((PLACES, len(self.entries), MATRIX_WORDS), np.int64)
        self._in_place: list[PackedAdapter | None] = [None] * PLACES
        n_words = FIRST_APPLICATION + APPLICATION_WORDS * n_applications
        self._applications: dict[str, I64] = {rows: np.zeros(n_words, np.int64) for rows in ("n", "n_out")}

    @property
    def nbytes(self) -> int:
        """Memory of the adapters that are in a place."""
        return sum(adapter.nbytes for adapter in self._in_place if adapter)

    @property
    def place_bytes(self) -> int:
        """Bytes from an entry to that of the next place."""
        return int(self._words.strides[0])

    def entry_address(self, node: Node) -> int:
        """Where the entry of a node's matrix is in the first place."""
        return int(self._words.ctypes.data) + 8 * MATRIX_WORDS * self.entries[node]

    def applications_address(self, rows: str) -> int:
        """Where the list of what is done to rows ("n" or "n_out") begins."""
        return int(self._applications[rows].ctypes.data)

    def put(self, place: int, adapter: PackedAdapter | None) -> None:
        """Fill a place, or empty it."""
        self._words[place] = 0
        if adapter is not None:
            self._words[place, : len(adapter.words)] = adapter.words
        self._in_place[place] = adapter

    def set(self, adaptations: tuple[Adaptation, ...], output_rows: npt.NDArray[np.int32]) -> None:
        """Say what is done to the rows of the next step."""
        ends = np.searchsorted(output_rows, [(one.first, one.end) for one in adaptations])
        self._set("n", [(one.first, one.end, one) for one in adaptations])
        self._set("n_out", [(int(f), int(e), one) for (f, e), one in zip(ends, adaptations, strict=True)])

    def _set(self, rows: str, ranges: list[tuple[int, int, Adaptation]]) -> None:
        words: list[int] = []
        at = 0
        for first, end, one in ranges:
            words += [first, end, one.place, float_bits(one.scale), at, 0, 0, 0]
            at += end - first
        applications = self._applications[rows]
        applications[0] = len(ranges)
        applications[FIRST_APPLICATION : FIRST_APPLICATION + len(words)] = words
