"""Every small operation against its NumPy twin, over odd sizes, strides and numbers of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu import twin
from kernels_cpu.graph import RopeSpec
from kernels_cpu.ops import COLUMNS, ROWS, elementwise, gate, norm, quantize, rope

ULP = 2.0**-23
threads = pytest.mark.parametrize("n_threads", [1, 2, 3])


def random(n: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, cols)).astype(np.float32)


def count(x: Any) -> np.ndarray:
    return np.array([len(x)], np.int64)


@threads
@pytest.mark.parametrize(("n", "cols", "more"), [(1, 64, 0), (5, 96, 1), (3, 200, 0), (2, 7, 2), (4, 2048, 0)])
def test_rms_norm(run_kernel: Any, padded: Any, n_threads: int, n: int, cols: int, more: int) -> None:
    x, w = random(n, cols), random(1, cols, 1)[0]
    p, out = padded(x, more), padded(np.zeros_like(x))
    run_kernel(norm.rms_norm, count(x), p, p.strides[0], w, out, out.strides[0], cols, 1e-6, n_threads=n_threads)
    np.testing.assert_allclose(out[:, :cols], twin.twin_rms_norm(x, w, 1e-6), rtol=4 * ULP)
    assert not out[:, cols:].any()


def test_rms_norm_in_place_of_zeros(run_kernel: Any, padded: Any) -> None:
    x = padded(np.zeros((2, 64), np.float32))
    run_kernel(norm.rms_norm, count(x), x, x.strides[0], np.ones(64, np.float32), x, x.strides[0], 64, 1e-6)
    assert not x.any()


@threads
@pytest.mark.parametrize("head_dim", [1, 5, 16, 80, 64, 256])
def test_head_norm(run_kernel: Any, padded: Any, n_threads: int, head_dim: int) -> None:
    x, w = random(4, 3 * head_dim), random(1, head_dim, 1)[0]
    p = padded(x)
    run_kernel(norm.head_norm, count(x), p, p.strides[0], w, p, p.strides[0], 3, head_dim, 1e-5, n_threads=n_threads)
    np.testing.assert_allclose(p[:, : 3 * head_dim], twin.twin_head_norm(x, w, 1e-5, head_dim), rtol=4 * ULP)
    assert not p[:, 3 * head_dim :].any()


@threads
@pytest.mark.parametrize(("head_dim", "n_rot"), [(64, 64), (64, 32), (80, 20), (6, 4), (256, 256)])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("in_place", [True, False])
def test_rope(
    run_kernel: Any, padded: Any, n_threads: int, head_dim: int, n_rot: int, pairing: Any, in_place: bool
) -> None:
    x, positions = random(4, 3 * head_dim), np.array([7, 0, 30, 1], np.int32)
    cos, sin = RopeSpec().tables(n_rot, 32)
    p = padded(x)
    out = p if in_place else padded(np.zeros_like(x), 1)
    kernel = rope.rope_interleaved if pairing == "interleaved" else rope.rope_half
    run_kernel(
        kernel,
        count(x),
        p,
        p.strides[0],
        out,
        out.strides[0],
        3,
        head_dim,
        n_rot,
        positions,
        cos,
        sin,
        n_threads=n_threads,
    )
    expected = twin.twin_rope(x, positions, cos, sin, head_dim, pairing)
    np.testing.assert_allclose(out[:, : 3 * head_dim], expected, atol=3e-7 * np.abs(x).max())
    assert not out[:, 3 * head_dim :].any()
    kept = x.reshape(4, 3, head_dim)[:, :, n_rot:]
    assert np.array_equal(out[:, : 3 * head_dim].reshape(4, 3, head_dim)[:, :, n_rot:], kept)


@threads
@pytest.mark.parametrize(("n", "cols", "more"), [(1, 32, 0), (3, 100, 1), (7, 1, 0), (2, 4096, 0)])
def test_add_and_scale(run_kernel: Any, padded: Any, n_threads: int, n: int, cols: int, more: int) -> None:
    x, y = random(n, cols), random(n, cols, 1)
    p, q, out = padded(x), padded(y, more), padded(np.zeros_like(x), more)
    run_kernel(
        elementwise.add, count(x), p, p.strides[0], q, q.strides[0], out, out.strides[0], cols, n_threads=n_threads
    )
    assert np.array_equal(out[:, :cols], twin.twin_add(x, y))
    assert not out[:, cols:].any()
    run_kernel(elementwise.scale, count(x), p, p.strides[0], p, p.strides[0], cols, 0.3, n_threads=n_threads)
    assert np.array_equal(p[:, :cols], twin.twin_scale(x, 0.3))
    assert not p[:, cols:].any()


@threads
@pytest.mark.parametrize(("n", "cols"), [(1, 1000), (3, 33)])
def test_softcap(run_kernel: Any, padded: Any, n_threads: int, n: int, cols: int) -> None:
    x = np.concatenate([random(n, cols // 2), random(n, cols - cols // 2) * 100], axis=1)
    p = padded(x)
    run_kernel(elementwise.softcap, count(x), p, p.strides[0], p, p.strides[0], cols, 30.0, n_threads=n_threads)
    np.testing.assert_allclose(p[:, :cols], 30 * np.tanh(x.astype(np.float64) / 30), rtol=5e-7)
    assert not p[:, cols:].any()


@threads
def test_select_outputs(run_kernel: Any, padded: Any, n_threads: int) -> None:
    x, rows = random(6, 70), np.array([5, 0, 5, 2], np.int32)
    p, out = padded(x), padded(np.zeros((4, 70), np.float32), 1)
    run_kernel(
        elementwise.select_outputs, count(rows), p, p.strides[0], rows, out, out.strides[0], 70, n_threads=n_threads
    )
    assert np.array_equal(out[:, :70], x[rows])
    assert not out[:, 70:].any()


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def exact_swiglu(x: np.ndarray, up: np.ndarray) -> np.ndarray:
    return x * sigmoid(x) * up


def exact_geglu(x: np.ndarray, up: np.ndarray) -> np.ndarray:
    return x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)) * up


GATES = pytest.mark.parametrize(
    ("kernel", "exact", "plain"),
    [(gate.swiglu, exact_swiglu, twin.twin_swiglu), (gate.geglu, exact_geglu, twin.twin_geglu)],
    ids=["swiglu", "geglu"],
)


@GATES
def test_gate_is_accurate(run_kernel: Any, padded: Any, kernel: Any, exact: Any, plain: Any) -> None:
    """One part in a million of the result, from the smallest magnitudes to where it vanishes."""
    near, far = np.linspace(-12, 12, 20001), np.geomspace(1e-30, 80, 5000)
    x = np.concatenate([near, far, -far]).astype(np.float32)[None]
    up = np.full_like(x, 1.5)
    p, q = padded(x), padded(up)
    run_kernel(kernel, count(x), p, p.strides[0], q, q.strides[0], q, q.strides[0], x.shape[1], ROWS)
    got, expected = q[:, : x.shape[1]], exact(x.astype(np.float64), up.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-36)
    np.testing.assert_allclose(got, plain(x, up), rtol=2e-5, atol=1e-6)


@GATES
def test_gate_of_large_values(run_kernel: Any, padded: Any, kernel: Any, exact: Any, plain: Any) -> None:
    x = np.array([[100, 1e4, 1e10, 3e38, -100, -1e4, -1e10, -3e38, 0, -0.0]], np.float32)
    p, q = padded(x), padded(np.ones_like(x))
    run_kernel(kernel, count(x), p, p.strides[0], q, q.strides[0], q, q.strides[0], x.shape[1], ROWS)
    assert np.array_equal(q[0, :10], np.where(x > 0, x, 0)[0])


@threads
@pytest.mark.parametrize("mode", [ROWS, COLUMNS])
@GATES
def test_gate_splits(
    run_kernel: Any, padded: Any, n_threads: int, mode: int, kernel: Any, exact: Any, plain: Any
) -> None:
    x, up = random(5, 150), random(5, 150, 1)
    p, q, out = padded(x), padded(up, 1), padded(np.zeros_like(x), 2)
    run_kernel(kernel, count(x), p, p.strides[0], q, q.strides[0], out, out.strides[0], 150, mode, n_threads=n_threads)
    np.testing.assert_allclose(out[:, :150], exact(x.astype(np.float64), up), rtol=1e-6)
    assert not out[:, 150:].any()


QUANTIZERS = pytest.mark.parametrize(
    ("kernel", "integer", "levels"),
    [(quantize.quantize_q8, np.int8, 127), (quantize.quantize_q16, np.int16, 32767)],
    ids=["q8", "q16"],
)


def quantized(
    run_kernel: Any, kernel: Any, integer: Any, x: np.ndarray, mode: int = ROWS, n_threads: int = 1
) -> dict[str, np.ndarray]:
    """The parts of quantised rows: q [n, 32 nb], d, s, isum [n, nb], halves [n, 2 nb], lanes, half_lanes."""
    n, nb = len(x), x.shape[1] // 32
    size = np.dtype(integer).itemsize
    record = quantize.record_bytes(8 * size)
    out = np.full((n, nb * record + 12), 0x55, np.uint8)
    run_kernel(kernel, count(x), x, x.strides[0], out, out.strides[0], nb, mode, n_threads=n_threads)
    assert (out[:, nb * record :] == 0x55).all()
    records = out[:, : nb * record].reshape(n, nb, record)
    q = np.ascontiguousarray(records[..., : 32 * size]).view(integer).reshape(n, -1)
    if size == 2:  # of each 4 columns the even ones come first
        q = q.reshape(n, -1, 4)[:, :, [0, 2, 1, 3]].reshape(n, -1)
    words = np.ascontiguousarray(records[..., 32 * size :])
    f, i, lanes = words.view(np.float32), words.view(np.int32), words.view(np.int16)
    return {
        "q": q,
        "d": f[..., 0],
        "s": f[..., 1],
        "isum": i[..., 2],
        "halves": i[..., 3:5].reshape(n, -1),
        "lanes": lanes[..., 10:12].reshape(n, -1),
        "half_lanes": lanes[..., 12:].reshape(n, -1),
    }


@threads
@pytest.mark.parametrize("mode", [ROWS, COLUMNS])
@QUANTIZERS
def test_quantize(run_kernel: Any, n_threads: int, mode: int, kernel: Any, integer: Any, levels: int) -> None:
    x = random(5, 7 * 32) * np.geomspace(1e-3, 1e3, 7 * 32).astype(np.float32)
    x[2, 32:64] = 0
    got = quantized(run_kernel, kernel, integer, x, mode, n_threads)
    blocks = x.reshape(5, 7, 32)
    largest = np.abs(blocks).max(axis=2)
    assert np.array_equal(got["d"], largest / np.float32(levels))
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.nan_to_num(np.rint(blocks * (np.float32(levels) / largest)[:, :, None]))
    assert np.array_equal(got["q"].reshape(q.shape), q.astype(integer))
    sums = q.reshape(5, 14, 16).sum(axis=2).astype(np.int32)
    assert np.array_equal(got["halves"], sums)
    assert np.array_equal(got["isum"], sums[:, ::2] + sums[:, 1::2])
    assert np.array_equal(got["s"], got["d"] * got["isum"].astype(np.float32))
    if levels == 127:
        by_lane = q.reshape(5, 7, 2, 4, 2, 2).sum(axis=(3, 5)).astype(np.int16)
        assert np.array_equal(got["half_lanes"].reshape(by_lane.shape), by_lane)
        assert np.array_equal(got["lanes"].reshape(5, 7, 2), by_lane.sum(axis=2))
        reference = twin.quantise_activations(x).reshape(q.shape)
        error = np.abs(got["q"].reshape(q.shape) * got["d"][:, :, None] - reference)
        assert (error <= 1.001 * got["d"][:, :, None]).all()  # a tie may fall to the other side
        assert (error > 1e-5 * got["d"][:, :, None]).mean() < 0.01


@QUANTIZERS
def test_quantize_what_is_not_finite(run_kernel: Any, kernel: Any, integer: Any, levels: int) -> None:
    """The block's scale shows it, the blocks beside it are not touched."""
    x = random(1, 6 * 32)
    alone = quantized(run_kernel, kernel, integer, x)
    x[0, 40], x[0, 64 + 31], x[0, 100], x[0, 103] = np.nan, np.inf, -np.inf, np.nan
    got = quantized(run_kernel, kernel, integer, x)
    assert np.isnan(got["d"][0, [1, 3]]).all()
    assert np.isposinf(got["d"][0, 2])
    for part in got:
        assert np.array_equal(got[part][:, 0], alone[part][:, 0])
        assert np.array_equal(got[part][:, -1], alone[part][:, -1])


