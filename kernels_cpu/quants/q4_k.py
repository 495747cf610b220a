"""Q4_K: 256 columns in 144 bytes, 8 sub-blocks of 32; value = d·sc·code - dmin·mn.

    GGUF block   d f16 | dmin f16 | 12 bytes: eight 6-bit sc and mn | 128 bytes: of each 64 columns, the
                 first 32 in the low and the last 32 in the high nibbles of 32 bytes
    packed       d f16 x 16 rows | dmin f16 x 16 rows, then for each sub-block
                 sc u8 x 16 rows | mn u8 x 16 rows | 4 nibble vectors

The scales are unpacked to bytes (3 % more memory): unpacking them in the kernel costs more than reading them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import (
    Bytes,
    Format,
    Header,
    Scales,
    emit_bytes,
    emit_halves,
    emit_nibbles,
    pack_nibbles,
    per_row,
)
from kernels_cpu.simd import Builder, ir


def unpack_scales(s: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes of 6-bit pairs, uint8 [..., 12] -> sc and mn, each [..., 8]."""
    low, middle, high = s[..., :4], s[..., 4:8], s[..., 8:]
    sc = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    mn = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    return sc, mn


def unpack_codes(qs: Bytes) -> Bytes:
    """The nibbles of 128 bytes by sub-block: uint8 [..., 128] -> [..., 8, 32]."""
    q = qs.reshape(*qs.shape[:-1], 4, 1, 32)
    return np.concatenate([q & 15, q >> 4], axis=-2).reshape(*qs.shape[:-1], 8, 32)


def pack_super_blocks(head: list[Bytes], subs: Iterator[list[Bytes]]) -> Bytes:
    """Parts [g, nb, n] of the header and of each sub-block in turn -> [g, nb, bytes]."""
    return np.concatenate([*head, *(part for parts in subs for part in parts)], axis=-1)


def _pack(v: Bytes) -> Bytes:
    sc, mn = unpack_scales(v[..., 4:16])
    codes = unpack_codes(v[..., 16:])
    subs = (
        [per_row(sc[..., j : j + 1]), per_row(mn[..., j : j + 1]), pack_nibbles(codes[..., j, :])] for j in range(8)
    )
    return pack_super_blocks([per_row(v[..., :2]), per_row(v[..., 2:4])], subs)


def emit_header(b: Builder, p: ir.Value) -> Header:
    """d and -dmin of 16 rows."""
    return emit_halves(b, p), b.fneg(emit_halves(b, p, 32))


def emit_scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    """d·sc and -dmin·mn of 16 rows."""
    d, dmin = header
    sc, mn = emit_bytes(b, p, 0, signed=False), emit_bytes(b, p, 16, signed=False)
    return Scales((b.fmul(d, sc),), b.fmul(dmin, mn))


FORMAT = Format(
    name="Q4_K",
    type_id=12,
    block_columns=256,
    block_bytes=144,
    header_bytes=64,
    sub_bytes=288,
    max_code=15,
    zero_point=0,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_nibbles(b, p, 32),
    n_minimums=1,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)
