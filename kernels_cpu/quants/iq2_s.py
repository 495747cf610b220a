"""IQ2_S: 256 columns in 82 bytes, 16 sub-blocks of 16; value = d·(2·s + 1) / 8·(+-8, 25 or 43).

GGUF block   d f16 | 32 bytes: the lower 8 bits of places in a grid of 1024 times 8 magnitudes | 32 bytes of signs,
             a bit a column | 8 bytes: the upper 2 bits of 4 places | 8 bytes of s, a nibble a sub-block
packed       as IQ2_XS
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format
from kernels_cpu.quants.grids import grid, sign_bits, signed_codes
from kernels_cpu.quants.iq2_xs import odd_scales, pack_half_scales
from kernels_cpu.quants.iq2_xxs import MAGNITUDES, TABLE, emit_codes, emit_header
from kernels_cpu.quants.q6_k import emit_scales


def _pack(v: Bytes) -> Bytes:
    high = (v[..., 66:74, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    places = v[..., 2:34] | (high.reshape(*v.shape[:3], 32).astype(np.uint16) << np.uint16(8))
    codes = signed_codes(grid("IQ2_S")[places], sign_bits(v[..., 34:66]), 3).reshape(*v.shape[:3], 8, 32)
    return pack_half_scales(v[..., :2], odd_scales(v[..., 74:]), codes)


FORMAT = Format(
    name="IQ2_S",
    type_id=22,
    block_columns=256,
    block_bytes=82,
    header_bytes=32,
    sub_bytes=224,
    max_code=max(TABLE),
    zero_point=MAGNITUDES[-1],
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_codes(b, p, 32, TABLE),
    n_scales=2,
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)
