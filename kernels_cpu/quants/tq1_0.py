"""TQ1_0: 256 columns in 54 bytes; value = d·(code - 1), codes in 0..2.

GGUF block   48 bytes of 5 codes | 4 bytes of 4 codes | d f16. A byte q holds its n-th code as the integer part of
             3·((q·3^n) mod 256) / 256. Bytes 0..31: code n of byte l belongs to column l + 32n; 32..47: to
             l - 32 + 16n + 160; the last 4: to l - 48 + 4n + 240
packed       as TQ2_0: 66 bytes a row in place of 54, since base 3 has no fast decoding
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.linear import product_kernels
from kernels_cpu.quants.format import Bytes, Format, pack_super_blocks, pack_two_bits, per_row
from kernels_cpu.quants.q2_k import emit_two_bits
from kernels_cpu.quants.q6_k import emit_header
from kernels_cpu.quants.tq2_0 import emit_scales


def _unpack_trits(qs: Bytes, n: int) -> Bytes:
    """The n codes of each byte, uint8 [..., k] -> [..., n·k]: the first code of all bytes, then the second."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:n, None]
    shifted = (qs[..., None, :] * powers).astype(np.uint16)
    return (shifted * np.uint16(3) >> np.uint16(8)).astype(np.uint8).reshape(*qs.shape[:-1], -1)


def unpack_codes(qs: Bytes) -> Bytes:
    """The codes of 52 bytes, uint8 [..., 52] -> [..., 256]."""
    parts = (qs[..., :32], 5), (qs[..., 32:48], 5), (qs[..., 48:], 4)
    return np.concatenate([_unpack_trits(part, n) for part, n in parts], axis=-1)


def _pack(v: Bytes) -> Bytes:
    codes = unpack_codes(v[..., :52]).reshape(*v.shape[:3], 8, 32)
    return pack_super_blocks([per_row(v[..., 52:])], [pack_two_bits(codes)])


FORMAT = Format(
    name="TQ1_0",
    type_id=34,
    block_columns=256,
    block_bytes=54,
    header_bytes=32,
    sub_bytes=128,
    max_code=2,
    zero_point=1,
    pack=_pack,
    emit_header=emit_header,
    emit_scales=emit_scales,
    emit_codes=lambda b, p: emit_two_bits(b, p, 0),
)

linear, linear_16, embedding = product_kernels(FORMAT, __name__)
