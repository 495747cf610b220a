"""What the types of the KV cache make of keys and values, in NumPy; it knows no pages, and nothing of attention.

| type | holds |
| --- | --- |
| f32, f16 | the values; beyond 65504 f16 holds infinity |
| q8_0 | runs of 32 values of a head: d = max abs x / 127 as f16, integers in -127..127 |
| q4_0 | runs of 32 values of a head: d = x / -8 as f16, x being the value largest in magnitude; integers in -8..7 |

A head whose size is not a multiple of 32 ends with a shorter run. Where a type says so, heads of a multiple of 64
values are first turned by an orthonormal Walsh-Hadamard transform: outliers spread over many values, which then need a
smaller scale. Scores stay, since queries are turned alike; the attention's result is turned back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

BLOCK = 32
"""Values that share a scale."""

VALUE_ROTATION = 64
"""Values of a head that are turned together."""


@dataclass(frozen=True)
class KVRounding:
    """A type of the cache: the bits of a value, and whether heads are rotated first."""

    name: str
    bits: int
    rotates: bool = False

    def key_rotation(self, head_dim: int) -> int:
        """Size of the transform of keys and queries, a power of 2; 1: none."""
        return head_dim & -head_dim if self.rotates and head_dim % 64 == 0 else 1

    def value_rotation(self, head_dim: int) -> int:
        """Size of the transform of values and results; 1: none."""
        return VALUE_ROTATION if self.rotates and head_dim % 64 == 0 else 1

    def keys(self, k: F32, head_dim: int) -> F32:
        """Keys [n, n_head_kv * head_dim] as the cache gives them back, turned back too."""
        return self._rounded(k, head_dim, self.key_rotation(head_dim))

    def values(self, v: F32, head_dim: int) -> F32:
        """Values [n, n_head_kv * head_dim] as the cache gives them back, turned back too."""
        return self._rounded(v, head_dim, self.value_rotation(head_dim))

    def _rounded(self, x: F32, head_dim: int, size: int) -> F32:
        heads = rotated(x.reshape(-1, head_dim), size)
        if self.bits == 16:
            with np.errstate(over="ignore"):
                heads = heads.astype(np.float16).astype(np.float32)
        elif self.bits < 16:
            heads = _by_blocks(heads, self.bits)
        return rotated(heads, size).reshape(x.shape)


KV_ROUNDINGS: dict[str, KVRounding] = {
    kind.name: kind
    for kind in (
        KVRounding("f32", 32),
        KVRounding("f16", 16),
        KVRounding("q8_0", 8, rotates=True),
        KVRounding("q4_0", 4, rotates=True),
    )
}


def rotated(x: F32, size: int) -> F32:
    """The orthonormal Walsh-Hadamard transform of each run of `size` (a power of 2) columns; its own inverse.

    Stages of sums and differences of elements 1, 2, 4, ... apart, then times 1 / sqrt(size), all in float32.
    """
    y, step = x, 1
    while step < size:
        pairs = y.reshape(-1, 2, step)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        step *= 2
    return y.reshape(x.shape) * np.float32(size**-0.5)


def quantised(heads: F32, bits: int) -> tuple[npt.NDArray[np.int8], F32]:
    """Integers [n, n_blocks, 32] and scales [n, n_blocks] of heads [n, head_dim], the last block filled with zeros.

    Scales are halves; integers are taken with the rounded scale: rint(x / d), half to even, as x times 1 / d.
    """
    n, head_dim = heads.shape
    blocks = np.zeros((n, -(-head_dim // BLOCK), BLOCK), np.float32)
    blocks.reshape(n, -1)[:, :head_dim] = heads
    largest, smallest = blocks.max(axis=2), blocks.min(axis=2)
    if bits == 8:
        d, low, high = np.maximum(largest, -smallest) / np.float32(127), -127, 127
    else:
        d, low, high = np.where(-smallest >= largest, smallest, largest) / np.float32(-8), -8, 7
    d = d.astype(np.float16).astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    return np.clip(np.rint(blocks * inverse[:, :, None]), low, high).astype(np.int8), d


def _by_blocks(heads: F32, bits: int) -> F32:
    codes, d = quantised(heads, bits)
    return (codes * d[:, :, None]).reshape(len(heads), -1)[:, : heads.shape[1]]
