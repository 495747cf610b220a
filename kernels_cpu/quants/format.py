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

from collections.abc import Callable, Iterator, Sequence
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
#
# NumPy is slow where it works on pieces of few bytes. Rows are therefore moved in words of 4 bytes, and bits only
# once 16 rows lie side by side.


def per_row(x: Bytes) -> Bytes:
    """The 1 or 2 bytes that each row has once a block, uint8 [g, 16, nb, n] -> [g, nb, 16·n], row after row."""
    elements = x.view(f"u{x.shape[-1]}")[..., 0]
    return np.ascontiguousarray(elements.transpose(0, 2, 1)).view(np.uint8)


def per_sub(x: Bytes, n_sub: int) -> Bytes:
    """The bytes that each row has n times a sub-block, uint8 [g, 16, nb, n_sub·n] -> [g, nb, n_sub, n·16]."""
    g, _, nb, _ = x.shape
    return x.transpose(0, 2, 3, 1).reshape(g, nb, n_sub, -1)


def interleave(codes: Bytes) -> Bytes:
    """Groups of 4 bytes a row side by side: uint8 [g, 16, nb, 4·n] -> [g, nb, n, 64]."""
    words = codes.view(np.uint32)
    return np.ascontiguousarray(words.transpose(0, 2, 3, 1)).view(np.uint8)


def interleave_apart(codes: Bytes, n: int, apart: int = 1) -> Bytes:
    """As interleave, with vectors in n piles: uint8 [g, 16, nb, 4·apart·n·m] -> [n, g, nb, m, 64·apart].

    [i, ..., j, :] are the `apart` vectors from (j·n + i)·apart on.
    """
    g, r, nb, _ = codes.shape
    words = codes.view(np.uint32).reshape(g, r, nb, -1, n, apart)
    piles = np.ascontiguousarray(words.transpose(4, 0, 2, 3, 5, 1)).view(np.uint8)
    return piles.reshape(n, g, nb, -1, 64 * apart)


def transpose_fields(piles: Bytes, width: int) -> Bytes:
    """Swap place in a byte and place in a pile: in uint8 [8 / width, ..., 64·n] bits f·width.. of byte [i, ...] become
    bits i·width.. of byte [f, ...]. It works in place."""
    words = piles.view(np.uint64)
    for shift, low in ((4, 0x0F0F0F0F0F0F0F0F), (2, 0x3333333333333333), (1, 0x5555555555555555)):
        if shift >= width:
            pairs = words.reshape(-1, 2, shift // width, *words.shape[1:])
            a, b, by = pairs[:, 0], pairs[:, 1], np.uint64(shift)
            differs = ((a >> by) ^ b) & np.uint64(low)
            b ^= differs
            a ^= differs << by
    return piles


def code_vectors(codes: Bytes) -> Bytes:
    """Codes of a byte, uint8 [g, 16, nb, n_sub, 32] -> the 8 code vectors of each sub-block, [g, nb, n_sub, 8, 64]."""
    g, r, nb, n_sub, _ = codes.shape
    return interleave(codes.reshape(g, r, nb, -1)).reshape(g, nb, n_sub, 8, 64)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Codes below 16, uint8 [g, 16, nb, n_sub, 32] -> 4 nibble vectors, [g, nb, n_sub, 256]."""
    v = code_vectors(codes)
    return (v[..., :4, :] | (v[..., 4:, :] * np.uint8(16))).reshape(*v.shape[:3], 256)


def pack_nibble_pairs(codes: Bytes) -> Bytes:
    """As pack_nibbles, with columns 8j.. in the low and 8j + 4.. in the high nibbles of vector j."""
    v = code_vectors(codes)
    return (v[..., ::2, :] | (v[..., 1::2, :] * np.uint8(16))).reshape(*v.shape[:3], 256)


def pack_two_bits(codes: Bytes) -> Bytes:
    """Codes below 4, uint8 [g, 16, nb, n_sub, 32] -> 2 planes, [g, nb, n_sub, 128]."""
    v = code_vectors(codes)
    v = v.reshape(*v.shape[:3], 2, 4, 64) * np.array([[1], [4], [16], [64]], np.uint8)
    return np.bitwise_or.reduce(v, axis=4).reshape(*v.shape[:3], 128)


def pack_bits(bits: Bytes) -> Bytes:
    """Bits of 32 columns in 4 bytes, uint8 [g, 16, nb, 4·n] -> planes, [g, nb, n, 64]."""
    words = interleave(bits).view(np.uint32)
    plane = np.zeros_like(words)
    for k in range(8):
        four = (words >> np.uint32(4 * k)) & np.uint32(15)
        # The product has bit j of the four at 8j + k.
        plane |= (four * np.uint32(0x00204081 << k)) & np.uint32(0x01010101 << k)
    return plane.view(np.uint8)


def pack_super_blocks(head: Sequence[Bytes], subs: Sequence[Bytes]) -> Bytes:
    """Parts of the header, [g, nb, n], and of the sub-blocks, [g, nb, n_sub, n] -> [g, nb, bytes]."""
    g, nb, n_sub, _ = subs[0].shape
    head_bytes, sub_bytes = (sum(part.shape[-1] for part in parts) for parts in (head, subs))
    packed = np.empty((g, nb, head_bytes + n_sub * sub_bytes), np.uint8)
    if head:
        np.concatenate(head, axis=-1, out=packed[..., :head_bytes])
    np.concatenate(subs, axis=-1, out=packed[..., head_bytes:].reshape(g, nb, n_sub, sub_bytes))
    return packed
