"""The twins against formulas written out in loops, and against values computed by hand."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest

from kernels_cpu import KernelError
from kernels_cpu.graph import Graph, RopeSpec, StepInputs, Vector, Weight
from kernels_cpu.twin import (
    PlainKV,
    Twin,
    dequantise,
    quantise_activations,
    twin_attention,
    twin_embedding,
    twin_geglu,
    twin_head_norm,
    twin_linear,
    twin_rms_norm,
    twin_rope,
    twin_softcap,
    twin_swiglu,
)

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def f32_weight(x: np.ndarray) -> Weight:
    return Weight("w", 0, *x.shape, np.ascontiguousarray(x).view(np.uint8).reshape(-1))


def test_rms_norm() -> None:
    x, w = np.array([[3.0, 4.0]], np.float32), np.array([1.0, 2.0], np.float32)
    np.testing.assert_allclose(twin_rms_norm(x, w, 0.0), [[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)]], rtol=1e-6)
    np.testing.assert_allclose(twin_rms_norm(0 * x, w, 1e-5), 0 * x)


def test_head_norm_is_a_norm_of_each_head() -> None:
    x, w = normal(3, 8), normal(4)
    expected = np.concatenate([twin_rms_norm(x[:, :4], w, 1e-6), twin_rms_norm(x[:, 4:], w, 1e-6)], axis=1)
    np.testing.assert_array_equal(twin_head_norm(x, w, 1e-6, 4), expected)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_rope_is_a_rotation_of_complex_numbers(pairing: str) -> None:
    x, positions = normal(3, 12), np.array([0, 5, 2], np.int32)
    cos, sin = RopeSpec().tables(4, 6)
    y = twin_rope(x, positions, cos, sin, 6, pairing)  # type: ignore[arg-type]
    for row, position in enumerate(positions):
        for head in (0, 6):
            for i in range(2):
                a, b = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + 2)
                turned = complex(x[row, head + a], x[row, head + b]) * np.exp(1j * position * 10000.0 ** (-i / 2))
                np.testing.assert_allclose([y[row, head + a], y[row, head + b]], [turned.real, turned.imag], atol=1e-6)
            np.testing.assert_array_equal(y[row, head + 4 : head + 6], x[row, head + 4 : head + 6])


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (3, 0.0), (0, 2.0), (1, 0.5)])
def test_attention_is_a_softmax_over_what_is_seen(window: int, softcap: float) -> None:
    n_head, n_head_kv, d, scale = 4, 2, 3, 0.7
    q, keys, values = normal(2, n_head * d), normal(7, n_head_kv * d), normal(7, n_head_kv * d)
    positions = np.array([6, 2], np.int32)
    y = twin_attention(q, keys, values, positions, n_head, n_head_kv, d, scale, window, softcap)
    for row, position in enumerate(positions):
        seen = [p for p in range(7) if p <= position and (window == 0 or position - p < window)]
        for head in range(n_head):
            kv = slice(head // 2 * d, head // 2 * d + d)
            score = keys[seen, kv].astype(np.float64) @ q[row, head * d : head * d + d] * scale
            score = softcap * np.tanh(score / softcap) if softcap else score
            weight = np.exp(score) / np.exp(score).sum()
            np.testing.assert_allclose(y[row, head * d : head * d + d], weight @ values[seen, kv], atol=1e-6)


def test_gates() -> None:
    gate, up = np.array([[-100.0, -1.0, 0.0, 2.0]], np.float32), np.array([[3.0, 3.0, 3.0, 0.5]], np.float32)
    silu = [x / (1 + math.exp(-x)) for x in gate[0].tolist()]
    gelu = [0.5 * x * (1 + math.tanh(0.7978845608 * (x + 0.044715 * x**3))) for x in gate[0].tolist()]
    np.testing.assert_allclose(twin_swiglu(gate, up), [silu] * up, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(twin_geglu(gate, up), [gelu] * up, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(twin_softcap(gate, 30.0), [[30 * math.tanh(x / 30) for x in gate[0]]], rtol=1e-6)


def test_linear_and_embedding_read_quantised_rows() -> None:
    x = normal(6, 64)
    q8 = gguf.GGMLQuantizationType.Q8_0
    weight = Weight("w", int(q8), 6, 64, gguf.quants.quantize(x, q8).reshape(-1))
    exact = gguf.quants.dequantize(gguf.quants.quantize(x, q8), q8)
    np.testing.assert_array_equal(dequantise(weight), exact)
    np.testing.assert_array_equal(twin_embedding(np.array([5, 0, 5], np.int32), weight), exact[[5, 0, 5]])
    h, bias = normal(2, 64), Vector("b", normal(6))
    np.testing.assert_allclose(twin_linear(h, weight, bias), h @ exact.T + bias.data, rtol=1e-6)
    np.testing.assert_allclose(twin_linear(h, weight, act="q8"), quantise_activations(h) @ exact.T, rtol=1e-6)


def test_activations_are_rounded_by_blocks() -> None:
    x = np.zeros((1, 40), np.float32)
    x[0, :4] = [127.0, 0.5, 1.5, -2.4]  # a scale of 1: halves go to the even side
    x[0, 32:34] = [-254.0, 3.0]  # the short last block has a scale of 2
    expected = np.zeros_like(x)
    expected[0, :4] = [127.0, 0.0, 2.0, -2.0]
    expected[0, 32:34] = [-254.0, 4.0]
    np.testing.assert_array_equal(quantise_activations(x), expected)


@pytest.mark.parametrize("levels", [127, 32767])
def test_the_error_of_rounded_activations_is_half_a_step(levels: int) -> None:
    x = normal(5, 96)
    step = np.abs(x.reshape(5, 3, 32)).max(axis=2) / levels
    error = np.abs(quantise_activations(x, levels=levels) - x).reshape(5, 3, 32).max(axis=2)
    assert np.all(error <= step * 0.5001)


def test_a_type_that_cannot_be_read_is_named() -> None:
    with pytest.raises(KernelError, match="weight `w`: cannot dequantise ggml type 999"):
        dequantise(Weight("w", 999, 1, 4, np.zeros(16, np.uint8)))
    with pytest.raises(KernelError, match="expected 1 x 5, got bytes for"):
        dequantise(Weight("w", 0, 1, 5, np.zeros(16, np.uint8)))


def small_graph() -> Graph:
    g = Graph()
    x = g.embedding(f32_weight(normal(10, 8)))
    q = g.rope(x, 4, 4, "half", RopeSpec())
    x = g.add(g.scale(x, 0.5), g.attention(q, q, x, 0, 2, 2, 4, 0.5))
    g.output(g.linear(g.select_outputs(x), f32_weight(normal(10, 8))))
    return g


def step(ids: list[int], positions: list[int], slots: list[int], outputs: list[int]) -> StepInputs:
    tables = np.zeros((4, 1), np.int32)
    return StepInputs(*(np.array(a, np.int32) for a in (ids, positions, slots)), tables, np.array(outputs, np.int32))


def test_rows_of_several_sequences_do_not_meet() -> None:
    g = small_graph()
    alone = Twin(g, 8).run(step([1, 2, 3], [0, 1, 2], [0, 0, 0], [0, 1, 2]))
    other = Twin(g, 8).run(step([4, 5], [0, 1], [0, 0], [1]))
    mixed = Twin(g, 8).run(step([4, 1, 2, 5, 3], [0, 0, 1, 1, 2], [3, 1, 1, 3, 1], [3, 1, 2, 4]))
    np.testing.assert_allclose(mixed, np.concatenate([other, alone]), atol=1e-6)


def test_steps_continue_and_overwrite_positions() -> None:
    g = small_graph()
    whole = Twin(g, 8).run(step([1, 2, 3], [0, 1, 2], [0, 0, 0], [2]))
    twin = Twin(g, 8)
    assert twin.run(step([1, 9, 9], [0, 1, 2], [0, 0, 0], [])).shape == (0, 10)
    twin.run(step([2], [1], [0], [0]))
    np.testing.assert_allclose(twin.run(step([3], [2], [0], [0])), whole, atol=1e-6)


def test_the_cache_may_be_kept_in_half_precision() -> None:
    g = small_graph()
    exact = Twin(g, 8).run(step([1, 2, 3], [0, 1, 2], [0, 0, 0], [2]))
    rounded = Twin(g, 8, PlainKV(np.float16)).run(step([1, 2, 3], [0, 1, 2], [0, 0, 0], [2]))
    assert 0 < np.abs(exact - rounded).max() < 0.02


def test_steps_out_of_range_are_refused() -> None:
    twin = Twin(small_graph(), 4)
    with pytest.raises(KernelError, match=r"expected positions in 0\.\.3, got 4"):
        twin.run(step([1], [4], [0], [0]))
    with pytest.raises(KernelError, match=r"expected token ids in 0\.\.9, got 10"):
        twin.run(step([10], [0], [0], [0]))
    with pytest.raises(KernelError, match="expected a call of `output`"):
        Twin(Graph(), 4).run(step([1], [0], [0], []))
