"""Where a thread keeps the 16 blocks that it quantises side by side, a row of the matrix each; it knows no type.

float32 is [...][16], so that 64 bytes are one number of each block; bytes are [...][16] too.
"""

from __future__ import annotations

from numba import int32

from kernels_cpu.quantize.lanes import ROW, Vector, as_bytes, byte, half_bits, write_bytes
from kernels_cpu.simd import f32x16, i8x16, i32x16, load, splat, store, vmax
from kernels_cpu.subroutine import subroutine

X = 0
"""The values, float32 [256]."""

SEARCHED = 16384
"""The codes that were found with the scale, float32 [256]."""

WEIGHT, PRODUCT, TRIAL = 32768, 34816, 36864
"""How much the error of a value counts; other things a value of a sub-block; float32 [32] each."""

SCALES, MINIMA, TOTALS = 38912, 39936, 40960
"""Of each sub-block: scale, minimum, sum of weights; float32 [16] each."""

SCALE_CODES, MINIMUM_CODES = 41984, 43008
"""Of each sub-block: the codes of scale and minimum, float32 [16] each."""

CODES = 44032
"""The codes to be written, bytes [256]."""

OUT = 48128
"""The block as it will be in the file, bytes [256]."""

D, D_MINIMUM, MEAN_SQUARE, LARGEST, LARGEST_HALF = 52224, 52288, 52352, 52416, 52480
"""Scale and minimum of the block, mean square of the row; int32: bits of the largest magnitude, and half, seen."""

SCRATCH_BYTES = 52544


@subroutine(inlined=True)
def put(s: int, i: int, x: Vector) -> None:
    """Byte `i` of the block."""
    store(s + OUT + 16 * i, x)


@subroutine(inlined=True)
def put_half(s: int, i: int, x: Vector) -> None:
    """The half of x as bytes `i` and `i + 1` of the block."""
    bits = half_bits(x)
    put(s, i, byte(bits, 0))
    put(s, i + 1, byte(bits, 1))
    magnitude = bits & splat(i32x16, int32(0x7FFF))
    store(s + LARGEST_HALF, vmax(magnitude, load(i32x16, s + LARGEST_HALF)))


@subroutine(i8x16, inlined=True)
def code(s: int, i: int) -> Vector:
    """The code of column `i`."""
    return load(i8x16, s + CODES + 16 * i)


@subroutine(i8x16, inlined=True)
def scale_code(s: int, i: int) -> Vector:
    """The code of the scale of sub-block `i`."""
    return as_bytes(load(f32x16, s + SCALE_CODES + ROW * i))


@subroutine(i8x16, inlined=True)
def minimum_code(s: int, i: int) -> Vector:
    """The code of the minimum of sub-block `i`."""
    return as_bytes(load(f32x16, s + MINIMUM_CODES + ROW * i))


@subroutine()
def write_block(s: int, n_bytes: int, to: int, stride: int) -> None:
    """The block of at least 16 bytes to 16 rows, `stride` bytes apart."""
    for i in range(n_bytes // 16):
        write_bytes(s + OUT + 256 * i, to + 16 * i, stride)
    if n_bytes % 16 != 0:  # the last 16 bytes, some of them again
        write_bytes(s + OUT + 16 * (n_bytes - 16), to + n_bytes - 16, stride)
