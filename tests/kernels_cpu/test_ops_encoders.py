"""The operations of encoders against their NumPy twins, and graphs of them on the tape: bits, threads, company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_cpu import twin
from kernels_cpu.graph import Graph, RopeSpec, StepInputs, Vector, Weight
from kernels_cpu.ops import OWN_ROWS, activation, attention_within, layer_norm, pool, quantize
from kernels_cpu.program import TapeProgram
from kernels_cpu.tape import TapeSizes
from kernels_cpu.twin import Twin
from kernels_cpu.weights import pack_weights

threads = pytest.mark.parametrize("n_threads", [1, 3])


def random(n: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, cols)).astype(np.float32)


def count(n: int) -> np.ndarray:
    return np.array([n], np.int64)


@threads
@pytest.mark.parametrize(("n", "cols"), [(1, 64), (5, 96), (3, 200), (2, 7), (4, 384)])
@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("bits", [0, 8])
def test_layer_norm_after_additions(
    run_kernel: Any, padded: Any, n_threads: int, n: int, cols: int, is_own: bool, bits: int
) -> None:
    x, y, (shift, w, b) = random(n, cols) + 5, random(n, cols, 1), random(3, cols, 2)
    n_blocks = -(-cols // 32)
    p, q, vectors = padded(x), padded(y), padded(np.stack([shift, w, b]))
    room = max(n, n_threads * OWN_ROWS)
    total, floats = np.zeros((2, room, 32 * n_blocks), np.float32)
    quantised = np.zeros((room, n_blocks * quantize.record_bytes(bits)), np.uint8)
    own, q_own = (OWN_ROWS * v.strides[0] if is_own else 0 for v in (floats, quantised))
    norm = (vectors[1], vectors[2], 1e-5)
    results = (floats, own, quantised if bits else 0, quantised.strides[0], q_own if bits else 0, bits)
    run_kernel(
        layer_norm.layer_rows, count(n), cols, p, 0, vectors[0], q, 0, total, *norm, *results, n_threads=n_threads
    )
    want = (x + shift) + y
    assert np.array_equal(total[:n, :cols], want)
    np.testing.assert_allclose(floats[:n, :cols], twin.twin_layer_norm(want, w, b, 1e-5), atol=3e-6)
    assert not floats[:n, cols:].any() and not total[:n, cols:].any()
    if is_own and n <= OWN_ROWS:
        assert all(np.array_equal(floats[OWN_ROWS * t :][:n], floats[:n]) for t in range(n_threads))
    if bits:
        again = np.zeros_like(quantised)
        rest = (0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, again, again.strides[0], 0, bits)
        run_kernel(layer_norm.layer_rows, count(n), cols, np.ascontiguousarray(floats[:n]), *rest)
        assert np.array_equal(quantised[:n], again[:n])


def test_layer_norm_of_equal_columns_is_the_bias(run_kernel: Any) -> None:
    x, w, b = np.full((1, 64), 3.25, np.float32), random(1, 64), random(1, 64, 1)
    out = np.zeros_like(x)
    run_kernel(layer_norm.layer_rows, count(1), 64, x, 0, 0, 0, 0, 0, w, b, 1e-5, out, 0, 0, 0, 0, 0)
    assert np.array_equal(out, b)


@threads
def test_gelu(run_kernel: Any, padded: Any, n_threads: int) -> None:
    x = np.linspace(-12, 12, 4 * 200, dtype=np.float32).reshape(4, 200)
    p = padded(x)
    out = np.ones_like(p)
    run_kernel(activation.gelu, count(4), 200, p, out, 0, 0, 0, n_threads=n_threads)
    np.testing.assert_allclose(out[:, :200], twin.twin_gelu(x), atol=6e-7)
    assert not out[:, 200:].any()


def test_gelu_of_the_infinite(run_kernel: Any) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = np.inf, np.nan, 3e38, -3e38
    run_kernel(activation.gelu, count(1), 32, x, x, 0, 0, 0)
    assert x[0, 0] == np.inf and np.isnan(x[0, 1]) and x[0, 2] == np.float32(3e38) and x[0, 3] == 0


@threads
@pytest.mark.parametrize("kind", pool.POOLINGS)
def test_pooling(run_kernel: Any, padded: Any, n_threads: int, kind: Any) -> None:
    lengths, x = [3, 1, 40, 2], random(46, 70)
    slots = np.repeat(np.arange(4, dtype=np.int32)[::-1], lengths)
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    ends = np.cumsum(lengths)
    rows = np.array([ends[2] - 1, ends[0] - 3, ends[3] - 1, ends[1] - 1], np.int32)
    p, out = padded(x), np.zeros((4, 96), np.float32)
    where = (rows, positions, slots)
    run_kernel(pool.pool, count(4), 70, count(46), p, pool.POOLINGS[kind], *where, out, n_threads=n_threads)
    parts = np.split(x, ends[:-1])
    assert np.array_equal(out[:, :70], np.stack([twin.twin_pool(parts[i], kind) for i in (2, 0, 3, 1)]))


@threads
@pytest.mark.parametrize(
    ("head_dim", "n_head", "n_head_kv"), [(32, 3, 3), (64, 4, 2), (16, 2, 1), (7, 2, 1), (80, 1, 1)]
)
@pytest.mark.parametrize("window", [0, 32, 5])
def test_attention_to_both_sides(
    run_kernel: Any, padded: Any, n_threads: int, head_dim: int, n_head: int, n_head_kv: int, window: int
) -> None:
    lengths = [5, 1, 300, 31, 257]
    n = sum(lengths)
    q, k, v = (random(n, heads * head_dim, i) for i, heads in enumerate((n_head, n_head_kv, n_head_kv)))
    slots = np.repeat(np.array([4, 0, 2, 3, 1], np.int32), lengths)
    layout = attention_within.WithinScratch(n_threads, 300, head_dim)
    scratch = np.zeros(layout.n_bytes + 64, np.uint8)
    scratch = scratch[-scratch.ctypes.data % 64 :]
    operands = [padded(x) for x in (q, k, v)]
    out = np.zeros_like(operands[0])
    words = [word for x in (*operands, out) for word in (x, x.strides[0])]
    scale = head_dim**-0.5
    shape = (n_head, n_head_kv, head_dim, slots, float(scale), window, scratch, layout.thread_bytes)
    for _ in range(2):  # the counters must be left as they were found
        run_kernel(attention_within.attention_within, count(n), *words, *shape, n_threads=n_threads)
    for first, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
        rows = slice(first, first + length)
        want = twin.twin_attention_within(q[rows], k[rows], v[rows], n_head, n_head_kv, head_dim, scale, window)
        np.testing.assert_allclose(out[rows, : n_head * head_dim], want, atol=2e-6)
    assert not out[:, n_head * head_dim :].any()


N_EMBD, N_VOCAB, N_CTX = 64, 50, 40


def encoder(pooling: Any) -> Graph:
    """Two layers with random weights, of every operation that encoders have."""
    rng, g = np.random.default_rng(1), Graph()

    def matrix(name: str, rows: int, cols: int) -> Weight:
        data = (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
        return Weight(name, 0, rows, cols, data.reshape(-1).view(np.uint8))

    def vector(n: int = N_EMBD) -> Vector:
        return Vector("v", (1 + rng.standard_normal(n) / 4).astype(np.float32))

    x = g.embedding(matrix("tokens", N_VOCAB, N_EMBD))
    positions = g.position_embedding(matrix("positions", N_CTX, N_EMBD))
    x = g.layer_norm(g.add(g.add_vector(x, vector()), positions), vector(), vector(), 1e-5)
    for i in range(2):
        q, k, v = (g.linear(x, matrix(f"{name}{i}", N_EMBD, N_EMBD), vector()) for name in "qkv")
        if i:
            q, k = (g.rope(y, 32, 32, "half", RopeSpec()) for y in (q, k))
        a = g.attention_within(q, k, v, 2, 2, 32, 0.2, window=6 * i)
        x = g.layer_norm(g.add(g.linear(a, matrix(f"o{i}", N_EMBD, N_EMBD)), x), vector(), None, 1e-5)
        h = g.linear(g.gelu(g.linear(x, matrix(f"up{i}", 96, N_EMBD), vector(96))), matrix(f"down{i}", N_EMBD, 96))
        x = g.layer_norm(g.add(h, x), vector(), vector(), 1e-5)
    y = g.linear(g.pool(x, pooling), matrix("dense", 40, N_EMBD))
    g.output(y, y)
    return g


def step(texts: list[list[int]], slots: list[int]) -> StepInputs:
    """Whole texts; one output each."""
    lengths = [len(text) for text in texts]
    columns = (
        [token for text in texts for token in text],
        [p for n in lengths for p in range(n)],
        [slot for slot, n in zip(slots, lengths, strict=True) for _ in range(n)],
    )
    ids, positions, rows = (np.array(column, np.int32) for column in columns)
    return StepInputs(ids, positions, rows, np.zeros((8, 2), np.int32), (np.cumsum(lengths) - 1).astype(np.int32))


TEXTS = [list(np.random.default_rng(i).integers(0, N_VOCAB, n)) for i, n in enumerate((3, 40, 1, 17, 9))]


@pytest.fixture(scope="module")
def programs() -> Any:
    graph = encoder("mean")
    sizes = TapeSizes(N_CTX, 80, 8, 16)
    made = {n: TapeProgram(graph, pack_weights(graph.weights()), sizes, n) for n in (1, 2, 3)}
    yield made
    for program in made.values():
        program.close()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_tape_of_an_encoder_agrees_with_its_twin(pooling: Any) -> None:
    graph = encoder(pooling)
    program = TapeProgram(graph, pack_weights(graph.weights()), TapeSizes(N_CTX, 80, 8, 16), 2)
    inputs = step(TEXTS, [4, 1, 0, 2, 3])
    got, want = program.run_hidden(inputs).copy(), Twin(graph, N_CTX).run_hidden(inputs)
    again = program.run(inputs).copy()
    program.close()
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert np.array_equal(got, again)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(5)), st.integers(1, 5), st.sampled_from([1, 2, 3]))
def test_a_texts_bits_are_its_own(programs: Any, order: list[int], n: int, n_threads: int) -> None:
    chosen = order[:n]
    alone = [programs[1].run(step([TEXTS[i]], [0]))[0].copy() for i in chosen]
    together = programs[n_threads].run(step([TEXTS[i] for i in chosen], list(range(3, 3 + n))))
    assert np.array_equal(together, np.stack(alone))
