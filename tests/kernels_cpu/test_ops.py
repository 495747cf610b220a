"""Every small operation against its NumPy twin, over odd sizes, strides and numbers of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu import twin
from kernels_cpu.graph import RopeSpec
from kernels_cpu.ops import COLUMNS, OWN_ROWS, ROWS, elementwise, gate, quantize, rope, rows

ULP = 2.0**-23
threads = pytest.mark.parametrize("n_threads", [1, 2, 3])


def random(n: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, cols)).astype(np.float32)


def count(x: Any) -> np.ndarray:
    return np.array([len(x)], np.int64)


def copies(x: np.ndarray, n_threads: int) -> np.ndarray:
    """Memory for rows like those of x, and for a copy of OWN_ROWS rows for each thread."""
    return np.zeros((max(len(x), n_threads * OWN_ROWS), x.shape[1]), x.dtype)


def kept(buffer: np.ndarray, n: int, n_threads: int, own: int) -> np.ndarray:
    """The n rows of a value, which every thread must have alike if each keeps a copy."""
    if own and n <= OWN_ROWS:
        for thread in range(1, n_threads):
            assert np.array_equal(buffer[thread * OWN_ROWS :][:n], buffer[:n], equal_nan=True)
    return buffer[:n]


def run_rows(
    run: Any,
    x: np.ndarray,
    before: tuple[np.ndarray, float] | None = None,
    addend: np.ndarray | None = None,
    norm: tuple[np.ndarray, float] | None = None,
    bits: int = 0,
    n_threads: int = 1,
    is_own: bool = False,
) -> dict[str, np.ndarray]:
    """Sum, floats and quantised of the kernel `rows`; all operands padded to blocks of 32 columns."""
    n, cols = x.shape
    nb = -(-cols // 32)

    def block(v: np.ndarray) -> np.ndarray:
        filled = np.zeros((len(v), 32 * nb), np.float32)
        filled[:, : v.shape[1]] = v
        return filled

    def weight(pair: tuple[np.ndarray, float] | None) -> tuple[Any, float]:
        return (block(pair[0][None]), pair[1]) if pair else (0, 0.0)

    p, q = block(x), 0 if addend is None else block(addend)
    total, floats = copies(p, n_threads), copies(p, n_threads)
    quantised = copies(np.zeros((n, nb * quantize.record_bytes(bits)), np.uint8), n_threads)
    own, q_own = (OWN_ROWS * v.strides[0] if is_own else 0 for v in (floats, quantised))
    arguments = (p, 0, *weight(before), q, 0, total, *weight(norm), floats, own, quantised, quantised.strides[0], q_own)
    run(rows.rows, count(x), cols, *arguments, bits, n_threads=n_threads)
    results = {"sum": total, "floats": floats, "quantised": quantised}
    return {name: kept(v, n, n_threads, own) for name, v in results.items()}


SHAPES = pytest.mark.parametrize(("n", "cols"), [(1, 64), (5, 96), (3, 200), (2, 7), (4, 2048)])


@threads
@SHAPES
@pytest.mark.parametrize("is_own", [False, True])
def test_norm_of_rows(run_kernel: Any, n_threads: int, n: int, cols: int, is_own: bool) -> None:
    x, w = random(n, cols), random(1, cols, 1)[0]
    got = run_rows(run_kernel, x, norm=(w, 1e-6), n_threads=n_threads, is_own=is_own)
    np.testing.assert_allclose(got["floats"][:, :cols], twin.twin_rms_norm(x, w, 1e-6), rtol=4 * ULP)
    assert not got["floats"][:, cols:].any()
    assert not got["sum"].any()


def test_norm_of_zeros(run_kernel: Any) -> None:
    assert not run_rows(run_kernel, random(2, 64) * 0, norm=(np.ones(64, np.float32), 1e-6))["floats"].any()


@threads
@SHAPES
@pytest.mark.parametrize("is_own", [False, True])
def test_addition_between_norms(run_kernel: Any, n_threads: int, n: int, cols: int, is_own: bool) -> None:
    x, y, v, w = random(n, cols), random(n, cols, 1), random(1, cols, 2)[0], random(1, cols, 3)[0]
    after = {"norm": (w, 1e-5), "n_threads": n_threads, "is_own": is_own}
    got = run_rows(run_kernel, x, (v, 1e-6), y, **after)
    total = y + twin.twin_rms_norm(x, v, 1e-6)
    np.testing.assert_allclose(got["sum"][:, :cols], total, atol=1e-5)
    np.testing.assert_allclose(got["floats"][:, :cols], twin.twin_rms_norm(total, w, 1e-5), atol=1e-5)
    assert not got["sum"][:, cols:].any()
    got = run_rows(run_kernel, x, None, y, **after)
    assert np.array_equal(got["sum"][:, :cols], x + y)
    np.testing.assert_allclose(got["floats"][:, :cols], twin.twin_rms_norm(x + y, w, 1e-5), rtol=4 * ULP)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("is_own", [False, True])
def test_rows_are_quantised_in_the_same_pass(run_kernel: Any, bits: int, n_threads: int, is_own: bool) -> None:
    x, y, w = random(3, 96), random(3, 96, 1), random(1, 96, 2)[0]
    how = {"bits": bits, "n_threads": n_threads, "is_own": is_own}
    for got in (run_rows(run_kernel, x, norm=(w, 1e-5), **how), run_rows(run_kernel, x, None, y, (w, 1e-5), **how)):
        assert np.array_equal(got["quantised"], run_rows(run_kernel, got["floats"], bits=bits)["quantised"])


def test_threads_read_the_copies_that_they_keep(run_kernel: Any) -> None:
    """Each thread's copy of x and of the addend differs, and so does what it makes of them."""
    x, y = random(2 * OWN_ROWS, 64), random(2 * OWN_ROWS, 64, 1)
    total, own = np.zeros_like(x), OWN_ROWS * x.strides[0]
    few = np.array([OWN_ROWS], np.int64)
    rest = (0, 0.0, 0, own, 0, 0, 0, 0)
    run_kernel(rows.rows, few, 64, x, own, 0, 0.0, y, own, total, *rest, n_threads=2)
    assert np.array_equal(total, x + y)


