"""IQ3_S: 256 columns in 110 bytes, 8 sub-blocks of 32; value = d·(2·s + 1)·(+-1, 3, 5, ... or 15).

GGUF block   d f16 | 64 bytes: the lower 8 bits of places in a grid of 512 times 4 magnitudes | 8 bytes: the ninth
             bit of each place | 32 bytes of signs, a bit a column | 4 bytes of s, a nibble a sub-block
packed       as IQ3_XXS, 138 bytes a row in place of 110; the value of nibble i is 2·i - 15
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format
from kernels_cpu.quants.grids import grid, sign_bits, signed_codes
from kernels_cpu.quants.iq2_xs import odd_scales
from kernels_cpu.quants.iq2_xxs import emit_scales
from kernels_cpu.quants.iq3_xxs import pack_nibble_blocks
from kernels_cpu.quants.q6_k import emit_header
from kernels_cpu.simd import V_I8X64, Builder, emit_load, emit_shift_mask, ir


def _pack(v: Bytes) -> Bytes:
    ninth = np.unpackbits(v[..., 66:74], axis=-1, bitorder="little").astype(np.uint16)
    places = grid("IQ3_S")[v[..., 2:66] | (ninth << np.uint16(8))].reshape(*v.shape[:3], 8, 32)
    codes = signed_codes(places, sign_bits(v[..., 74:106]).reshape(places.shape), 8)
    return pack_nibble_blocks(v[..., :2], odd_scales(v[..., 106:]), codes)


def _codes(b: Builder, p: ir.Value) -> Iterator[tuple[int, ir.Value]]:
    """Nibbles, doubled on the way."""
    for k in range(4):
        v = emit_load(b, V_I8X64, p, 16 + 64 * k)
        yield k, emit_shift_mask(b, v, -1, 30)
        yield k + 4, emit_shift_mask(b, v, 3, 30)


FORMAT = Format(
    name="IQ3_S",
    type_id=21,
    block_columns=256,
    block_bytes=110,
    header_bytes=32,
    sub_bytes=272,
    max_code=30,
    zero_point=15,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=_codes,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)
