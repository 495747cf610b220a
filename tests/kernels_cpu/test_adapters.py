"""Adapters on the tape against their twin and against merged weights, and that they change no other row's bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu import KernelError
from kernels_cpu.adapters import MAX_PER_ROW, AdapterTable, PackedAdapter, targets
from kernels_cpu.graph import Adaptation, Graph, LowRank, RopeSpec, StepInputs, Value, Vector, Weight
from kernels_cpu.ops.lora import FEW_ROWS, MAX_RANK
from kernels_cpu.program import TapeProgram
from kernels_cpu.tape import TapeSizes
from kernels_cpu.twin import Twin, dequantise
from kernels_cpu.weights import pack_weights

N_EMBD, N_VOCAB, N_CTX, N_FF, N_SLOTS = 160, 96, 96, 300, 4
PAGES = np.array([[7, 2, 9], [0, 11, 4], [3, 5, 1], [6, 8, 10]], np.int32)
EXAMPLES = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Model:
    """Two layers, one with a fused matrix of queries, keys and values, widths that fill no block, a tied head."""

    def __init__(self, type_id: int = 0) -> None:
        self.rng, self.type_id = np.random.default_rng(type_id), type_id
        self.graph = Graph()
        embedding = self.matrix("embd", N_VOCAB, N_EMBD)
        x = self.graph.embedding(embedding)
        for layer in range(2):
            x = self.layer(x, layer)
        x = self.graph.rms_norm(x, self.vector(N_EMBD), 1e-5)
        self.graph.output(self.graph.linear(x, embedding))

    def matrix(self, name: str, rows: int, cols: int) -> Weight:
        x = (self.rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
        data = gguf.quants.quantize(x, gguf.GGMLQuantizationType(self.type_id))
        return Weight(name, self.type_id, rows, cols, data.reshape(-1).view(np.uint8))

    def vector(self, n: int) -> Vector:
        return Vector("v", (1 + self.rng.standard_normal(n) / 4).astype(np.float32))

    def qkv(self, h: Value, i: int) -> list[Value]:
        if i == 0:
            return [self.graph.linear(h, self.matrix(f"{name}0", rows, N_EMBD)) for name, rows in (*QK, ("v", 32))]
        whole = self.matrix("qkv1", 128, N_EMBD)
        parts = []
        for first, end in ((0, 64), (64, 96), (96, 128)):
            data = whole.data[first * whole.row_bytes : end * whole.row_bytes]
            part = Weight(f"qkv1[{first}]", self.type_id, end - first, N_EMBD, data, ("qkv1", first))
            parts.append(self.graph.linear(h, part, adapter_gain=2.0))
        return parts

    def layer(self, x: Value, i: int) -> Value:
        g, rope = self.graph, RopeSpec(freq_base=1000.0)
        q, k, v = self.qkv(g.rms_norm(x, self.vector(N_EMBD), 1e-5), i)
        q, k = g.rope(q, 16, 16, "half", rope), g.rope(k, 16, 16, "half", rope)
        a = g.attention(q, k, v, i, 4, 2, 16, 0.25)
        if i:
            a, x = g.select_outputs(a), g.select_outputs(x)
        x = g.add(x, g.linear(a, self.matrix(f"o{i}", N_EMBD, 64)))
        h = g.rms_norm(x, self.vector(N_EMBD), 1e-5)
        n_ff = N_FF if self.type_id == 0 else 320
        gate, up = (g.linear(h, self.matrix(f"{name}{i}", n_ff, N_EMBD)) for name in ("gate", "up"))
        return g.add(g.linear(g.swiglu(gate, up), self.matrix(f"down{i}", N_EMBD, n_ff)), x)

    def adapter(self, seed: int, rank: int, names: list[str] | None = None) -> dict[str, LowRank]:
        rng = np.random.default_rng(seed)
        made = {}
        for name, target in targets(self.graph).items():
            if names is None or name in names:
                a, b = (
                    rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in target.shapes(rank)
                )
                made[name] = LowRank(a, b / 16, 0.25 / rank)
        return made

    def program(self, n_threads: int, adapters: list[dict[str, LowRank]]) -> TapeProgram:
        sizes = TapeSizes(N_CTX, 64, N_SLOTS, 12, "f32")
        program = TapeProgram(self.graph, pack_weights(self.graph.weights()), sizes, n_threads)
        program.prepare_adapters()
        for place, adapter in enumerate(adapters):
            program.put_adapter(place, PackedAdapter(targets(self.graph), adapter))
        return program


QK = (("q", 64), ("k", 32))
RANKS = (16, 3, 40)


def adapters_of(model: Model) -> list[dict[str, LowRank]]:
    return [
        model.adapter(seed, rank, None if seed != 1 else ["q0", "down1", "qkv1"]) for seed, rank in enumerate(RANKS)
    ]


def step(rows: list[tuple[int, int, int]], adaptations: Any = (), outputs: list[int] | None = None) -> StepInputs:
    """Rows of (slot, position, token id)."""
    slots, positions, ids = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    wanted = np.arange(len(rows)) if outputs is None else np.array(outputs)
    return StepInputs(ids, positions, slots, PAGES, wanted.astype(np.int32), tuple(adaptations))


def tokens(seed: int, n: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, N_VOCAB, n)]


@pytest.fixture(scope="module", params=[0, 8], ids=["F32", "Q8_0"])
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param)


@pytest.fixture(scope="module")
def programs(model: Model) -> Iterator[dict[int, TapeProgram]]:
    made = {n: model.program(n, adapters_of(model)) for n in (1, 2, 3)}
    yield made
    for program in made.values():
        program.close()


SETS = [(), ((0, 1.0),), ((1, -0.5),), ((0, 0.5), (2, 1.5)), ((2, 1.0), (1, 2.0), (0, 0.25))]


def of(first: int, end: int, adapters: tuple[tuple[int, float], ...]) -> list[Adaptation]:
    return [Adaptation(first, end, place, scale) for place, scale in adapters]


@pytest.mark.parametrize("n", [1, FEW_ROWS, 50])
@pytest.mark.parametrize("adapters", SETS[1:])
def test_the_tape_agrees_with_the_twin(n: int, adapters: Any) -> None:
    model = Model()
    loaded = adapters_of(model)
    program, twin = model.program(2, loaded), Twin(model.graph, N_CTX)
    twin.adapters = dict(enumerate(loaded))
    inputs = step([(1, p, t) for p, t in enumerate(tokens(0, n))], of(0, n, adapters))
    got, want = program.run(inputs).copy(), twin.run(inputs)
    plain = program.run(step([(2, p, t) for p, t in enumerate(tokens(0, n))]))
    program.close()
    np.testing.assert_allclose(got, want, atol=5e-4 * np.abs(want).max())
    assert np.abs(plain - got).max() > 0.1 * want.std(), "the adapter changes something"


def test_an_adapter_is_as_good_as_a_merged_matrix() -> None:
    """W + scale · B A in every matrix; what is tied to the embedding stays."""
    model = Model()
    (adapter, *_) = adapters_of(model)
    merged: dict[str, Weight] = {}
    found = targets(model.graph)
    for name, pair in adapter.items():
        whole = next((w for w in model.graph.weights() if w.name == name), None)
        if name == "embd" or whole is None:
            continue
        x = dequantise(whole) + np.float32(0.75 * pair.scale) * (pair.b @ pair.a)
        merged[name] = Weight(name, 0, whole.n_rows, whole.n_cols, x.reshape(-1).view(np.uint8))
    names = [*merged]
    graph = Graph(list(model.graph.nodes), dict(model.graph.kv_layers), model.graph.logits, model.graph.hidden)
    for i, node in enumerate(graph.nodes):
        weight = node.attrs.get("weight")
        if node.op == "linear" and weight.name in merged:
            graph.nodes[i] = type(node)(
                node.op, node.inputs, {**node.attrs, "weight": merged[weight.name]}, node.output
            )
    inputs = [(0, p, t) for p, t in enumerate(tokens(3, 20))]
    program = model.program(2, [{name: adapter[name] for name in names}])
    got = program.run(step(inputs, of(0, 20, ((0, 0.75),)))).copy()
    program.close()
    want = Twin(graph, N_CTX).run(step(inputs))
    assert len(names) == len(found) - 2, "all but the embedding and the fused matrix"
    np.testing.assert_allclose(got, want, atol=3e-4 * np.abs(want).max())


@EXAMPLES
@given(seed=st.integers(0, 2**32), n_threads=st.sampled_from([1, 2, 3]))
def test_chunks_batches_and_threads_change_no_bit(programs: dict[int, TapeProgram], seed: int, n_threads: int) -> None:
    """Sequences with different adapters, cut into chunks and interleaved, against one token of one sequence at a time,
    and that without adapters against the plain tape."""
    rng = np.random.default_rng(seed)
    chosen = [SETS[0], *(SETS[int(rng.integers(1, len(SETS)))] for _ in range(2)), SETS[0]]
    rng.shuffle(chosen)
    texts = [tokens(10 + slot, int(rng.integers(1, 60))) for slot in range(N_SLOTS)]
    alone = [
        np.concatenate(
            [programs[1].run(step([(slot, p, t)], of(0, 1, chosen[slot]))).copy() for p, t in enumerate(text)]
        )
        for slot, text in enumerate(texts)
    ]
    done, longest = [0] * len(texts), int(rng.choice([2, 4, 21]))
    while any(d < len(text) for d, text in zip(done, texts, strict=True)):
        rows: list[tuple[int, int, int]] = []
        adaptations: list[Adaptation] = []
        for slot, text in enumerate(texts):
            n = min(int(rng.integers(0, longest)), len(text) - done[slot], 64 - len(rows))
            adaptations += of(len(rows), len(rows) + n, chosen[slot]) if n else []
            rows += [(slot, done[slot] + i, text[done[slot] + i]) for i in range(n)]
            done[slot] += n
        if not rows:
            continue
        wanted = [i for i in range(len(rows)) if rng.random() < 0.5]
        got = programs[n_threads].run(step(rows, adaptations, wanted))
        for k, i in enumerate(wanted):
            slot, position, _ = rows[i]
            np.testing.assert_array_equal(got[k], alone[slot][position])


def test_both_tapes_share_the_cache(programs: dict[int, TapeProgram]) -> None:
    """A sequence goes on from one to the other; a scale of 0 changes nothing."""
    text = tokens(5, 30)
    whole = programs[2].run(step([(0, p, t) for p, t in enumerate(text)])).copy()
    programs[2].run(step([(1, p, t) for p, t in enumerate(text[:20])], of(0, 20, ((0, 0.0),))))
    rest = programs[2].run(step([(1, 20 + p, t) for p, t in enumerate(text[20:])]))
    np.testing.assert_array_equal(rest, whole[20:])


def test_an_adapter_that_left_is_gone(model: Model) -> None:
    program = model.program(2, adapters_of(model))
    rows = [(0, p, t) for p, t in enumerate(tokens(1, 12))]
    with_adapter = program.run(step(rows, of(0, 12, ((0, 1.0),)))).copy()
    loaded = program.memory_bytes
    program.put_adapter(0, None)
    without = program.run(step(rows, of(0, 12, ((0, 1.0),)))).copy()
    np.testing.assert_array_equal(without, program.run(step(rows)))
    assert program.memory_bytes < loaded
    program.put_adapter(0, PackedAdapter(targets(model.graph), adapters_of(model)[0]))
    np.testing.assert_array_equal(with_adapter, program.run(step(rows, of(0, 12, ((0, 1.0),)))))
    program.close()


def test_small_and_large_values_are_kept() -> None:
    """Halves have few exponents: what is small as a whole loses nothing, nor does what is large."""
    model = Model()
    found = targets(model.graph)
    plain = model.adapter(0, 16, ["o0"])["o0"]
    small = LowRank(plain.a * np.float32(2.0**-30), plain.b * np.float32(2.0**25), plain.scale * 2.0**5)
    one, other = (PackedAdapter(found, {"o0": pair}) for pair in (plain, small))
    inputs = step([(0, 0, 7)], of(0, 1, ((0, 1.0),)))
    program = model.program(1, [])
    results = []
    for adapter in (one, other):
        program.put_adapter(0, adapter)
        results.append(program.run(inputs).copy())
    program.close()
    np.testing.assert_array_equal(*results)


def test_matrices_of_zeros_are_no_trouble() -> None:
    model = Model()
    adapter = model.adapter(0, 4)
    empty = {name: LowRank(pair.a, 0 * pair.b, pair.scale) for name, pair in adapter.items()}
    program = model.program(1, [empty])
    rows = [(0, 0, 7)]
    np.testing.assert_array_equal(program.run(step(rows, of(0, 1, ((0, 1.0),)))).copy(), program.run(step(rows)))
    program.close()


@pytest.mark.parametrize(("name", "shape_a", "shape_b"), [("q0", (4, 161), (64, 4)), ("q0", (4, 160), (63, 4))])
def test_shapes_are_checked(name: str, shape_a: tuple[int, int], shape_b: tuple[int, int]) -> None:
    pair = LowRank(np.zeros(shape_a, np.float32), np.zeros(shape_b, np.float32), 1.0)
    with pytest.raises(KernelError, match="expected 64 x 160"):
        PackedAdapter(targets(Model().graph), {name: pair})


def test_the_largest_rank_and_number_of_adapters() -> None:
    """All rows of the largest step, each with as many adapters as there may be."""
    model = Model()
    large = model.adapter(0, MAX_RANK, ["q0", "o1"])
    adapters = [large, *(model.adapter(seed, 2, ["q0"]) for seed in range(1, MAX_PER_ROW))]
    program, twin = model.program(2, adapters), Twin(model.graph, N_CTX)
    twin.adapters = dict(enumerate(adapters))
    chosen = tuple((place, 0.5) for place in range(MAX_PER_ROW))
    inputs = step([(1, p, t) for p, t in enumerate(tokens(0, 64))], of(0, 64, chosen))
    got, want = program.run(inputs).copy(), twin.run(inputs)
    program.close()
    np.testing.assert_allclose(got, want, atol=5e-4 * np.abs(want).max())


def test_targets_are_the_matrices_by_name() -> None:
    found = targets(Model().graph)
    assert set(found) == {
        "embd",
        "q0",
        "k0",
        "v0",
        "qkv1",
        *(f"{n}{i}" for n in ("o", "gate", "up", "down") for i in "01"),
    }
    assert found["embd"].is_embedding and len(found["embd"].parts) == 1
    assert (found["qkv1"].n_rows, [part.first_row for part in found["qkv1"].parts]) == (128, [0, 64, 96])


def test_a_table_has_a_place_for_each_row_of_output() -> None:
    table = AdapterTable(Model().graph, 4)
    table.set((Adaptation(0, 3, 5, 1.0), Adaptation(4, 6, 2, 0.5)), np.array([2, 4, 5], np.int32))
    assert [tuple(table._applications["n_out"][8 + 8 * i :][:5][[0, 1, 2, 4]]) for i in range(2)] == [
        (0, 1, 5, 0),
        (1, 3, 2, 1),
    ]