@threads
@pytest.mark.parametrize("head_dim", [1, 5, 16, 80, 64, 256])
def test_norm_of_heads(run_kernel: Any, padded: Any, n_threads: int, head_dim: int) -> None:
    x, w = random(4, 3 * head_dim), random(1, head_dim, 1)[0]
    p = padded(x)
    arguments = (p, p, p.strides[0], 3, head_dim, w, 1e-5, 0, 0, 0, 0)
    run_kernel(rope.rope_half, count(x), *arguments, n_threads=n_threads)
    np.testing.assert_allclose(p[:, : 3 * head_dim], twin.twin_head_norm(x, w, 1e-5, head_dim), rtol=4 * ULP)
    assert not p[:, 3 * head_dim :].any()


@threads
@pytest.mark.parametrize(("head_dim", "n_rot"), [(64, 64), (64, 32), (80, 20), (6, 4), (256, 256)])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("is_normed", [True, False])
def test_rope(
    run_kernel: Any,
    padded: Any,
    n_threads: int,
    head_dim: int,
    n_rot: int,
    pairing: Any,
    in_place: bool,
    is_normed: bool,
) -> None:
    x, positions = random(4, 3 * head_dim), np.array([7, 0, 30, 1], np.int32)
    w = random(1, head_dim, 1)[0] if is_normed else None
    cos, sin = RopeSpec().tables(n_rot, 32)
    p = padded(x)
    out = p if in_place else padded(np.zeros_like(x))
    kernel = rope.rope_interleaved if pairing == "interleaved" else rope.rope_half
    heads = (p, out, p.strides[0], 3, head_dim, 0 if w is None else w, 1e-5)
    run_kernel(kernel, count(x), *heads, n_rot, positions, cos, sin, n_threads=n_threads)
    normed = x if w is None else twin.twin_head_norm(x, w, 1e-5, head_dim)
    expected = twin.twin_rope(normed, positions, cos, sin, head_dim, pairing)
    np.testing.assert_allclose(out[:, : 3 * head_dim], expected, atol=5e-7 * np.abs(normed).max())
    assert not out[:, 3 * head_dim :].any()
    if w is None:
        unturned = x.reshape(4, 3, head_dim)[:, :, n_rot:]
        assert np.array_equal(out[:, : 3 * head_dim].reshape(4, 3, head_dim)[:, :, n_rot:], unturned)


