"""The compiled quantisers give their twins' bytes, and llama.cpp's, for any values, threads and cuts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_cpu.quantize import TYPES, quantize_rows
from kernels_cpu.quantize.blocks import BLOCKS
from kernels_cpu.quantize.rows import ROUTINES
from kernels_cpu.quantize.twins import quantize_rows as twin

RECORDED = Path(__file__).parents[1] / "fixtures" / "quantize" / "rows.json"
WEIGHTED = sorted(name for name, block in BLOCKS.items() if block.is_weighted)
EVERY = [(name, False) for name in sorted(TYPES)] + [(name, True) for name in WEIGHTED]


def importance_of(n_cols: int, seed: int = 5) -> np.ndarray:
    return (np.random.default_rng(seed).random(n_cols) ** 4 + 1e-4).astype(np.float32)


def odd_rows(n_cols: int, seed: int = 0) -> np.ndarray:
    """Rows of many kinds, 27 in all."""
    rng = np.random.default_rng(seed)
    sparse = np.where(rng.random((3, n_cols)) < 0.9, 0, rng.standard_normal((3, n_cols)))
    steps = np.repeat(np.exp(rng.uniform(-15, 3, (3, n_cols // 16))), 16, axis=1) * rng.standard_normal((3, n_cols))
    kinds = [
        rng.standard_normal((4, n_cols)) * 0.05,
        rng.standard_t(2, (4, n_cols)),
        rng.standard_normal((2, n_cols)) * 1e-7,
        rng.standard_normal((2, n_cols)) * 1e-20,
        rng.standard_normal((2, n_cols)) * 5e3,
        np.zeros((1, n_cols)),
        np.full((2, n_cols), [[0.3], [-0.7]]),
        np.abs(rng.standard_normal((1, n_cols))),
        -np.abs(rng.standard_normal((1, n_cols))),
        rng.choice([-1.0, 0.0, 1.0], (2, n_cols)),
        sparse,
        steps,
    ]
    return np.concatenate(kinds).astype(np.float32)


@pytest.mark.parametrize(("type_name", "is_weighted"), EVERY)
def test_compiled_quantisers_give_their_twins_bytes(type_name: str, is_weighted: bool) -> None:
    assert type_name == "F32" or (type_name, is_weighted) in ROUTINES
    x = odd_rows(512)
    importance = importance_of(512) if is_weighted else None
    assert np.array_equal(quantize_rows(type_name, x, importance), twin(type_name, x, importance))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_blocks_of_any_shape(data: st.DataObject) -> None:
    type_name, is_weighted = data.draw(st.sampled_from(EVERY))
    columns = max(BLOCKS[type_name].columns, 16)
    n_rows, n_blocks = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    x = odd_rows(columns * n_blocks, data.draw(st.integers(0, 1000)))[:n_rows]
    x *= np.float32(10.0) ** data.draw(st.integers(-3, 0))
    importance = importance_of(x.shape[1], data.draw(st.integers(0, 9))) if is_weighted else None
    whole = quantize_rows(type_name, x, importance, n_threads=data.draw(st.integers(0, 3)))
    assert np.array_equal(whole, twin(type_name, x, importance))
    cut = data.draw(st.integers(0, len(x)))
    parts = [quantize_rows(type_name, part, importance) for part in (x[:cut], x[cut:])]
    assert np.array_equal(np.concatenate(parts), whole)


def test_threads_share_what_is_large() -> None:
    x = np.random.default_rng(1).standard_normal((200, 4096)).astype(np.float32)
    one = quantize_rows("Q4_0", x, n_threads=1)
    assert np.array_equal(quantize_rows("Q4_0", x, n_threads=3), one)
    x[177, 3] = np.nan
    with pytest.raises(ValueError, match="row 177"):
        quantize_rows("Q4_0", x, n_threads=3)


def test_rows_may_lie_apart() -> None:
    x = odd_rows(512)
    assert np.array_equal(quantize_rows("Q5_0", x[::2, 64:128]), quantize_rows("Q5_0", x[::2, 64:128].copy()))


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
def test_types_without_blocks_take_any_number_of_columns(type_name: str) -> None:
    x = odd_rows(512)[:, :77]
    assert np.array_equal(quantize_rows(type_name, x), twin(type_name, x))


@pytest.mark.parametrize("type_name", sorted(TYPES - {"F32"}))
def test_what_a_type_cannot_hold_is_refused(type_name: str) -> None:
    x = odd_rows(512)
    x[20] *= np.float32(3e33) / np.abs(x[20]).max()
    if type_name == "BF16":
        x[20, 5] = np.finfo(np.float32).max
    if type_name == "MXFP4":
        assert np.array_equal(quantize_rows(type_name, x), twin(type_name, x))
        return
    with pytest.raises(ValueError, match="row 20"):
        quantize_rows(type_name, x)


def recorded() -> dict[str, Any]:
    return dict(json.loads(RECORDED.read_text()))


@pytest.mark.parametrize(("type_name", "is_weighted"), EVERY)
def test_rows_of_a_model_become_llamacpps_bytes(type_name: str, is_weighted: bool) -> None:
    """Rows of trained weights, with llama.cpp's bytes and the root of the mean square of what they lose."""
    kept = recorded()
    x = np.array([[float.fromhex(v) for v in row] for row in kept["rows"]], np.float32)
    importance = np.array(kept["importance"], np.float32) if is_weighted else None
    found = quantize_rows(type_name, x, importance)
    theirs = kept["types"][type_name + (" weighted" if is_weighted else "")]
    assert found.tobytes().hex() == theirs["bytes"]
    lost = np.asarray(gguf.quants.dequantize(found, gguf.GGMLQuantizationType[type_name]), np.float32) - x
    assert float(np.sqrt(np.square(lost, dtype=np.float64).mean())) <= theirs["rmse"] * 1.02
