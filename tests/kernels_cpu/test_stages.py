"""Where a graph's steps may be left and taken up again."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_cpu.fusion import steps_of
from kernels_cpu.graph import Graph, Value, Vector, Weight
from kernels_cpu.stages import cuts_of

N, N_LAYERS = 32, 3


def vector() -> Vector:
    return Vector("v", np.ones(N, np.float32))


def matrix(name: str = "w") -> Weight:
    return Weight(name, 0, N, N, np.zeros(4 * N * N, np.uint8))


def attention(g: Graph, x: Value, layer: int) -> Value:
    q, k, v = (g.linear(x, matrix(f"{layer}.{name}")) for name in "qkv")
    return g.linear(g.attention(q, k, v, layer, 1, 1, N, 1.0), matrix(f"{layer}.o"))


def feed_forward(g: Graph, x: Value, layer: int) -> Value:
    up, gate = (g.linear(x, matrix(f"{layer}.{name}")) for name in ("up", "gate"))
    return g.linear(g.swiglu(gate, up), matrix(f"{layer}.down"))


def norm(g: Graph, x: Value) -> Value:
    return g.rms_norm(x, vector(), 1e-5)


def norms_before(g: Graph, x: Value, layer: int) -> Value:
    x = g.add(x, attention(g, norm(g, x), layer))
    return g.add(x, feed_forward(g, norm(g, x), layer))


def norms_around(g: Graph, x: Value, layer: int) -> Value:
    x = g.add(x, norm(g, attention(g, norm(g, x), layer)))
    return g.add(x, norm(g, feed_forward(g, norm(g, x), layer)))


def norms_after(g: Graph, x: Value, layer: int) -> Value:
    x = g.add(x, norm(g, attention(g, x, layer)))
    return g.add(x, norm(g, feed_forward(g, x, layer)))


def side_by_side(g: Graph, x: Value, layer: int) -> Value:
    normed = norm(g, x)
    return g.add(g.add(x, attention(g, normed, layer)), feed_forward(g, normed, layer))


def without_norms(g: Graph, x: Value, layer: int) -> Value:
    return feed_forward(g, attention(g, x, layer), layer)


@pytest.mark.parametrize(
    ("layer_of", "n_values"),
    [(norms_before, 1), (norms_around, 2), (norms_after, 2), (side_by_side, 1), (without_norms, 2)],
)
def test_a_stage_is_a_layer(layer_of, n_values: int) -> None:  # type: ignore[no-untyped-def]
    """What crosses are rows of floats: what comes after, rather than before, is quantised."""
    g = Graph()
    x = g.embedding(matrix("embd"))
    for layer in range(N_LAYERS):
        x = layer_of(g, x, layer)
    g.output(g.linear(g.select_outputs(x), matrix("out")))
    steps = steps_of(g)
    cuts = cuts_of(steps)
    layers = [index for index, step in enumerate(steps) if step.op == "attention"]
    assert len(cuts) == N_LAYERS - 1 and [len(cut.values) for cut in cuts] == [n_values] * (N_LAYERS - 1)
    for cut, before, after in zip(cuts, layers, layers[1:], strict=False):
        assert before < cut.index < after
        made = {node.output for step in steps[: cut.index] for node in step.nodes.values()}
        read = {value for step in steps[cut.index :] for value in step.inputs}
        assert set(cut.values) == made & read
        products = {step.nodes["linear"].inputs[0] for step in steps[cut.index :] if step.op == "linear"}
        assert not products & set(cut.values)


def test_what_all_layers_read_crosses_too() -> None:
    g = Graph()
    x = g.embedding(matrix("embd"))
    of_all = g.scale(x, 2.0)
    for layer in range(N_LAYERS):
        x = g.add(norms_before(g, x, layer), of_all)
    g.output(g.linear(g.select_outputs(x), matrix("out")))
    cuts = cuts_of(steps_of(g))
    assert len(cuts) == N_LAYERS - 1 and all(cut.values[0] is of_all and len(cut.values) == 2 for cut in cuts)


def test_a_model_without_a_cache_has_one_stage() -> None:
    g = Graph()
    x = g.embedding(matrix("embd"))
    for _ in range(N_LAYERS):
        x = g.add(x, g.attention_within(x, x, x, 1, 1, N, 1.0))
    assert cuts_of(steps_of(g)) == []
