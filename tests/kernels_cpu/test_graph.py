"""Shape checks of the graph builder, and the angles of rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels_cpu import KernelError
from kernels_cpu.graph import Graph, KVLayer, RopeSpec, Value, Vector, Weight


def matrix(n_rows: int, n_cols: int, name: str = "w") -> Weight:
    return Weight(name, 0, n_rows, n_cols, np.zeros(4 * n_rows * n_cols, np.uint8))


def vector(n: int, name: str = "v") -> Vector:
    return Vector(name, np.zeros(n, np.float32))


def started(cols: int = 8) -> tuple[Graph, Value]:
    g = Graph()
    return g, g.embedding(matrix(10, cols))


def test_nodes_hold_what_was_asked_for() -> None:
    g, x = started()
    w, b = matrix(6, 8), vector(6)
    y = g.linear(x, w, b)
    assert (y.rows, y.cols) == ("n", 6)
    node = g.nodes[-1]
    assert (node.op, node.inputs, node.attrs, node.output) == (
        "linear",
        [x],
        {"weight": w, "bias": b, "adapter_gain": 1.0},
        y,
    )


def test_outputs_are_followed_through() -> None:
    g, x = started()
    logits = g.softcap(g.linear(g.select_outputs(x), matrix(5, 8)), 30.0)
    g.output(logits)
    assert (g.logits, g.n_vocab, logits.rows) == (logits, 5, "n_out")


def test_attention_declares_its_cache() -> None:
    g, x = started(16)
    k = g.linear(x, matrix(8, 16))
    a = g.attention(x, k, k, 3, n_head=4, n_head_kv=2, head_dim=4, scale=0.5)
    assert a.cols == 16
    assert g.kv_layers == {3: KVLayer(2, 4)}


def test_each_weight_comes_once() -> None:
    g = Graph()
    tied, other = matrix(10, 8, "tied"), matrix(8, 8, "other")
    x = g.linear(g.embedding(tied), other)
    g.output(g.linear(g.select_outputs(x), tied))
    assert [w.name for w in g.weights()] == ["tied", "other"]


MISFITS: list[tuple[Callable[[Graph, Value], object], str]] = [
    (lambda g, x: g.linear(x, matrix(4, 9)), "linear: expected `w` with 8 columns, got 9"),
    (lambda g, x: g.linear(x, matrix(4, 8), vector(5)), "linear: expected a bias of 4 elements, got 5 in `v`"),
    (lambda g, x: g.rms_norm(x, vector(9), 1e-5), "rms_norm: expected a weight of 8 elements, got 9 in `v`"),
    (lambda g, x: g.head_norm(x, vector(3), 1e-5, 3), "head_norm: expected a multiple of head_dim = 3 columns, got 8"),
    (lambda g, x: g.head_norm(x, vector(3), 1e-5, 4), "head_norm: expected a weight of 4 elements, got 3 in `v`"),
    (lambda g, x: g.rope(x, 5, 4, "half", RopeSpec()), "rope: expected a multiple of head_dim = 5 columns, got 8"),
    (lambda g, x: g.rope(x, 4, 6, "half", RopeSpec()), "rope: expected an even n_rot in 2..4, got 6"),
    (lambda g, x: g.rope(x, 4, 3, "half", RopeSpec()), "rope: expected an even n_rot in 2..4, got 3"),
    (lambda g, x: g.rope(g.select_outputs(x), 4, 4, "half", RopeSpec()), "rope: expected rows that are tokens"),
    (lambda g, x: g.attention(x, x, x, 0, 2, 2, 3, 1.0), "attention: expected q [n, 6], got [n, 8]"),
    (lambda g, x: g.attention(x, x, x, 0, 4, 2, 2, 1.0), "attention: expected k [n, 4], got [n, 8]"),
    (lambda g, x: g.attention(x, x, x, 0, 3, 2, 2, 1.0), "attention: expected n_head as a multiple of n_head_kv"),
    (lambda g, x: g.attention(x, x, x, 0, 2, 2, 4, 1.0, window=-1), "attention: expected window and softcap >= 0"),
    (lambda g, x: g.add(x, g.select_outputs(x)), "add: expected two values [n, 8], got [n_out, 8]"),
    (lambda g, x: g.swiglu(x, g.linear(x, matrix(4, 8))), "swiglu: expected two values [n, 8], got [n, 4]"),
    (lambda g, x: g.softcap(x, 0.0), "softcap: expected c > 0, got 0.0"),
    (
        lambda g, x: g.select_outputs(g.select_outputs(x)),
        "select_outputs: expected rows that are tokens (n), got n_out",
    ),
    (lambda g, x: g.output(x), "output: expected rows that are outputs (n_out), got n"),
    (lambda g, x: g.scale(Value(0, "n", 8), 2.0), "scale: expected inputs made by this graph, got value 0"),
    (lambda g, x: g.n_vocab, "graph: expected a call of `output`, got none"),
]


@pytest.mark.parametrize(("build", "text"), MISFITS, ids=[text for _, text in MISFITS])
def test_what_does_not_fit_is_named(build: Callable[[Graph, Value], object], text: str) -> None:
    g, x = started()
    with pytest.raises(KernelError) as caught:
        build(g, x)
    assert str(caught.value).startswith(text)


def test_a_layer_and_a_result_are_set_once() -> None:
    g, x = started()
    g.attention(x, x, x, 0, 2, 2, 4, 1.0)
    with pytest.raises(KernelError, match="a layer that has no cache yet, got 0"):
        g.attention(x, x, x, 0, 2, 2, 4, 1.0)
    y = g.select_outputs(x)
    g.output(y)
    with pytest.raises(KernelError, match="expected one result, got a second one"):
        g.output(y)


def test_weights_must_be_rows_of_bytes() -> None:
    with pytest.raises(KernelError, match="weight `w`: expected uint8 bytes that divide into 3 rows"):
        Weight("w", 0, 3, 1, np.zeros(4, np.uint8))
    with pytest.raises(KernelError, match="expected at least one row and column, got 0 x 4"):
        Weight("w", 0, 0, 4, np.zeros(0, np.uint8))
    with pytest.raises(KernelError, match=r"vector `v`: expected float32 \[n\], got float64"):
        Vector("v", np.zeros(4))  # type: ignore[arg-type]


class TestRopeSpec:
    def test_plain_angles(self) -> None:
        cos, sin = RopeSpec(freq_base=100.0).tables(4, 3)
        assert cos.dtype == sin.dtype == np.float32 and cos.shape == (3, 2)
        np.testing.assert_allclose(cos[2], np.cos([2.0, 0.2]), rtol=1e-6)
        np.testing.assert_allclose(sin[2], np.sin([2.0, 0.2]), rtol=1e-6)

    def test_factors_divide_and_a_linear_scale_multiplies(self) -> None:
        spec = RopeSpec(freq_base=100.0, freq_scale=0.25, factors=np.array([1.0, 8.0], np.float32))
        np.testing.assert_allclose(spec.frequencies(4), [0.25, 0.1 / 8 * 0.25])
        with pytest.raises(KernelError, match="expected 3 frequency factors"):
            spec.frequencies(6)

    def test_yarn_keeps_fast_pairs_and_scales_slow_ones(self) -> None:
        spec = RopeSpec(freq_base=1e6, freq_scale=0.25, ext_factor=1.0, n_ctx_orig=32768)
        plain = RopeSpec(freq_base=1e6).frequencies(128)
        ratio = spec.frequencies(128) / plain
        # pairs that turn 32 times and once within 32768 positions: 128 ln(32768 / (2 pi turns)) / (2 ln 1e6)
        low, high = 23, 40
        np.testing.assert_allclose(ratio[: low + 1], 1.0)
        np.testing.assert_allclose(ratio[high:], 0.25)
        assert np.all(np.diff(ratio[low : high + 1]) < 0)
        assert spec.magnitude() == pytest.approx(1 + 0.1 * np.log(4))
        assert spec.tables(128, 1)[0][0, 0] == pytest.approx(spec.magnitude())
