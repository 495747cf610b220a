"""Q3_K: 256 columns in 110 bytes, 16 sub-blocks of 16; value = d·(sc - 32)·(code - 4).

    GGUF block   32 bytes: bit j of byte i is the third bit of column i + 32j | 64 bytes of the lower 2 bits as in
                 Q2_K | 12 bytes: sixteen 6-bit sc, the lower 4 bits of sub-block i in byte i % 8, of the first 8 in
                 the low nibbles, the upper 2 in byte 8 + i % 4 at bit 2·(i / 4) | d f16
    packed       d f16 x 16 rows, then for each 32 columns
                 sc - 32 i8 x 16 rows of both halves | 3 vectors of 3-bit codes

Eight 3-bit codes fill three bytes: bytes 0, 1 and 2 hold codes (0, 1), (2, 3) and (4, 5) in their lower 6 bits. Code 6
is the upper 2 bits of byte 0 and bit 6 of byte 1, code 7 the upper 2 bits of byte 2 and bit 7 of byte 1. The scales
take whole bytes: 114 bytes a row in place of 110.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    GROUP_ROWS,
    Bytes,
    Format,
    interleave,
    interleave_apart,
    pack_super_blocks,
    per_row,
)
from kernels_cpu.quants.q6_k import emit_header, emit_scales
from kernels_cpu.simd import V_I8X64, Builder, emit_load, emit_shift_mask, ir


def pack_three_bits(c: Bytes) -> Bytes:
    """Code vectors below 8, uint8 [g, nb, n_sub, 8, 64] -> 3 vectors, [g, nb, n_sub, 192]."""
    vectors = c[..., :6:2, :] | (c[..., 1:6:2, :] * np.uint8(8))
    six, seven = c[..., 6, :], c[..., 7, :]
    vectors[..., 0, :] |= six * np.uint8(64)
    vectors[..., 1, :] |= ((six & 4) * np.uint8(16)) | ((seven & 4) * np.uint8(32))
    vectors[..., 2, :] |= seven * np.uint8(64)
    return vectors.reshape(*vectors.shape[:3], 192)


def emit_three_bits(b: Builder, p: ir.Value, offset: int) -> Iterator[tuple[int, ir.Value]]:
    """The 8 code vectors of 3 vectors at `p + offset`."""
    vectors = [emit_load(b, V_I8X64, p, offset + 64 * i) for i in range(3)]
    for k in range(6):
        yield k, emit_shift_mask(b, vectors[k // 2], k % 2 * 3, 7)
    for k, third in ((6, 4), (7, 5)):
        low = emit_shift_mask(b, vectors[2 * k - 12], 6, 3)
        yield k, b.or_(low, emit_shift_mask(b, vectors[1], third, 4))


def _pack_scales(s: Bytes) -> Bytes:
    """12 bytes of sixteen 6-bit numbers less 32, uint8 [g, 16, nb, 12] -> signed bytes as uint8 [g, nb, 8, 32]."""
    first, second, high = interleave_apart(s, 3)
    low = np.concatenate([first & 15, second & 15, first >> 4, second >> 4], axis=2)
    upper = (high >> np.array([[0], [2], [4], [6]], np.uint8)) & np.uint8(3)
    sc: Bytes = (low | (upper * np.uint8(16))) - np.uint8(32)  # [g, nb, 4, 64]
    return sc.reshape(*sc.shape[:3], GROUP_ROWS, 4).swapaxes(3, 4).reshape(*sc.shape[:2], 8, 32)


def _code_vectors(third: Bytes, lower: Bytes) -> Bytes:
    """Codes by run of 32 columns, uint8 [g, 16, nb, 32] and [g, 16, nb, 64] -> [g, nb, 8, 8, 64]."""
    bits, twos = interleave(third), interleave(lower)
    bits = np.stack([(bits >> np.uint8(j)) & np.uint8(1) for j in range(8)], axis=2)
    twos = twos.reshape(*twos.shape[:2], 2, 8, 64)
    twos = np.stack([(twos >> np.uint8(2 * j)) & np.uint8(3) for j in range(4)], axis=3)
    codes: Bytes = twos.reshape(bits.shape) | (bits * np.uint8(4))
    return codes


def _pack(v: Bytes) -> Bytes:
    subs = [_pack_scales(v[..., 96:108]), pack_three_bits(_code_vectors(v[..., :32], v[..., 32:96]))]
    return pack_super_blocks([per_row(v[..., 108:])], subs)


FORMAT = Format(
    name="Q3_K",
    type_id=11,
    block_columns=256,
    block_bytes=110,
    header_bytes=32,
    sub_bytes=224,
    max_code=7,
    zero_point=4,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_three_bits(b, p, 32),
    n_scales=2,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)
