"""A graph on the tape against its twin, and the promise that a row's bits depend on nothing but its sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_cpu.graph import Graph, RopeSpec, StepInputs, Value, Vector, Weight
from kernels_cpu.program import TapeProgram
from kernels_cpu.tape import Lowering, TapeSizes
from kernels_cpu.twin import Twin
from kernels_cpu.waiting import MANY_ROWS
from kernels_cpu.weights import pack_weights

N_EMBD, N_VOCAB, N_CTX, N_SLOTS = 64, 96, 96, 3


class Model:
    """Random float or quantised weights behind a graph of every operation."""

    def __init__(self, type_id: int, seed: int = 0, pairing: Any = "half") -> None:
        self.rng, self.type_id, self.pairing = np.random.default_rng(seed), type_id, pairing
        self.graph = Graph()
        x = self.graph.scale(self.graph.embedding(self.matrix("embd", N_VOCAB, N_EMBD)), 1.5)
        for layer in range(2):
            x = self.layer(x, layer)
        x = self.graph.rms_norm(self.graph.select_outputs(x), self.vector(N_EMBD), 1e-5)
        self.graph.output(self.graph.softcap(self.graph.linear(x, self.matrix("output", N_VOCAB, N_EMBD)), 20.0))

    def matrix(self, name: str, rows: int, cols: int) -> Weight:
        x = (self.rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
        data = gguf.quants.quantize(x, gguf.GGMLQuantizationType(self.type_id))
        return Weight(name, self.type_id, rows, cols, data.reshape(-1).view(np.uint8))

    def vector(self, n: int) -> Vector:
        return Vector("v", (1 + self.rng.standard_normal(n) / 4).astype(np.float32))

    def layer(self, x: Value, i: int) -> Value:
        g, rope = self.graph, RopeSpec(freq_base=1000.0)
        h = g.rms_norm(x, self.vector(N_EMBD), 1e-5)
        q = g.linear(h, self.matrix(f"q{i}", 64, N_EMBD), self.vector(64))
        k, v = (g.linear(h, self.matrix(f"{name}{i}", 32, N_EMBD)) for name in "kv")
        q = g.rope(g.head_norm(q, self.vector(16), 1e-5, 16), 16, 16, self.pairing, rope)
        k = g.rope(k, 16, 8, self.pairing, rope)
        a = g.attention(q, k, v, i, 4, 2, 16, 0.25, window=20 if i else 0, softcap=0.0 if i else 30.0)
        x = g.add(x, g.linear(a, self.matrix(f"o{i}", N_EMBD, 64)))
        h = g.rms_norm(x, self.vector(N_EMBD), 1e-5)
        gate, up = (g.linear(h, self.matrix(f"{name}{i}", 96, N_EMBD)) for name in ("gate", "up"))
        h = g.geglu(gate, up) if i else g.swiglu(gate, up)
        y = g.linear(h, self.matrix(f"down{i}", N_EMBD, 96))
        return g.add(x, g.rms_norm(y, self.vector(N_EMBD), 1e-5)) if i else g.add(y, x)

    def program(self, n_threads: int, n_batch: int = 64) -> TapeProgram:
        sizes = TapeSizes(N_CTX, n_batch, N_SLOTS, 12)
        return TapeProgram(self.graph, pack_weights(self.graph.weights()), sizes, n_threads)


PAGES = np.array([[7, 2, 9], [0, 11, 4], [3, 5, 1]], np.int32)


def step(*rows: tuple[int, int, int], outputs: list[int] | None = None) -> StepInputs:
    """Rows of (slot, position, token id); logits of all rows unless said otherwise."""
    slots, positions, ids = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    wanted = np.arange(len(rows)) if outputs is None else np.array(outputs)
    return StepInputs(ids, positions, slots, PAGES, wanted.astype(np.int32))


class Dense:
    """A KV cache for the twin: everything in float16, by slot."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}

    def write(self, layer: int, step: StepInputs, k: np.ndarray, v: np.ndarray) -> None:
        for i, (slot, position) in enumerate(zip(step.slots, step.positions, strict=True)):
            rounded = (k[i].astype(np.float16).astype(np.float32), v[i].astype(np.float16).astype(np.float32))
            self.kept[layer, int(slot), int(position)] = rounded

    def read(self, layer: int, step: StepInputs, slot: int, n_kv: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = [self.kept[layer, slot, p] for p in range(n_kv)]
        return np.stack([k for k, _ in pairs]), np.stack([v for _, v in pairs])


@pytest.fixture(scope="module", params=[0, 8], ids=["F32", "Q8_0"])
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param)


@pytest.fixture(scope="module")
def programs(model: Model) -> Iterator[dict[int, TapeProgram]]:
    made = {n: model.program(n) for n in (1, 2, 3)}
    yield made
    for program in made.values():
        program.close()


