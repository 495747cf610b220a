"""Packing, rows and products of the K, IQ, FP4, ternary and binary types against the reference dequantisers.

Activations are whole numbers with the largest one, 127 or 32767, in every block of 32: they are quantised to
themselves, so that the tests need not know how.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from kernels_cpu.graph import Graph, StepInputs, Weight
from kernels_cpu.packing import packed_shape
from kernels_cpu.program import TapeProgram
from kernels_cpu.quants.table import QUANT_TYPES
from kernels_cpu.tape import TapeSizes
from kernels_cpu.target import TARGET
from kernels_cpu.twin import dequantise
from kernels_cpu.weights import pack_weights

# Byte offsets of the f16 scales in a GGUF block. IQ1_M spreads one over four words, MXFP4 and NVFP4 have bytes.
HALVES: dict[str, list[int]] = {
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "IQ1_S": [0],
    "IQ1_M": [],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
    "NVFP4": [],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "Q1_0": [0],
    "Q2_0": [0],
}
TYPES = {q.format.name: type_id for type_id, q in QUANT_TYPES.items() if q.format.name in HALVES}
# Zero, the smallest denormal, others of both signs, and numbers of every size.
SCALES = [0.0, -0.0, 6e-8, -3e-6, 5.9e-5, -6.2e-5, 0.013, -0.37, 1.0, -2.5, 90.0]

every_type = pytest.mark.parametrize("name", TYPES)
slow = pytest.mark.slow
# A product is a kernel that takes seconds to compile. By default those are left out that read codes as another type
# does: IQ2_S as IQ2_XS, TQ1_0 and Q2_0 as TQ2_0; and with 16 bits there is one type with minimums and one with a table.
ALIKE = ("IQ2_S", "TQ1_0", "Q2_0")
BY_DEFAULT = {(n, 8) for n in TYPES if n not in ALIKE} | {("Q2_K", 16), ("IQ4_NL", 16)}
PRODUCTS = {(n, bits): () if (n, bits) in BY_DEFAULT else slow for bits in (8, 16) for n in TYPES}
every_product = pytest.mark.parametrize(
    ("name", "bits"), [pytest.param(*product, marks=marks) for product, marks in PRODUCTS.items()]
)


def set_scales(raw: np.ndarray, name: str, scales: np.ndarray) -> None:
    """Write f16 scales, one a block, to blocks uint8 [rows, blocks, bytes]."""
    bits = scales.astype(np.float16).view(np.uint16)
    for at in HALVES[name]:
        raw[..., at : at + 2] = bits[..., None].view(np.uint8)
    if name == "IQ1_M":
        for i in range(4):
            raw[..., 49 + 2 * i] = raw[..., 49 + 2 * i] & 15 | (bits >> 4 * i & 15).astype(np.uint8) << 4
    if name == "MXFP4":  # from the denormals on; an exponent of 255 is not a number
        raw[..., 0] = np.random.default_rng(3).choice([0, 1, 2, 3, 60, 127, 128, 140], raw.shape[:2])


def weight_of(name: str, rows: int, n_blocks: int, fill: int | None = None, scales: list[float] = SCALES) -> Weight:
    """Random blocks, or all but the scales filled with one byte; scales are drawn from a list."""
    fmt, rng = QUANT_TYPES[TYPES[name]].format, np.random.default_rng(rows + n_blocks)
    shape = (rows, n_blocks, fmt.block_bytes)
    raw = rng.integers(0, 256, shape, np.uint8) if fill is None else np.full(shape, fill, np.uint8)
    set_scales(raw, name, rng.choice(np.array(scales), shape[:2]))
    return Weight("w", TYPES[name], rows, n_blocks * fmt.block_columns, raw.reshape(-1))


def activations(n: int, cols: int, bits: int = 8, largest: int | None = None) -> np.ndarray:
    """Whole numbers up to `largest` in float32 [n, cols], and one of the full size in every block of 32."""
    rng, full = np.random.default_rng(n), 2 ** (bits - 1) - 1
    x = rng.integers(-(largest or full), (largest or full) + 1, (n, cols // 32, 32)).astype(np.float32)
    np.put_along_axis(x, rng.integers(0, 32, (n, cols // 32, 1)), rng.choice([-full, full], (n, cols // 32, 1)), axis=2)
    return x.reshape(n, cols)


def run(graph: Graph, n: int, n_threads: int = 2) -> np.ndarray:
    """The result of a graph for the token ids 0 .. n - 1."""
    program = TapeProgram(graph, pack_weights(graph.weights()), TapeSizes(64, 64, 1, 2), n_threads)
    every = np.arange(n, dtype=np.int32)
    try:
        return program.run(StepInputs(every, every, np.zeros(n, np.int32), np.array([[0, 1]], np.int32), every)).copy()
    finally:
        program.close()


def rows_of(weight: Weight) -> np.ndarray:
    graph = Graph()
    graph.output(graph.select_outputs(graph.embedding(weight)))
    return run(graph, weight.n_rows)


def product(x: np.ndarray, weight: Weight, bits: int = 8, n_threads: int = 2) -> np.ndarray:
    """x times the matrix: what is computed of output rows has 16 bits."""
    graph, (n, cols) = Graph(), x.shape
    h = graph.embedding(Weight("x", 0, n, cols, x.reshape(-1).view(np.uint8)))
    if bits == 8:
        graph.output(graph.select_outputs(graph.linear(h, weight)))
    else:
        graph.output(graph.linear(graph.select_outputs(h), weight))
    return run(graph, n, n_threads)


@every_type
@pytest.mark.parametrize("n_blocks", [1, 3])
def test_rows_are_the_reference_bit_for_bit(name: str, n_blocks: int) -> None:
    weight = weight_of(name, 61, n_blocks)
    np.testing.assert_array_equal(rows_of(weight), dequantise(weight))


@pytest.mark.parametrize("name", [pytest.param(n, marks=PRODUCTS[n, 8]) for n in TYPES])
@pytest.mark.parametrize("n", [1, 7, 37])  # 37: weights unpacked first, and rows left over
def test_products_of_whole_numbers_are_exact(name: str, n: int) -> None:
    cols = max(256, QUANT_TYPES[TYPES[name]].format.block_columns)
    weight = weight_of(name, 37, cols // QUANT_TYPES[TYPES[name]].format.block_columns, scales=[1.0, -1.0])
    if name in ("MXFP4", "NVFP4"):  # scales near 1 in place of all sizes
        raw = weight.data.reshape(37, -1, {"MXFP4": 17, "NVFP4": 36}[name])
        raw[..., : {"MXFP4": 1, "NVFP4": 4}[name]] = {"MXFP4": 128, "NVFP4": 0x40}[name]
    x, matrix = activations(n, cols, largest=9), dequantise(weight).astype(np.float64)
    # Every sum on the way is a multiple of 1 or an eighth that float32 holds.
    assert (np.abs(matrix) @ np.abs(x.T)).max() * (8 if (matrix % 1).any() else 1) < 2**24
    np.testing.assert_array_equal(product(x, weight), x @ matrix.T)


@every_product
def test_products_are_the_reference_for_scales_of_every_size(name: str, bits: int) -> None:
    weight = weight_of(name, 37, 3)
    x, matrix = activations(3, weight.n_cols, bits), dequantise(weight).astype(np.float64)
    error = np.abs(product(x, weight, bits) - x @ matrix.T)
    assert (error <= 1e-6 * (np.abs(x) @ np.abs(matrix.T))).all()


@every_product
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7F, 0x88])
def test_extreme_codes_and_activations_do_not_overflow(name: str, bits: int, fill: int) -> None:
    weight = weight_of(name, 32, 2, fill, scales=[1.0])
    if name == "MXFP4":
        weight.data.reshape(32, 2, 17)[..., 0] = 128
    matrix = dequantise(weight).astype(np.float64)
    full = 2 ** (bits - 1) - 1
    x = np.full((2, weight.n_cols), full, np.float32)
    x[1] = -full
    error = np.abs(product(x, weight, bits) - x @ matrix.T)
    assert (error <= 1e-6 * (np.abs(x) @ np.abs(matrix.T))).all()


@every_product
def test_a_row_is_the_same_alone_in_a_batch_and_on_any_threads(name: str, bits: int) -> None:
    weight = weight_of(name, 70, 2)
    x = activations(15, weight.n_cols, bits) * np.float32(0.37)
    together = product(x, weight, bits)
    np.testing.assert_array_equal(product(x[:6], weight, bits, n_threads=1), together[:6])
    for i in (0, 7, 14):
        np.testing.assert_array_equal(product(x[i : i + 1], weight, bits, n_threads=1)[0], together[i])


@slow
@every_product
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize(("rows", "n_blocks"), [(1, 1), (16, 2), (33, 5), (96, 4)])
def test_products_of_every_tile(name: str, bits: int, n: int, rows: int, n_blocks: int) -> None:
    weight = weight_of(name, rows, n_blocks)
    x, matrix = activations(n, weight.n_cols, bits), dequantise(weight).astype(np.float64)
    error = np.abs(product(x, weight, bits) - x @ matrix.T)
    assert (error <= 1e-6 * (np.abs(x) @ np.abs(matrix.T))).all()


@every_type
def test_a_packed_matrix_is_about_the_size_its_file_says(name: str) -> None:
    fmt = QUANT_TYPES[TYPES[name]].format
    size = packed_shape(weight_of(name, 32, 1)).nbytes / 32
    grids = {"IQ1_S": 74, "IQ1_M": 114, "IQ2_XXS": 106, "IQ2_XS": 114, "IQ2_S": 114, "IQ3_XXS": 138, "IQ3_S": 138}
    whole_bytes = {"TQ1_0": 66, "Q3_K": 114, "IQ4_XS": 138}
    assert size == (grids | whole_bytes).get(name, fmt.block_bytes)


@every_type
def test_block_sizes_are_those_of_the_gguf_package(name: str) -> None:
    fmt = QUANT_TYPES[TYPES[name]].format
    known = gguf.GGMLQuantizationType.__members__
    if name in known:
        assert gguf.GGML_QUANT_SIZES[known[name]] == (fmt.block_columns, fmt.block_bytes)


@slow
@pytest.mark.skipif(TARGET.path == "portable", reason="this is the portable path already")
def test_the_portable_path_passes_the_same_tests() -> None:
    env = os.environ | {"LOCALLLM_CPU": "portable"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(Path(__file__)), "-m", "not slow"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3000:]