MODES = pytest.mark.parametrize(("mode", "is_own"), [(ROWS, False), (ROWS, True), (COLUMNS, False)])


@threads
@MODES
@pytest.mark.parametrize(("n", "cols"), [(1, 32), (3, 100), (7, 1), (2, 4096)])
def test_scale_and_softcap(
    run_kernel: Any, padded: Any, n_threads: int, mode: int, is_own: bool, n: int, cols: int
) -> None:
    x = random(n, cols) * np.geomspace(1, 100, cols).astype(np.float32)
    p = padded(x)
    own = OWN_ROWS * p.strides[0] if is_own else 0
    for kernel, expected in ((elementwise.scale, x * np.float32(30)), (elementwise.softcap, 30 * np.tanh(x / 30.0))):
        out = copies(p, n_threads)
        run_kernel(kernel, count(x), cols, p, 0, out, own, 30.0, mode, n_threads=n_threads)
        np.testing.assert_allclose(kept(out, n, n_threads, own)[:, :cols], expected, rtol=5e-7)
        assert not out[:, cols:].any()
    run_kernel(elementwise.scale, count(x), cols, p, 0, p, 0, 0.3, mode, n_threads=n_threads)
    assert np.array_equal(p[:, :cols], twin.twin_scale(x, 0.3))


@threads
@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("chosen", [[5, 0, 5, 2], [1, 3, 0, 0, 2, 4]])
def test_select_outputs(run_kernel: Any, padded: Any, n_threads: int, is_own: bool, chosen: list[int]) -> None:
    x, chosen_rows = random(6, 70), np.array(chosen, np.int32)
    p = padded(x)
    out = copies(p[: len(chosen)], n_threads)
    own = OWN_ROWS * p.strides[0] if is_own else 0
    source = (count(chosen), 70, count(x), p, own)  # six rows are many: all threads share them
    run_kernel(elementwise.select_outputs, *source, chosen_rows, out, own, n_threads=n_threads)
    got = kept(out, len(chosen), n_threads, own)
    assert np.array_equal(got[:, :70], x[chosen])
    assert not got[:, 70:].any()


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
    run_kernel(kernel, count(x), x.shape[1], p, q, q, 0, 0, 0)
    got, expected = q[:, : x.shape[1]], exact(x.astype(np.float64), up.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-36)
    np.testing.assert_allclose(got, plain(x, up), rtol=2e-5, atol=1e-6)


@GATES
def test_gate_of_large_values(run_kernel: Any, padded: Any, kernel: Any, exact: Any, plain: Any) -> None:
    x = np.array([[100, 1e4, 1e10, 3e38, -100, -1e4, -1e10, -3e38, 0, -0.0]], np.float32)
    p, q = padded(x), padded(np.ones_like(x))
    run_kernel(kernel, count(x), x.shape[1], p, q, q, 0, 0, 0)
    assert np.array_equal(q[0, :10], np.where(x > 0, x, 0)[0])


