"""MXFP4: 32 columns in 17 bytes; value = 2^(e - 128)·VALUES[code], twice the numbers of the OCP's E2M1.

GGUF block   e u8 | 16 bytes of nibbles as in Q4_0
packed       e u8 x 16 rows | 4 nibble vectors

Source of the number formats: OCP Microscaling Formats (MX) Specification 1.0. E8M0's NaN, 255, is not looked for:
the reader of files refuses it.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import GROUP_ROWS, Bytes, Format, Header, Scales, interleave, no_header, per_row
from kernels_cpu.quants.iq4_nl import emit_nibbles_of_table
from kernels_cpu.simd import I8, V_F32X16, V_I32X16, Builder, const, emit_load, emit_pick, ir

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
BIAS = 12
TABLE = tuple(v + BIAS for v in VALUES)


def _pack(v: Bytes) -> Bytes:
    qs = interleave(v[..., 1:])
    return np.concatenate([per_row(v[..., :1]), qs.reshape(*qs.shape[:2], 256)], axis=-1)


def _scales(b: Builder, p: ir.Value, header: Header) -> Scales:
    """2^(e - 128): the exponent's bits, or below e = 2 a denormal's, which is then the larger of both integers."""
    e = b.zext(emit_load(b, ir.VectorType(I8, GROUP_ROWS), p), V_I32X16)
    normal = b.shl(b.sub(e, const(V_I32X16, 1)), const(V_I32X16, 23))
    denormal = b.shl(b.add(e, const(V_I32X16, 1)), const(V_I32X16, 21))
    return Scales((b.bitcast(emit_pick(b, ">", normal, denormal), V_F32X16),))


FORMAT = Format(
    name="MXFP4",
    type_id=39,
    block_columns=32,
    block_bytes=17,
    header_bytes=0,
    sub_bytes=272,
    max_code=max(TABLE),
    zero_point=BIAS,
    pack=_pack,
    emit_header=no_header,
    emit_scales=_scales,
    emit_codes=lambda b, p: emit_nibbles_of_table(b, p, 16, TABLE),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)