def tokens(seed: int, n: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, N_VOCAB, n)]


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_the_tape_agrees_with_the_twin(pairing: Any) -> None:
    model = Model(0, pairing=pairing)
    program, twin = model.program(2), Twin(model.graph, N_CTX, Dense())
    inputs = step(*[(1, p, t) for p, t in enumerate(tokens(0, 50))])
    got, want = program.run(inputs), twin.run(inputs)
    program.close()
    # A key or value on the edge between two halves may round the other way.
    np.testing.assert_allclose(got, want, atol=3e-4)


def test_quantised_weights_agree_within_the_rounding_of_activations() -> None:
    model = Model(8)
    program, twin = model.program(2), Twin(model.graph, N_CTX, Dense())
    inputs = step(*[(1, p, t) for p, t in enumerate(tokens(0, 50))])
    got, want = program.run(inputs), twin.run(inputs)
    program.close()
    assert np.sqrt(np.mean((got - want) ** 2)) < 0.02 * want.std()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), n_threads=st.sampled_from([1, 2, 3]))
def test_chunks_batches_and_threads_change_no_bit(programs: dict[int, TapeProgram], seed: int, n_threads: int) -> None:
    """Sequences in three slots, cut into random chunks and interleaved at random, against one token at a time."""
    rng = np.random.default_rng(seed)
    texts = [tokens(10 + slot, int(rng.integers(1, 60))) for slot in range(int(rng.integers(1, 4)))]
    alone = [
        np.concatenate([programs[1].run(step((slot, p, t))).copy() for p, t in enumerate(text)])
        for slot, text in enumerate(texts)
    ]
    done, longest = [0] * len(texts), int(rng.choice([2, 8, 21]))
    while any(d < len(text) for d, text in zip(done, texts, strict=True)):
        rows: list[tuple[int, int, int]] = []
        for slot, text in enumerate(texts):
            n = min(int(rng.integers(0, longest)), len(text) - done[slot])
            rows += [(slot, done[slot] + i, text[done[slot] + i]) for i in range(n)]
            done[slot] += n
        if not rows:
            continue
        wanted = [i for i in range(len(rows)) if rng.random() < 0.5]
        got = programs[n_threads].run(step(*rows, outputs=wanted))
        assert got.shape == (len(wanted), N_VOCAB)
        for k, i in enumerate(wanted):
            slot, position, _ = rows[i]
            np.testing.assert_array_equal(got[k], alone[slot][position])


def test_products_of_one_value_are_shared_out_as_one_list(model: Model) -> None:
    """Queries, keys and values; gate and up are not, since the activation goes on in the columns of each."""
    lowering = Lowering(model.graph, pack_weights(model.graph.weights()), TapeSizes(N_CTX, 8, 1, 4), 2)
    lowering.run()
    products = [row.args for row in lowering.writer.rows if row.kernel.name.endswith(":linear")]
    shares = [(before, n_groups // 2, after) for *_, n_groups, _, _, _, _, before, after, _ in products]
    assert shares[:3] == [(0, 2, 2), (2, 1, 1), (3, 1, 0)]
    assert shares[3:7] == [(0, 2, 0), (0, 3, 0), (0, 3, 0), (0, 2, 0)]


def test_many_rows_wait_for_the_rows_that_a_product_adds(model: Model) -> None:
    """A product adds, in its columns, what was made by rows just before it."""
    g = Graph()
    x = g.embedding(model.matrix("embd", N_VOCAB, N_EMBD))
    h = g.rms_norm(x, model.vector(N_EMBD), 1e-5)
    addend = g.rms_norm(g.linear(h, model.matrix("a", N_EMBD, N_EMBD)), model.vector(N_EMBD), 1e-5)
    g.output(g.select_outputs(g.add(addend, g.linear(h, model.matrix("b", N_EMBD, N_EMBD)))))
    lowering = Lowering(g, pack_weights(g.weights()), TapeSizes(N_CTX, 8, 1, 4), 2)
    lowering.run()
    rows = [(row.kernel.name.rpartition(":")[2], row.barrier_from) for row in lowering.writer.rows]
    assert [barrier for name, barrier in rows if name == "rows"][-1] == MANY_ROWS


def test_memory_counts_what_steps_touch(model: Model) -> None:
    """A row of logits for each slot, and not for each row of the largest step."""
    small, large = (model.program(1, n_batch=n) for n in (4, 4096))
    grown = large.memory_bytes - small.memory_bytes
    small.close()
    large.close()
    assert 0 < grown < 4092 * 4 * 600, "some 500 columns of activations a row, and none of the logits"


def test_a_program_of_one_thread_starts_no_others(model: Model) -> None:
    import threading

    before = threading.active_count()
    program = model.program(1, n_batch=4)
    assert threading.active_count() == before
    program.close()
