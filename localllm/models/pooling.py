"""What stands for a whole text: which of its rows, and the classifier of rerankers; it knows no architecture."""

from __future__ import annotations

from typing import Literal

from kernels_cpu.graph import Graph, Value
from localllm.models.keys import Keys
from localllm.models.tensors import Tensors

Pooling = Literal["mean", "cls", "last", "rank"]
"""The mean of all rows, the first, the last; `rank`: scores of one row."""

_KINDS: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last", 4: "rank"}
_NONE, _UNSPECIFIED = 0, 2**32 - 1


def read_pooling(keys: Keys, default: Pooling) -> Pooling:
    """What `pooling_type` says; `default` where it says nothing, or that there is none.

    Raises:
        GGUFError: it says something else.
    """
    kind = keys.integer("pooling_type", _NONE, high=_UNSPECIFIED)
    if kind in (_NONE, _UNSPECIFIED):
        return default
    if kind not in _KINDS:
        raise keys.error("pooling_type", "an integer in 0..4", kind)
    return _KINDS[kind]


def pooled(g: Graph, t: Tensors, x: Value, pooling: Pooling) -> None:
    """Ends the graph of an encoder, whose rows are x: with one row of each sequence, or with its scores."""
    if pooling == "rank":
        scores = classified(g, t, g.pool(x, "cls"))
        g.output(scores, scores)
        return
    for name in ("cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"):
        t.skip(name)
    y = g.pool(x, pooling)
    for name in ("dense_2", "dense_3"):
        if f"{name}.weight" in t:
            y = t.projection(name, t.n_rows(f"{name}.weight"), y.cols).apply(g, y)
    g.output(y, y)


def classified(g: Graph, t: Tensors, x: Value) -> Value:
    """Scores of rows: `cls`, a layer with tanh, and `cls.output`; one of them may be missing."""
    if "cls.weight" in t:
        dense = t.projection("cls", t.n_rows("cls.weight"), x.cols)
        x = g.softcap(dense.apply(g, x), 1.0)  # 1 tanh(x / 1)
        if "cls.output.weight" not in t:
            return x
    return t.projection("cls.output", t.n_rows("cls.output.weight"), x.cols).apply(g, x)
