"""Takes logits out of the running by a mask of bits; it knows nothing of what the mask is for."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from kernels_cpu.compile import routine
from kernels_cpu.simd import f32x16, ld_f32, ld_i32, load, splat, st_f32, store

WORD_BITS = 32
HALF_BITS = 16


@intrinsic
def select_bits(tyctx, bits, x, y):  # type: ignore[no-untyped-def]
    """Lane i of x where bit i of an integer is set, else of y, both of 16 lanes."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        lanes = b.bitcast(b.trunc(a[0], ir.IntType(HALF_BITS)), ir.VectorType(ir.IntType(1), HALF_BITS))
        return b.select(lanes, a[1], a[2])

    return x(bits, x, y), gen


@routine("void(int64, int64, int64, int64)")
def masked(words: int, logits: int, out: int, n: int) -> None:
    """`out[i]` becomes `logits[i]` where bit i % 32 of `words[i // 32]` is set, else -inf, for i in 0..n-1.

    All are addresses: words of uint32 [ceil(n / 32)], logits and out of float32 [n], C-contiguous; out may be logits.
    One thread.
    """
    low = np.float32(-np.inf)
    lows = splat(f32x16, low)
    for i in range(n // WORD_BITS):
        word, at = ld_i32(words + 4 * i), 4 * WORD_BITS * i
        store(out + at, select_bits(word, load(f32x16, logits + at), lows))
        store(out + at + 64, select_bits(word >> HALF_BITS, load(f32x16, logits + at + 64), lows))
    for i in range(n // WORD_BITS * WORD_BITS, n):
        is_set = (ld_i32(words + 4 * (i // WORD_BITS)) >> (i % WORD_BITS)) & 1
        st_f32(out + 4 * i, ld_f32(logits + 4 * i) if is_set else low)
