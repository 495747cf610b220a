"""Which operations make a step of the lowering, and in which order."""

from __future__ import annotations

import numpy as np

from kernels_cpu.fusion import Step, readers_of, steps_of
from kernels_cpu.graph import Graph, RopeSpec, Value, Vector, Weight

N = 32


def vector() -> Vector:
    return Vector("v", np.ones(N, np.float32))


def matrix(name: str = "w") -> Weight:
    return Weight(name, 0, N, N, np.zeros(4 * N * N, np.uint8))


def graph() -> tuple[Graph, Value]:
    g = Graph()
    return g, g.embedding(matrix("embd"))


def shape_of(g: Graph) -> list[str]:
    """Each step as the names of its parts."""
    g.output(g.select_outputs(g.nodes[-1].output))
    return ["+".join(step.nodes) if step.op in ("linear", "rows", "heads") else step.op for step in steps_of(g)][1:-1]


def test_an_addition_is_the_epilogue_of_the_product_before_it() -> None:
    g, x = graph()
    g.add(x, g.linear(x, matrix()))
    assert shape_of(g) == ["linear+add"]


def test_no_epilogue_where_the_product_is_wanted_by_itself() -> None:
    g, x = graph()
    y = g.linear(x, matrix())
    g.add(g.add(y, x), y)
    assert shape_of(g) == ["linear", "add", "add"]


def test_no_epilogue_where_the_addend_comes_later() -> None:
    g, x = graph()
    y = g.linear(x, matrix("a"))
    g.add(y, g.scale(x, 2.0))
    assert shape_of(g) == ["linear", "scale", "add"]


def test_of_two_products_the_later_takes_the_addition() -> None:
    g, x = graph()
    g.add(g.linear(x, matrix("a")), g.linear(g.scale(x, 2.0), matrix("b")))
    assert shape_of(g) == ["linear", "scale", "linear+add"]


def test_norm_addition_norm() -> None:
    g, x = graph()
    total = g.add(x, g.rms_norm(g.linear(x, matrix()), vector(), 1e-5))
    g.add(total, g.linear(g.rms_norm(total, vector(), 1e-5), matrix()))
    assert shape_of(g) == ["linear", "norm_before+add+norm", "linear+add"]


def test_a_norm_that_several_read_is_not_swallowed() -> None:
    g, x = graph()
    y = g.rms_norm(x, vector(), 1e-5)
    g.add(g.add(x, y), y)
    assert shape_of(g) == ["norm", "add", "add"]


def test_heads_are_normed_and_turned_at_once() -> None:
    g, x = graph()
    g.rope(g.head_norm(x, vector(), 1e-5, N), N, N, "half", RopeSpec())
    g.head_norm(g.nodes[-1].output, vector(), 1e-5, N)
    assert shape_of(g) == ["head_norm+rope", "head_norm"]


def test_products_of_one_value_come_together() -> None:
    g, x = graph()
    rope = (N, N, "half", RopeSpec())
    q = g.rope(g.linear(x, matrix("q")), *rope)
    k = g.rope(g.linear(x, matrix("k")), *rope)
    v = g.linear(x, matrix("v"))
    y = g.add(x, g.linear(g.attention(q, k, v, 0, 1, 1, N, 1.0), matrix("o")))
    g.swiglu(g.linear(y, matrix("gate")), g.linear(y, matrix("up")))
    expected = ["linear", "linear", "linear", "rope", "rope", "attention", "linear+add", "linear", "linear", "swiglu"]
    assert shape_of(g) == expected


def test_every_node_once_and_nothing_before_what_it_reads() -> None:
    g, x = graph()
    for i in range(3):
        h = g.rms_norm(x, vector(), 1e-5)
        q, k, v = (g.rope(g.linear(h, matrix(f"{n}{i}")), N, N, "half", RopeSpec()) for n in "qkv")
        x = g.add(x, g.rms_norm(g.linear(g.attention(q, k, v, i, 1, 1, N, 1.0), matrix()), vector(), 1e-5))
    steps, made = steps_of(g), set[Value]()
    for step in steps:
        assert made.issuperset(step.inputs)
        made |= {node.output for node in step.nodes.values()}
    assert sorted(node.output.index for step in steps for node in step.nodes.values()) == list(range(len(g.nodes)))


def test_inputs_of_a_step_are_not_what_it_makes() -> None:
    g, x = graph()
    y = g.linear(x, matrix())
    total = g.add(y, x)
    step = Step("linear", {"linear": g.nodes[1], "add": g.nodes[2]})
    assert step.inputs == [x, x]
    assert readers_of(g)[x] == [g.nodes[1], g.nodes[2]] and readers_of(g)[total] == []
