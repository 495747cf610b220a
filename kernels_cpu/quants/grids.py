"""The grids and signs of the IQ types while packing: which values 4 or 8 neighbouring columns take together.

The grids come from the `gguf` package, which is imported only when such a type is packed. Kernels know none of this:
packed, every column has a code of its own.
"""

from __future__ import annotations

import functools

import numpy as np

from kernels_cpu.quants.format import Bytes


@functools.cache
def grid(name: str) -> Bytes:
    """The grid of an IQ type as places in its ascending list of values: uint8 [entries, 4 or 8]."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    values = np.array(kind.grid_map, np.float32)
    return np.searchsorted(values, kind.grid.reshape(kind.grid_shape)).astype(np.uint8)


def sign_bits(signs: Bytes) -> Bytes:
    """The bits of each byte, lowest first: uint8 [..., n] -> [..., n, 8]."""
    return np.unpackbits(signs[..., None], axis=-1, bitorder="little")


def with_parity(seven: Bytes) -> Bytes:
    """7 bits and an eighth that makes the number of ones even."""
    folded = seven ^ (seven >> np.uint8(4))
    folded ^= folded >> np.uint8(2)
    folded ^= folded >> np.uint8(1)
    return seven | (folded << np.uint8(7))


def words(v: Bytes, size: int) -> np.ndarray:
    """Little-endian integers of `size` bytes: uint8 [..., size·n] -> [..., n]."""
    return np.ascontiguousarray(v).view(f"<u{size}")


def signed_codes(places: Bytes, negative: Bytes, n: int) -> Bytes:
    """Places in an ascending list of n magnitudes, and signs (1 is minus), as places in -m[n - 1] .. m[n - 1]."""
    return np.where(negative == 1, np.uint8(n - 1) - places, np.uint8(n) + places)


def signed_table(magnitudes: tuple[int, ...]) -> tuple[int, ...]:
    """The list that signed_codes speaks of, biased so that it begins at 0."""
    top = magnitudes[-1]
    return (*(top - m for m in reversed(magnitudes)), *(top + m for m in magnitudes))