@threads
@GATES
@pytest.mark.parametrize("bits", [8, 16])
def test_gate_splits_and_quantises(
    run_kernel: Any, padded: Any, n_threads: int, kernel: Any, exact: Any, plain: Any, bits: int
) -> None:
    x, up = random(5, 150), random(5, 150, 1)
    p, q, floats = padded(x), padded(up), padded(np.zeros_like(x))
    quantised = np.zeros((5, 5 * quantize.record_bytes(bits)), np.uint8)
    for out in (floats, 0):
        quantised[:] = 0
        arguments = (p, q, out, quantised, quantised.strides[0], bits)
        run_kernel(kernel, count(x), 150, *arguments, n_threads=n_threads)
        np.testing.assert_allclose(floats[:, :150], exact(x.astype(np.float64), up), rtol=1e-6)
        assert not floats[:, 150:].any()
        assert np.array_equal(quantised, run_rows(run_kernel, floats, bits=bits)["quantised"])


QUANTIZERS = pytest.mark.parametrize(("integer", "levels"), [(np.int8, 127), (np.int16, 32767)], ids=["q8", "q16"])


def quantized(run_kernel: Any, integer: Any, x: np.ndarray, n_threads: int = 1) -> dict[str, np.ndarray]:
    """The parts of quantised rows: q [n, 32 nb], d, s, isum [n, nb], halves [n, 2 nb], lanes, half_lanes."""
    n, nb = len(x), x.shape[1] // 32
    size = np.dtype(integer).itemsize
    records = run_rows(run_kernel, x, bits=8 * size, n_threads=n_threads)["quantised"].reshape(n, nb, -1)
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
@QUANTIZERS
def test_quantize(run_kernel: Any, n_threads: int, integer: Any, levels: int) -> None:
    x = random(5, 7 * 32) * np.geomspace(1e-3, 1e3, 7 * 32).astype(np.float32)
    x[2, 32:64] = 0
    got = quantized(run_kernel, integer, x, n_threads)
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
def test_quantize_what_is_not_finite(run_kernel: Any, integer: Any, levels: int) -> None:
    """The block's scale shows it, the blocks beside it are not touched."""
    x = random(1, 6 * 32)
    alone = quantized(run_kernel, integer, x)
    x[0, 40], x[0, 64 + 31], x[0, 100], x[0, 103] = np.nan, np.inf, -np.inf, np.nan
    got = quantized(run_kernel, integer, x)
    assert np.isnan(got["d"][0, [1, 3]]).all()
    assert np.isposinf(got["d"][0, 2])
    for part in got:
        assert np.array_equal(got[part][:, 0], alone[part][:, 0])
        assert np.array_equal(got[part][:, -1], alone[part][:, -1])


@QUANTIZERS
def test_quantize_tiny_values(run_kernel: Any, integer: Any, levels: int) -> None:
    x = np.full((1, 96), 1e-40, np.float32)
    x[0, 32:64], x[0, 64:] = 3e-33, 2e38
    got = quantized(run_kernel, integer, x)
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
    is_own, bits = data.draw(st.booleans()), data.draw(st.sampled_from([0, 8, 16]))
    how = {"norm": (w, 1e-5), "bits": bits, "is_own": is_own}
    for before in (None, (w, 1e-3)):
        together = run_rows(run_kernel, x, before, y, n_threads=n_threads, **how)
        alone = run_rows(run_kernel, x[i : i + 1], before, y[i : i + 1], **how)
        for part, row in alone.items():
            assert np.array_equal(together[part][i], row[0])
    for kernel in (gate.swiglu, gate.geglu):
        results = []
        for part, team in ((slice(0, n), n_threads), (slice(i, i + 1), 1)):
            p, q = padded(x[part]), padded(y[part])
            run_kernel(kernel, count(p[: len(x[part])]), cols, p, q, p, 0, 0, 0, n_threads=team)
            results.append(p)
        assert np.array_equal(results[0][i], results[1][0])
