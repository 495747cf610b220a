"""Our dequantisers of newer types: blocks worked out by hand, what llama.cpp makes of some that it quantised itself
(recorded in fixtures/quant_blocks.npz), and the `gguf` package where it reads the type."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from kernels_cpu import KernelError
from kernels_cpu.graph import Weight
from kernels_cpu.quants.reference import DEQUANTISERS, dequantise_rows
from kernels_cpu.quants.table import QUANT_TYPES
from kernels_cpu.twin import dequantise

RECORDED = Path(__file__).parents[1] / "fixtures" / "quant_blocks.npz"

ONE = bytes([0x00, 0x3C])  # 1.0 in f16
TWO = bytes([0x00, 0x40])


def values(type_id: int, block: bytes) -> list[float]:
    return list(dequantise_rows(np.frombuffer(block, np.uint8)[None], type_id)[0])


def test_tq1_0_by_hand() -> None:
    # 256 / 3^5 times 2·81 + 0·27 + 1·9 + 2·3 + 1·1, rounded up, holds 2 0 1 2 1.
    q = -(-(2 * 81 + 9 + 6 + 1) * 256 // 243)
    got = values(34, bytes([q] + [0] * 51) + TWO)
    assert [got[32 * n] for n in range(5)] == [2, -2, 0, 2, 0]
    assert got[1] == -2
    got = values(34, bytes([0] * 32 + [q] + [0] * 15 + [q, 0, 0, 0]) + TWO)
    assert [got[160 + 16 * n] for n in range(5)] == [2, -2, 0, 2, 0]
    assert [got[240 + 4 * n] for n in range(4)] == [2, -2, 0, 2]


def test_tq2_0_by_hand() -> None:
    got = values(35, bytes([0b11_10_01_00] + [0] * 31 + [0b00_01_10_11] + [0] * 31) + TWO)
    assert [got[32 * j] for j in range(8)] == [-2, 0, 2, 4, 4, 2, 0, -2]


@pytest.mark.parametrize(("e", "scale"), [(128, 1.0), (127, 0.5), (2, 2.0**-126), (1, 2.0**-127), (0, 2.0**-128)])
def test_mxfp4_by_hand(e: int, scale: float) -> None:
    got = values(39, bytes([e] + [0x10 * (15 - j) + j for j in range(16)]))
    twice = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
    assert got[:16] == [scale * v for v in twice]
    assert got[16:] == [scale * v for v in reversed(twice)]


@pytest.mark.parametrize(
    ("byte", "scale"),
    [(0x38, 1.0), (0x40, 2.0), (0x3C, 1.5), (0x01, 2**-9), (0x08, 2**-6), (0x7E, 448.0), (0, 0.0), (0x7F, 0.0)],
)
def test_nvfp4_by_hand(byte: int, scale: float) -> None:
    quarter = [0x10 * (15 - j) + j for j in range(8)]
    got = values(40, bytes([byte, 0x38, 0, 0x38]) + bytes(quarter * 4))
    half = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -6, -4, -3, -2, -1.5, -1, -0.5, 0]
    assert got[:16] == [scale * v for v in half]
    assert got[16:32] == half
    assert got[32:48] == [0] * 16


def test_q1_0_by_hand() -> None:
    got = values(41, TWO + bytes([0b10000001, 0xFF] + [0] * 14))
    assert got[:18] == [2, -2, -2, -2, -2, -2, -2, 2, 2, 2, 2, 2, 2, 2, 2, 2, -2, -2]


def test_q2_0_by_hand() -> None:
    got = values(42, ONE + bytes([0b11_10_01_00, 0b00_01_10_11] + [0] * 14))
    assert got[:9] == [-1, 0, 1, 2, 2, 1, 0, -1, -1]


@pytest.mark.parametrize("type_id", DEQUANTISERS)
def test_llama_cpp_says_the_same(type_id: int) -> None:
    name = QUANT_TYPES[type_id].format.name
    with np.load(RECORDED) as recorded:
        got = dequantise_rows(recorded[f"{name}.blocks"], type_id)
        np.testing.assert_array_equal(got, recorded[f"{name}.values"])


@pytest.mark.parametrize("type_id", DEQUANTISERS)
def test_the_gguf_package_says_the_same_where_it_knows_the_type(type_id: int) -> None:
    block_bytes, _ = DEQUANTISERS[type_id]
    rng = np.random.default_rng(type_id)
    rows = rng.integers(0, 128, (9, 5, block_bytes), np.uint8)  # no f16 above is infinite
    rows[..., -1] &= 0x3F
    rows[..., 1] &= 0x3F
    rows = rows.reshape(9, -1)
    try:
        want = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(type_id))
    except (ValueError, NotImplementedError):
        pytest.skip("this version of the package does not")
    np.testing.assert_array_equal(dequantise_rows(rows, type_id), want)


def test_bytes_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(KernelError, match="ggml type 39"):
        dequantise(Weight("w", 39, 1, 32, np.zeros(18, np.uint8)))
