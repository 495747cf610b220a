"""Dequantisers in NumPy of the types that not every allowed version of the `gguf` package reads.

Written after the layouts that each type's own file draws, without its packing or kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

E2M1_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _half(v: Bytes) -> F32:
    return np.ascontiguousarray(v).view("<f2").astype(np.float32)


def _nibbles(qs: Bytes) -> Bytes:
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _tq1_0(v: Bytes) -> F32:
    digits = []
    for part, n in ((v[:, :32], 5), (v[:, 32:48], 5), (v[:, 48:52], 4)):
        digits += [((part.astype(np.int32) * 3**i) % 256 * 3) // 256 for i in range(n)]
    return _half(v[:, 52:]) * (np.concatenate(digits, axis=-1) - 1).astype(np.float32)


def _tq2_0(v: Bytes) -> F32:
    codes = [(v[:, 32 * i : 32 * i + 32] >> shift) & 3 for i in range(2) for shift in (0, 2, 4, 6)]
    return _half(v[:, 64:]) * (np.concatenate(codes, axis=-1).astype(np.float32) - 1)


def _mxfp4(v: Bytes) -> F32:
    scale = np.ldexp(np.float32(1), v[:, :1].astype(np.int32) - 128).astype(np.float32)
    return scale * E2M1_TWICE[_nibbles(v[:, 1:])]


def _nvfp4(v: Bytes) -> F32:
    s = v[:, :4, None].astype(np.int32)
    exponent, mantissa = (s >> 3) & 15, (s & 7).astype(np.float32)
    scale = np.where(exponent == 0, np.ldexp(mantissa, -10), np.ldexp(1 + mantissa / 8, exponent - 8))
    scale = np.where(s == 127, 0, scale).astype(np.float32)
    return (scale * E2M1_TWICE[_nibbles(v[:, 4:].reshape(-1, 4, 8))]).reshape(len(v), 64)


def _q1_0(v: Bytes) -> F32:
    return _half(v[:, :2]) * (2 * np.unpackbits(v[:, 2:], axis=-1, bitorder="little").astype(np.float32) - 1)


def _q2_0(v: Bytes) -> F32:
    codes = np.stack([(v[:, 2:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    return _half(v[:, :2]) * (codes.reshape(len(v), 64).astype(np.float32) - 1)


# By ggml type id: bytes of a block, and the function from blocks uint8 [n, bytes] to float32 [n, columns].
DEQUANTISERS: dict[int, tuple[int, Callable[[Bytes], F32]]] = {
    34: (54, _tq1_0),
    35: (66, _tq2_0),
    39: (17, _mxfp4),
    40: (36, _nvfp4),
    41: (18, _q1_0),
    42: (18, _q2_0),
}


def dequantise_rows(rows: Bytes, type_id: int) -> F32:
    """uint8 [n_rows, row_bytes] -> float32 [n_rows, n_cols]. Raises: ValueError when blocks do not fill the rows."""
    block_bytes, dequantiser = DEQUANTISERS[type_id]
    return dequantiser(rows.reshape(-1, block_bytes)).reshape(len(rows), -1)
