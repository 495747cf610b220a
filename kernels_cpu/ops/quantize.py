"""Activations as integers with a scale for every 32 columns, the input of linear layers: what writes a value calls
this block by block.

A quantised row is a run of records, one a block of 32 columns: the integers q (32 or 64 bytes), then 32 bytes of

    d f32 | s f32 = d * float(isum) | isum i32 = sum of q | halves i32 [2] = sums of q of each 16 columns
    | lanes i16 [2] = sums of q over the columns 0, 1 and 2, 3 of each 4 | half lanes i16 [2][2] = these of each 16

so that a record of 8-bit activations is a cache line, and all that a product reads of a block has one address. The
sums over lanes are those of the AVX2 product, which adds up columns 0, 1 and 2, 3 of each 4 apart, in 16 bits; with
16-bit activations they are not used, and 0.
"""

from __future__ import annotations

from numba import float32, int32, types

from kernels_cpu.simd import (
    bitcast,
    column_sums,
    even_then_odd,
    f32x16,
    fptosi,
    hmax,
    i8x16,
    i16x16,
    i32x16,
    splat,
    st_f32,
    st_i32,
    store,
    trunc,
    vabs,
    vmax,
    vmin,
    vrint,
    word_f32,
)
from kernels_cpu.subroutine import subroutine

BLOCK = 32
"""Columns that share a scale."""

SMALLEST = 1e-33
"""Blocks whose largest magnitude is below this count as zero: the inverse of their scale would overflow."""


WORDS_BYTES = 32
"""What follows the integers of a block."""

D, S, ISUM, HALVES, LANES, HALF_LANES = 0, 4, 8, 12, 20, 24
"""Byte offsets of the words behind the integers."""


def record_bytes(bits: int) -> int:
    """Bytes of a block of activations of 8 or 16 bits."""
    return BLOCK * bits // 8 + WORDS_BYTES


RECORD_8, RECORD_16 = record_bytes(8), record_bytes(16)


@subroutine(i32x16, inlined=True)
def _to_integers(x: object, inverse: float, levels: float) -> object:
    """rint(x * inverse) within +-levels as i32x16; NaN becomes some integer in that range."""
    limit = splat(f32x16, levels)
    y = vrint(vmin(vmax(x * splat(f32x16, inverse), splat(f32x16, -levels)), limit))
    return fptosi(i32x16, y)


@subroutine(types.UniTuple(float32, 2), inlined=True)
def _scales(a: object, b: object, levels: float) -> tuple[float, float]:
    """Scale d and inverse of a block of two f32x16. The largest magnitude is found among the bits of |x|, where NaN
    is largest of all: a block with NaN gets d = NaN."""
    largest = word_f32(hmax(vmax(bitcast(i32x16, vabs(a)), bitcast(i32x16, vabs(b)))))
    if largest < SMALLEST:
        return float32(0.0), float32(0.0)
    return largest / float32(levels), float32(levels) / largest


@subroutine(inlined=True)
def _store_words(d: float, i0: object, i1: object, words: int, with_lanes: bool) -> None:
    """Write what follows a block's integers, which are i0 and i1, to `words`."""
    a0, b0 = column_sums(i0)
    a1, b1 = column_sums(i1)
    total = int32(a0 + b0 + a1 + b1)
    st_f32(words + D, d)
    st_f32(words + S, d * float32(total))
    st_i32(words + ISUM, total)
    st_i32(words + HALVES, int32(a0 + b0))
    st_i32(words + HALVES + 4, int32(a1 + b1))
    if with_lanes:
        st_i32(words + LANES, int32((a0 + a1 & 0xFFFF) | (b0 + b1 << 16)))
        st_i32(words + HALF_LANES, int32((a0 & 0xFFFF) | (b0 << 16)))
        st_i32(words + HALF_LANES + 4, int32((a1 & 0xFFFF) | (b1 << 16)))


@subroutine(inlined=True)
def store_block_8(a: object, b: object, record: int) -> None:
    """Quantise the 32 floats of two f32x16 to a record of 8 bits: d = max|x| / 127, q = rint(x * (127 / max|x|)).

    A block of zeros has d = 0 and q = 0; one with NaN or infinity has such a d.
    """
    d, inverse = _scales(a, b, 127.0)
    i0, i1 = _to_integers(a, inverse, 127.0), _to_integers(b, inverse, 127.0)
    store(record, trunc(i8x16, i0))
    store(record + 16, trunc(i8x16, i1))
    _store_words(d, i0, i1, record + 32, True)


@subroutine(inlined=True)
def store_block_16(a: object, b: object, record: int) -> None:
    """Quantise the 32 floats of two f32x16 to a record of 16 bits: d = max|x| / 32767, q = rint(x * (32767 / max|x|)).

    Within each 4 columns q holds the even ones first: 0 2 1 3. Products take even and odd columns apart.
    Zeros, NaN and infinity are as with 8 bits.
    """
    d, inverse = _scales(a, b, 32767.0)
    i0, i1 = _to_integers(a, inverse, 32767.0), _to_integers(b, inverse, 32767.0)
    store(record, even_then_odd(trunc(i16x16, i0)))
    store(record + 32, even_then_odd(trunc(i16x16, i1)))
    _store_words(d, i0, i1, record + 64, False)


@subroutine(inlined=True)
def write_block(floats: int, quantised: int, bits: int, k: int, a: object, b: object) -> None:
    """Block k of a row, of the columns in a and b (f32x16), in the forms that are wanted: as floats where that address
    is not 0, as a record where bits are 8 or 16."""
    if floats != 0:
        store(floats + 128 * k, a)
        store(floats + 128 * k + 64, b)
    if bits == 8:
        store_block_8(a, b, quantised + RECORD_8 * k)
    elif bits == 16:
        store_block_16(a, b, quantised + RECORD_16 * k)
