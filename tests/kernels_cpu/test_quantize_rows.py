"""Rows are quantised to what the `gguf` package reads back; what cannot be quantised is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from kernels_cpu.quantize import TYPES, quantize_rows
from kernels_cpu.quantize.blocks import BLOCKS

# Largest error over the root of the mean square of normal random values.
ERROR = {
    "F32": 0, "F16": 3e-4, "BF16": 2e-3, "Q8_0": 0.01, "Q6_K": 0.02, "Q5_K": 0.04, "Q5_1": 0.04, "Q5_0": 0.05,
    "Q4_K": 0.08, "Q4_1": 0.09, "Q4_0": 0.1, "IQ4_NL": 0.08, "IQ4_XS": 0.08, "MXFP4": 0.13, "Q3_K": 0.17, "Q2_K": 0.36,
    "TQ1_0": 0.95, "TQ2_0": 0.95,
}  # fmt: skip


def dequantized(type_name: str, rows: np.ndarray) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[type_name]
    return np.asarray(gguf.quants.dequantize(rows, kind), np.float32)


def normal(n_rows: int, n_cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_rows, n_cols)).astype(np.float32)


def test_blocks_are_as_gguf_has_them() -> None:
    assert set(ERROR) == TYPES
    for name, block in BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (block.columns, block.n_bytes)


@pytest.mark.parametrize("type_name", sorted(TYPES))
def test_what_is_read_back_is_near(type_name: str) -> None:
    x = normal(19, 512)
    found = dequantized(type_name, quantize_rows(type_name, x))
    assert found.shape == x.shape
    assert np.sqrt(np.square(found - x).mean()) <= ERROR[type_name]


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0", "BF16"])
def test_bytes_are_those_of_the_gguf_package(type_name: str) -> None:
    x = np.concatenate([normal(17, 512), np.zeros((1, 512), np.float32), normal(3, 512, seed=1) * 1e3])
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType[type_name])
    assert np.array_equal(quantize_rows(type_name, x), expected.reshape(len(x), -1))


@pytest.mark.parametrize("type_name", sorted(TYPES))
def test_float16_and_bfloat16_are_taken_as_the_numbers_they_are(type_name: str) -> None:
    half = normal(3, 256).astype(np.float16)
    assert np.array_equal(quantize_rows(type_name, half), quantize_rows(type_name, half.astype(np.float32)))
    brain = (normal(3, 256).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    wide = (brain.astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert np.array_equal(quantize_rows(type_name, brain), quantize_rows(type_name, wide))


@pytest.mark.parametrize("type_name", sorted(name for name, block in BLOCKS.items() if block.is_weighted))
def test_importance_lowers_the_error_where_it_counts(type_name: str) -> None:
    x = normal(16, 256)
    importance = np.where(np.arange(256) % 5, np.float32(0.01), np.float32(1))

    def lost(rows: np.ndarray) -> float:
        return float((np.square(dequantized(type_name, rows) - x) * importance).sum())

    assert lost(quantize_rows(type_name, x, importance)) < 0.97 * lost(quantize_rows(type_name, x))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("type_name", sorted(TYPES))
def test_a_row_that_is_not_finite_is_named(type_name: str, value: float) -> None:
    x = normal(21, 256)
    x[18, 77] = x[20, 1] = value
    with pytest.raises(ValueError, match="row 18"):
        quantize_rows(type_name, x)


def test_no_rows() -> None:
    assert quantize_rows("Q4_K", np.zeros((0, 256), np.float32)).shape == (0, 144)


REFUSED = [
    ("Q9_K", normal(1, 256), None, "Q9_K"),
    ("Q4_K", normal(1, 128), None, "128 columns"),
    ("Q4_0", normal(1, 48), None, "48 columns"),
    ("Q4_0", normal(1, 32)[0], None, "float32"),
    ("Q4_0", normal(1, 32).astype(np.float64), None, "float64"),
    ("Q4_0", normal(1, 32), np.ones(31, np.float32), "31"),
    ("Q4_0", normal(1, 32), -np.ones(32, np.float32), "negative"),
]


@pytest.mark.parametrize(("name", "values", "importance", "words"), REFUSED)
def test_what_cannot_be_is_refused(name: str, values: np.ndarray, importance: np.ndarray | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        quantize_rows(name, values, importance)
