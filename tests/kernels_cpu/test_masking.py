"""Masks of bits over logits, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_cpu.masking import WORD_BITS, masked


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000])
def test_bits_keep_logits(n: int) -> None:
    rng = np.random.default_rng(n)
    words = rng.integers(0, 1 << WORD_BITS, -(-n // WORD_BITS), dtype=np.uint32)
    logits, out = rng.normal(size=n).astype(np.float32), np.zeros(n + 1, np.float32)
    masked(words.ctypes.data, logits.ctypes.data, out.ctypes.data, n)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=n).astype(bool)
    assert np.array_equal(out[:n], np.where(bits, logits, np.float32(-np.inf)))
    assert out[n] == 0
    masked(words.ctypes.data, logits.ctypes.data, logits.ctypes.data, n)
    assert np.array_equal(logits, out[:n])