@QUANTIZERS
def test_quantize_tiny_values(run_kernel: Any, kernel: Any, integer: Any, levels: int) -> None:
    x = np.full((1, 96), 1e-40, np.float32)
    x[0, 32:64], x[0, 64:] = 3e-33, 2e38
    got = quantized(run_kernel, kernel, integer, x)
    assert np.array_equal(got["q"].reshape(3, 32)[:, 0], [0, levels, levels])
    assert got["d"][0, 0] == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), n=st.integers(1, 9), cols=st.integers(1, 130), n_threads=st.integers(1, 3))
def test_a_row_does_not_depend_on_its_batch(
    run_kernel: Any, padded: Any, data: Any, n: int, cols: int, n_threads: int
) -> None:
    """Each operation on a row alone, on one thread, gives the very bits that it gives within a batch."""
    i = data.draw(st.integers(0, n - 1))
    x, y, w = random(n, cols, n), random(n, cols, cols), random(1, cols, 3)[0]

    def both(kernel: Any, *after: Any, second: bool = False) -> None:
        results = []
        for rows, team in ((slice(0, n), n_threads), (slice(i, i + 1), 1)):
            p, q = padded(x[rows]), padded(y[rows])
            out = padded(np.zeros_like(x[rows]))
            inputs = (p, p.strides[0], q, q.strides[0]) if second else (p, p.strides[0])
            arguments = (*inputs, *((w,) if kernel is norm.rms_norm else ()), out, out.strides[0], cols, *after)
            run_kernel(kernel, count(p[: len(x[rows])]), *arguments, n_threads=team)
            results.append(out)
        assert np.array_equal(results[0][i], results[1][0])

    both(norm.rms_norm, 1e-5)
    both(elementwise.softcap, 3.0)
    both(elementwise.scale, 3.0)
    both(elementwise.add, second=True)
    for mode in (ROWS, COLUMNS):
        both(gate.swiglu, mode, second=True)
        both(gate.geglu, mode, second=True)
