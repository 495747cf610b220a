"""Takes logits out of the running by a mask of bits; it knows nothing of what the mask is for."""

from __future__ import annotations

import numpy as np

from kernels_cpu.compile import routine
from kernels_cpu.simd import ld_f32, ld_i32, st_f32

WORD_BITS = 32


@routine("void(int64, int64, int64, int64)")
def masked(words: int, logits: int, out: int, n: int) -> None:
    """`out[i]` becomes `logits[i]` where bit i % 32 of `words[i // 32]` is set, else -inf, for i in 0..n-1.

    All are addresses: words of uint32 [ceil(n / 32)], logits and out of float32 [n], C-contiguous; out may be logits.
    One thread.
    """
    low = np.float32(-np.inf)
    for i in range(n // WORD_BITS):
        word = ld_i32(words + 4 * i)
        for j in range(WORD_BITS):
            at = 4 * (i * WORD_BITS + j)
            logit = ld_f32(logits + at)
            st_f32(out + at, logit if (word >> j) & 1 else low)
    for at in range(n // WORD_BITS * WORD_BITS, n):
        is_set = (ld_i32(words + 4 * (at // WORD_BITS)) >> (at % WORD_BITS)) & 1
        st_f32(out + 4 * at, ld_f32(logits + 4 * at) if is_set else low)
