"""Packing, rows and products of every quant type against the reference dequantiser, over odd sizes and extremes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_cpu import KernelError
from kernels_cpu.graph import Vector, Weight
from kernels_cpu.linear import CHUNK_ROWS, SCRATCH_BYTES, act_row_bytes
from kernels_cpu.ops import quantize, rows
from kernels_cpu.packing import pack, packed_shape
from kernels_cpu.quants.format import Format
from kernels_cpu.quants.table import QUANT_TYPES
from kernels_cpu.target import TARGET
from kernels_cpu.twin import dequantise

# Byte offsets of the f16 scales in a GGUF block: random bits there would be NaN.
HALVES = {
    "Q4_0": [0],
    "Q5_0": [0],
    "Q8_0": [0],
    "Q6_K": [208],
    "Q4_1": [0, 2],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
}
# The other types have files of their own.
NAMES = {n: id for id, q in QUANT_TYPES.items() if (n := q.format.name) in HALVES or q.takes_floats}
every_type = pytest.mark.parametrize("name", NAMES)
quantised = pytest.mark.parametrize("name", [n for n in NAMES if n in HALVES])


def random_weight(name: str, rows: int, cols: int, seed: int = 0, codes: int | None = None) -> Weight:
    """Random blocks of a type; `codes` fills everything but the scales with one byte."""
    rng, type_id = np.random.default_rng(seed), NAMES[name]
    fmt = QUANT_TYPES[type_id].format
    if not isinstance(fmt, Format):
        x = rng.standard_normal((rows, cols)).astype(np.float32)
        raw = gguf.quants.quantize(x, gguf.GGMLQuantizationType(type_id))
        return Weight("w", type_id, rows, cols, np.ascontiguousarray(raw).view(np.uint8).reshape(-1))
    shape = (rows, cols // fmt.block_columns, fmt.block_bytes)
    raw = rng.integers(0, 256, shape, np.uint8) if codes is None else np.full(shape, codes, np.uint8)
    for at in HALVES[name]:
        raw[..., at : at + 2] = rng.normal(0, 0.1, (*shape[:2], 1)).astype(np.float16).view(np.uint8)
    return Weight("w", type_id, rows, cols, raw.reshape(-1))


class Matrix:
    """A packed weight and the calls of its kernels."""

    def __init__(self, run: Any, weight: Weight) -> None:
        self.run, self.weight, self.shape = run, weight, packed_shape(weight)
        self.packed = np.zeros(self.shape.nbytes, np.uint8)
        pack(weight, self.packed)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        count, shape = np.array([len(ids)], np.int64), self.shape
        out = np.full((len(ids), shape.n_blocks * shape.quant.format.block_columns), 7, np.float32)
        args = (count, ids.astype(np.int32), self.packed, shape.n_blocks, shape.group_bytes, out, out.strides[0])
        self.run([(shape.quant.embedding, *args)], 2)
        return out[:, : self.weight.n_cols]

    def activations(self, x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
        """What the product reads, and what it means as float64."""
        n, cols = x.shape
        n_sub = self.shape.n_blocks * self.shape.quant.format.block_columns // 32
        padded = np.zeros((n, 32 * n_sub), np.float32)
        padded[:, :cols] = x
        if self.shape.quant.takes_floats:
            return padded, x.astype(np.float64)
        out = np.zeros((n, act_row_bytes(32 * n_sub, bits)), np.uint8)
        count = np.array([n], np.int64)
        no_other_stage = (0,) * 9
        self.run([(rows.rows, count, 32 * n_sub, padded, 0, *no_other_stage, out, out.strides[0], 0, bits)], 1)
        records = out.reshape(n, n_sub, quantize.record_bytes(bits))
        q = np.ascontiguousarray(records[..., : 4 * bits]).view(f"i{bits // 8}").reshape(n, n_sub, 8, 4)
        q = (q if bits == 8 else q[..., [0, 2, 1, 3]]).reshape(n, n_sub, 32)
        d = np.ascontiguousarray(records[..., 4 * bits :][..., :4]).view(np.float32)
        return out, (q.astype(np.float64) * d.astype(np.float64)).reshape(n, -1)[:, :cols]

    def product(
        self, x: np.ndarray, bits: int = 8, n_threads: int = 1, bias: Vector | None = None, residual: Any = None
    ) -> np.ndarray:
        act, _ = self.activations(x, bits)
        shape, count = self.shape, np.array([len(x)], np.int64)
        out = np.full((len(x), shape.n_groups * 16), np.nan, np.float32) if residual is None else residual
        padded_bias = np.zeros(shape.n_groups * 16, np.float32)
        if bias is not None:
            padded_bias[: bias.size] = bias.data
        kernel = shape.quant.linear if bits == 8 else shape.quant.linear_16
        where = (out, out.strides[0], shape.n_blocks, shape.group_bytes, shape.n_groups)
        ends = (0 if bias is None else padded_bias, 0 if residual is None else out)
        scratch = np.full(n_threads * SCRATCH_BYTES, 0x55, np.uint8)
        self.run([(kernel, count, act, act.strides[0], self.packed, *where, *ends, 0, 0, 0, 0, scratch)], n_threads)
        assert not out[:, self.weight.n_rows :].any(), "columns that pad the result must be zero"
        return out[:, : self.weight.n_rows]


@every_type
def test_rows_are_the_reference_bit_for_bit(run_tape: Any, name: str) -> None:
    weight = random_weight(name, 37, 512)
    got = Matrix(run_tape, weight).rows(np.arange(37))
    np.testing.assert_array_equal(got, dequantise(weight))


@every_type
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 13])
def test_product(run_tape: Any, name: str, bits: int, n: int) -> None:
    matrix = Matrix(run_tape, random_weight(name, 37, 256, seed=n))
    x = np.random.default_rng(n).standard_normal((n, 256)).astype(np.float32)
    _, meant = matrix.activations(x, bits)
    want = meant @ dequantise(matrix.weight).astype(np.float64).T
    assert np.abs(matrix.product(x, bits, 2) - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 33), (64, 95), (3, 160)])
def test_float_weights_of_any_width(run_tape: Any, name: str, rows: int, cols: int) -> None:
    matrix = Matrix(run_tape, random_weight(name, rows, cols))
    x = np.random.default_rng(1).standard_normal((3, cols)).astype(np.float32)
    want = x.astype(np.float64) @ dequantise(matrix.weight).astype(np.float64).T
    np.testing.assert_allclose(matrix.product(x), want, atol=1e-5 * max(1, np.abs(want).max()))
    np.testing.assert_array_equal(matrix.rows(np.arange(rows)), dequantise(matrix.weight))


@quantised
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("codes", [0x00, 0xFF, 0x80, 0x7F])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_codes_and_activations_do_not_overflow(
    run_tape: Any, name: str, bits: int, codes: int, sign: int
) -> None:
    matrix = Matrix(run_tape, random_weight(name, 32, 512, codes=codes))
    x = np.full((5, 512), sign * 3.0, np.float32)
    _, meant = matrix.activations(x, bits)
    want = meant @ dequantise(matrix.weight).astype(np.float64).T
    assert np.abs(matrix.product(x, bits) - want).max() <= 1e-6 * max(1e-9, np.abs(want).max())


@every_type
def test_bias_and_residual(run_tape: Any, name: str) -> None:
    matrix = Matrix(run_tape, random_weight(name, 37, 256))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 256)).astype(np.float32)
    bias = Vector("b", rng.standard_normal(37).astype(np.float32))
    residual = np.zeros((5, 64), np.float32)
    residual[:, :37] = rng.standard_normal((5, 37))
    plain, before = matrix.product(x), residual[:, :37].copy()
    np.testing.assert_array_equal(matrix.product(x, bias=bias), plain + bias.data)
    np.testing.assert_array_equal(matrix.product(x, bias=bias, residual=residual), plain + bias.data + before)


@every_type
@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 20), n_threads=st.integers(1, 3), bits=st.sampled_from([8, 16]), seed=st.integers(0, 9))
def test_a_row_is_the_same_alone_in_a_batch_and_on_any_threads(
    run_tape: Any, name: str, n: int, n_threads: int, bits: int, seed: int
) -> None:
    matrix = Matrix(run_tape, random_weight(name, 80, 256, seed))
    x = np.random.default_rng(seed).standard_normal((n, 256)).astype(np.float32)
    together = matrix.product(x, bits, n_threads)
    for i in range(n):
        np.testing.assert_array_equal(matrix.product(x[i : i + 1], bits, 1)[0], together[i])


@every_type
def test_many_rows_are_the_same_as_one(run_tape: Any, name: str) -> None:
    """More rows than a chunk and more columns than a panel, some rows and units left over."""
    matrix = Matrix(run_tape, random_weight(name, 160, 1280))
    x = np.random.default_rng(0).standard_normal((CHUNK_ROWS + 29, 1280)).astype(np.float32)
    together = matrix.product(x, 8, 2)
    for i in (0, 3, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 23, CHUNK_ROWS + 28):
        np.testing.assert_array_equal(matrix.product(x[i : i + 1])[0], together[i])


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(KernelError, match=r"tensor `w`: unsupported quant type 15 \(supported: F32, "):
        packed_shape(Weight("w", 15, 1, 256, np.zeros(292, np.uint8)))


def test_columns_that_do_not_fill_blocks_are_refused() -> None:
    with pytest.raises(KernelError, match="multiples of 256 for Q4_K, got 128"):
        packed_shape(Weight("w", 12, 1, 128, np.zeros(144, np.uint8)))


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    for type_id in NAMES.values():
        quant = QUANT_TYPES[type_id]
        columns, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type_id)]
        n = quant.format.block_columns // columns
        assert (columns * n, size * n) == (quant.format.block_columns, quant.format.block_bytes)


@pytest.mark.slow
@pytest.mark.skipif(TARGET.path == "portable", reason="this is the portable path already")
def test_the_portable_path_passes_the_same_tests() -> None:
    env = os.environ | {"LOCALLLM_CPU": "portable"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(Path(__file__)), "-k", "not hypothesis and not chunks"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3000:]
