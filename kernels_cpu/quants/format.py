"""What a quant type is to the rest of the package: how its rows are interleaved, and how code reads them back.

Weights are stored for the kernels in groups of 16 rows, so that a vector lane is a row: there are no
horizontal sums, and a matrix is one forward stream of about the GGUF's own size. A group holds, for
each run of 32 columns (a *sub-block*), scales first and then the codes of 4 neighbouring columns of
all 16 rows in each 64-byte vector:

    byte 4·row + j of vector k  =  the code of column 4k + j of that row

Codes of 4 bits share a vector: vector k holds columns 4k.. in the low and 16 + 4k.. in the high
nibbles, or 8k.. and 8k + 4.. where each half of a sub-block has a scale. Further bits lie in planes
of their own. K-quants put a header in front of 8 sub-blocks.

An integer dot product needs unsigned codes: value = scale·(code - zero_point) + minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from kernels_cpu.simd import (
    I8,
    I16,
    V_F32X16,
    V_I8X64,
    V_I32X16,
    Builder,
    const,
    emit_half_to_float,
    emit_load,
    emit_shift_mask,
)

GROUP_ROWS = 16
SUB_COLUMNS = 32
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Scales:
    """Of one sub-block, each <16 x f32>: a scale for all its columns or one for each half, and the minimum.

    With two scales there may be two minimums instead.
    """

    scales: tuple[ir.Value, ...]
    minimum: ir.Value | None = None
    half_minimums: tuple[ir.Value, ...] = ()


Header = tuple[ir.Value, ...]
EmitHeader = Callable[[Builder, ir.Value], Header]
EmitScales = Callable[[Builder, ir.Value, Header], Scales]
EmitCodes = Callable[[Builder, ir.Value], Iterator[tuple[int, ir.Value]]]


@dataclass(frozen=True)
class Format:
    """A quant type with integer codes; `emit_scales` gives `n_scales` (1 or 2) and `n_minimums`.

    `pack` takes the GGUF bytes of whole groups, uint8 [n_groups, 16, n_blocks, block_bytes], and gives
    uint8 [n_groups, n_blocks, header_bytes + n_sub·sub_bytes].
    """

    name: str
    type_id: int
    block_columns: int
    block_bytes: int
    header_bytes: int
    sub_bytes: int
    max_code: int
    zero_point: int
    pack: Callable[[Bytes], Bytes]
    emit_header: EmitHeader
    emit_scales: EmitScales
    emit_codes: EmitCodes
    n_scales: int = 1
    n_minimums: int = 0

    @property
    def n_sub(self) -> int:
        """Sub-blocks of 32 columns in a block."""
        return self.block_columns // SUB_COLUMNS

    @property
    def packed_block_bytes(self) -> int:
        """Bytes of 16 rows of one block."""
        return self.header_bytes + self.n_sub * self.sub_bytes


def no_header(b: Builder, block: ir.Value) -> Header:
    """For types whose blocks are single sub-blocks."""
    return ()


def emit_halves(b: Builder, addr: ir.Value, offset: int = 0) -> ir.Value:
    """16 halves, one a row, as <16 x f32>."""
    return emit_half_to_float(b, emit_load(b, ir.VectorType(I16, GROUP_ROWS), addr, offset))


def emit_bytes(b: Builder, addr: ir.Value, offset: int, *, signed: bool) -> ir.Value:
    """16 bytes, one a row, as <16 x f32>."""
    x = emit_load(b, ir.VectorType(I8, GROUP_ROWS), addr, offset)
    return b.sitofp(b.sext(x, V_I32X16) if signed else b.zext(x, V_I32X16), V_F32X16)


def emit_nibbles(b: Builder, addr: ir.Value, offset: int) -> Iterator[tuple[int, ir.Value]]:
    """The 8 code vectors of 4 nibble vectors at `addr + offset`: (k, codes of columns 4k..4k+3)."""
    for k in range(4):
        v = emit_load(b, V_I8X64, addr, offset + 64 * k)
        yield k, emit_shift_mask(b, v, 0, 15)
        yield k + 4, emit_shift_mask(b, v, 4, 15)


def emit_nibble_pairs(b: Builder, addr: ir.Value, offset: int) -> Iterator[tuple[int, ir.Value]]:
    """As emit_nibbles of what pack_nibble_pairs packs, in ascending order: for types whose halves are scaled apart."""
    for j in range(4):
        v = emit_load(b, V_I8X64, addr, offset + 64 * j)
        yield 2 * j, emit_shift_mask(b, v, 0, 15)
        yield 2 * j + 1, emit_shift_mask(b, v, 4, 15)


def emit_plane(b: Builder, plane: ir.Value, k: int, bits: int, to: int) -> ir.Value:
    """Bits k·bits.. of each byte of a plane, moved to bit `to`: the upper bits of code vector k."""
    return emit_shift_mask(b, plane, k * bits - to, ((1 << bits) - 1) << to)


def emit_bytes_as_codes(b: Builder, addr: ir.Value, offset: int) -> Iterator[tuple[int, ir.Value]]:
    """8 vectors of signed bytes as codes, which are biased by 128."""
    for k in range(8):
        yield k, b.xor(emit_load(b, V_I8X64, addr, offset + 64 * k), const(V_I8X64, 0x80))


# ------------------------------------------------------------------ packing, in NumPy


def per_row(x: Bytes) -> Bytes:
    """Bytes that each row has once a block, uint8 [g, 16, nb, n] -> [g, nb, 16·n], row after row."""
    g, r, nb, n = x.shape
    return x.transpose(0, 2, 1, 3).reshape(g, nb, r * n)


def interleave(codes: Bytes) -> Bytes:
    """Groups of 4 bytes a row side by side: uint8 [g, 16, nb, 4·n] -> [g, nb, n, 64]."""
    g, r, nb, n = codes.shape
    words = np.ascontiguousarray(codes).view(np.uint32).reshape(g, r, nb, n // 4)
    return np.ascontiguousarray(words.transpose(0, 2, 3, 1)).view(np.uint8).reshape(g, nb, n // 4, 64)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Codes below 16 of 32 columns, uint8 [g, 16, nb, 32] -> 4 nibble vectors, [g, nb, 256]."""
    v = interleave(codes[..., :16] | (codes[..., 16:] << np.uint8(4)))
    return v.reshape(*v.shape[:2], 256)


def pack_nibble_pairs(codes: Bytes) -> Bytes:
    """As pack_nibbles, with columns 8j.. in the low and 8j + 4.. in the high nibbles of vector j."""
    c = codes.reshape(*codes.shape[:3], 4, 2, 4)
    low, high = (np.ascontiguousarray(c[..., i, :]).reshape(*codes.shape[:3], 16) for i in range(2))
    v = interleave(low | (high << np.uint8(4)))
    return v.reshape(*v.shape[:2], 256)


def pack_plane(bits: Bytes, width: int) -> Bytes:
    """Values of `width` bits of 32 columns, uint8 [g, 16, nb, 32] -> planes [g, nb, 32·width·16 / 8]."""
    per_byte = 8 // width
    v = interleave(bits)  # [g, nb, 8, 64]
    v = v.reshape(*v.shape[:2], 8 // per_byte, per_byte, 64)
    shifts = (np.arange(per_byte, dtype=np.uint8) * width)[:, None]
    return np.bitwise_or.reduce(v << shifts, axis=3).reshape(*v.shape[:2], -1)


def split_nibbles(qs: Bytes) -> Bytes:
    """The bytes of a GGUF block, low nibbles first and then the high ones: [..., n] -> [..., 2n]."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)
