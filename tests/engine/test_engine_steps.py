"""Steps of the engine: what they return and refuse, and that no way of cutting up a sequence changes its logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu import KernelError
from kernels_cpu.graph import StepInputs
from kernels_cpu.twin import Twin
from localllm.engine import Engine, Entry, KVCacheFullError, NoSlotError, Sequence
from localllm.engine.numpy_backend import NumpyBackend
from localllm.errors import ContextLengthError, OptionError, RequestError
from localllm.gguf import GGUFFile, open_gguf
from localllm.models import build

N_CTX = 96
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def model(tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tmp_path_factory.mktemp("engine") / "model.gguf"
    tiny_models.random_model(path)
    with open_gguf(path) as file:
        yield file


@pytest.fixture(scope="module", params=["numpy", "tape"])
def engine(model: GGUFFile, request: pytest.FixtureRequest) -> Iterator[Engine]:
    kv_cache_type = {"numpy": "f32", "tape": "f16"}[request.param]
    sizes = {"n_ctx": N_CTX, "n_batch": 64, "n_slots": 3, "n_threads": 2}
    engine = Engine.load(model, **sizes, kv_cache_type=kv_cache_type, backend=request.param)
    yield engine
    engine.close()


@contextmanager
def opened(engine: Engine, n: int = 1) -> Iterator[list[Sequence]]:
    """Open sequences, all closed at the end; no page may be lost."""
    seqs = [engine.open_sequence() for _ in range(n)]
    try:
        yield seqs
    finally:
        for seq in seqs:
            seq.close()
    assert engine.n_pages_free == engine.n_pages


def ids(n: int, seed: int = 0) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 256, n)]


def last(engine: Engine, seq: Sequence, tokens: list[int]) -> np.ndarray:
    """Logits after the last of some tokens, appended in steps of at most n_batch."""
    logits = None
    for first in range(0, len(tokens), engine.n_batch):
        (logits,) = engine.step([Entry(seq, tokens[first : first + engine.n_batch])])
    assert logits is not None
    return logits[-1].copy()


def fresh(engine: Engine, tokens: list[int]) -> np.ndarray:
    with opened(engine) as (seq,):
        return last(engine, seq, tokens)


def assert_same(engine: Engine, logits: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit where the backend is compiled; BLAS adds in another order when there are more rows."""
    if isinstance(engine.backend, NumpyBackend):
        np.testing.assert_allclose(logits, expected, atol=2e-4, rtol=1e-3)
    else:
        np.testing.assert_array_equal(logits, expected)


class TestResults:
    def test_the_twin_without_pages_agrees(self, engine: Engine, model: GGUFFile) -> None:
        tokens = ids(50)
        rows = np.arange(50, dtype=np.int32)
        step = StepInputs(np.array(tokens, np.int32), rows, 0 * rows, np.zeros((1, 1), np.int32), rows)
        with opened(engine) as (seq,):
            (logits,) = engine.step([Entry(seq, tokens, "all")])
        assert logits is not None and logits.dtype == np.float32
        expected = Twin(build(model).graph, N_CTX).run(step)
        atol = 2e-4 if isinstance(engine.backend, NumpyBackend) else 0.05
        np.testing.assert_allclose(logits, expected, atol=atol)

    def test_each_entry_gets_the_logits_it_asked_for(self, engine: Engine) -> None:
        with opened(engine, 3) as (a, b, c):
            results = engine.step([Entry(a, [1, 2, 3], "all"), Entry(b, [4, 5], "none"), Entry(c, [6, 7])])
            every, none, one = (None if x is None else x.copy() for x in results)
            assert (a.tokens, b.tokens, c.tokens) == ((1, 2, 3), (4, 5), (6, 7))
        assert every is not None and every.shape == (3, engine.n_vocab)
        assert none is None
        assert one is not None and one.shape == (1, engine.n_vocab)
        expected = [fresh(engine, tokens) for tokens in ([1], [1, 2], [1, 2, 3], [6, 7])]
        assert_same(engine, np.concatenate([every, one]), np.array(expected))

    def test_a_step_may_want_no_logits(self, engine: Engine) -> None:
        with opened(engine) as (seq,):
            assert engine.step([Entry(seq, [1, 2], "none")]) == [None]
            logits = last(engine, seq, [3])
        assert_same(engine, logits, fresh(engine, [1, 2, 3]))

    def test_numpy_tokens_are_taken(self, engine: Engine) -> None:
        with opened(engine) as (seq,):
            engine.step([Entry(seq, np.array([1, 2], np.int64))])  # type: ignore[arg-type]
            assert seq.tokens == (1, 2) and type(seq.tokens[0]) is int


class TestProperties:
    @given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
    @EXAMPLES
    def test_any_chunking_gives_the_same_logits(self, engine: Engine, cuts: list[int]) -> None:
        tokens = ids(min(sum(cuts), N_CTX))
        rest = tokens
        with opened(engine) as (seq,):
            for cut in cuts:
                if rest:
                    logits = last(engine, seq, rest[:cut])
                    rest = rest[cut:]
        assert_same(engine, logits, fresh(engine, tokens))

    def test_prefill_equals_decoding(self, engine: Engine) -> None:
        tokens = ids(64)
        with opened(engine, 2) as (at_once, one_by_one):
            (logits,) = engine.step([Entry(at_once, tokens, "all")])
            assert logits is not None
            whole = logits.copy()
            single = np.stack([last(engine, one_by_one, [token]) for token in tokens])
        assert_same(engine, single, whole)

    @given(data=st.data())
    @EXAMPLES
    def test_neighbours_change_nothing(self, engine: Engine, data: st.DataObject) -> None:
        """Sequences grow side by side, each by some tokens a step, and end with the logits they have alone."""
        prompts = [ids(data.draw(st.integers(1, N_CTX)), seed) for seed in range(3)]
        logits: list[np.ndarray] = [np.empty(0)] * 3
        with opened(engine, 3) as seqs:
            while active := [i for i in range(3) if len(seqs[i]) < len(prompts[i])]:
                parts = [prompts[i][len(seqs[i]) :][: data.draw(st.integers(1, 21))] for i in active]
                results = engine.step([Entry(seqs[i], part) for i, part in zip(active, parts, strict=True)])
                for i, result in zip(active, results, strict=True):
                    assert result is not None
                    logits[i] = result[0].copy()
        for prompt, result in zip(prompts, logits, strict=True):
            assert_same(engine, result, fresh(engine, prompt))

    @given(n=st.integers(1, 90), kept=st.integers(0, 90), n_new=st.integers(1, 40), n_other=st.integers(0, 60))
    @EXAMPLES
    def test_truncating_and_extending_is_as_fresh(
        self, engine: Engine, n: int, kept: int, n_new: int, n_other: int
    ) -> None:
        """Pages given back by truncation may go to another sequence in between."""
        tokens = ids(n)
        kept = min(kept, n)
        new = ids(min(n_new, N_CTX - kept), seed=5)
        with opened(engine, 2) as (seq, neighbour):
            last(engine, seq, tokens)
            seq.truncate(kept)
            assert seq.tokens == tuple(tokens[:kept])
            if n_other:
                last(engine, neighbour, ids(n_other, seed=9))
            logits = last(engine, seq, new)
        assert_same(engine, logits, fresh(engine, tokens[:kept] + new))


class TestRoom:
    def test_slots_run_out_and_come_back(self, engine: Engine) -> None:
        with opened(engine, 3) as seqs:
            with pytest.raises(NoSlotError) as caught:
                engine.open_sequence()
            assert (str(caught.value), caught.value.n_slots) == ("all 3 sequence slots are in use", 3)
            seqs[1].close()
            seqs[1].close()
            seqs.append(engine.open_sequence())
            assert seqs[3].slot == seqs[1].slot
            with pytest.raises(NoSlotError):
                engine.open_sequence()

    def test_pages_run_out_without_a_change(self, model: GGUFFile) -> None:
        small = Engine.load(model, n_ctx=N_CTX, n_slots=3, n_pages=3, backend="numpy")
        a, b = small.open_sequence(), small.open_sequence()
        small.step([Entry(a, ids(33)), Entry(b, ids(32, 1))])
        assert small.n_pages_free == 0
        with pytest.raises(KVCacheFullError) as caught:
            small.step([Entry(a, ids(31)), Entry(b, [1, 2])])
        assert (caught.value.n_needed, caught.value.n_free) == (1, 0)
        assert str(caught.value) == "the KV cache is full: 1 pages needed, 0 free"
        assert (len(a), len(b)) == (33, 32)
        a.truncate(32)
        assert small.n_pages_free == 1
        small.step([Entry(b, [1, 2])])
        b.close()
        assert small.n_pages_free == 2

    def test_the_context_ends(self, engine: Engine) -> None:
        with opened(engine) as (seq,):
            last(engine, seq, ids(N_CTX))
            with pytest.raises(ContextLengthError, match="97 tokens do not fit the context of 96") as caught:
                engine.step([Entry(seq, [1])])
        assert (caught.value.n_prompt, caught.value.n_ctx) == (97, 96)

    def test_memory_counts_weights_and_cache(self, model: GGUFFile) -> None:
        def memory(kv_cache_type: str, n_pages: int) -> int:
            return Engine.load(
                model, n_ctx=N_CTX, n_pages=n_pages, kv_cache_type=kv_cache_type, backend="numpy"
            ).memory_bytes

        hp = build(model).hparams
        page_bytes = sum(2 * 2 * 32 * hp.n_kv(layer) for layer in range(hp.n_layer))
        assert memory("f16", 8) - memory("f16", 7) == page_bytes
        assert memory("f32", 8) - memory("f16", 8) == 8 * page_bytes


class TestRefusals:
    @pytest.mark.parametrize(
        ("tokens", "text"), [([], "expected 1..64 tokens, got 0"), ([1] * 65, "expected 1..64 tokens, got 65")]
    )
    def test_the_number_of_rows(self, engine: Engine, tokens: list[int], text: str) -> None:
        with opened(engine) as (seq,), pytest.raises(ValueError, match=text):
            engine.step([Entry(seq, tokens)])

    def test_an_empty_entry_beside_others(self, engine: Engine) -> None:
        with opened(engine, 2) as (a, b):
            with pytest.raises(ValueError, match="expected at least one token an entry"):
                engine.step([Entry(a, [1]), Entry(b, [])])
            with pytest.raises(ValueError, match="expected each sequence once"):
                engine.step([Entry(a, [1]), Entry(a, [2])])

    @pytest.mark.parametrize("token", [-1, 10**6])
    def test_ids_that_the_model_does_not_have(self, engine: Engine, token: int) -> None:
        with opened(engine) as (seq,):
            with pytest.raises(RequestError, match=f"token id: expected 0..{engine.n_vocab - 1}, got {token}"):
                engine.step([Entry(seq, [1, token, 2])])
            assert len(seq) == 0

    def test_closed_sequences(self, engine: Engine) -> None:
        seq = engine.open_sequence()
        seq.close()
        assert not seq.is_open
        with pytest.raises(ValueError, match="the sequence is closed"):
            engine.step([Entry(seq, [1])])
        with pytest.raises(ValueError, match="the sequence is closed"):
            seq.truncate(0)

    @pytest.mark.parametrize("n", [-1, 3])
    def test_truncating_to_what_is_not_there(self, engine: Engine, n: int) -> None:
        with opened(engine) as (seq,):
            engine.step([Entry(seq, [1, 2])])
            with pytest.raises(ValueError, match=f"truncate: expected 0..2 tokens, got {n}"):
                seq.truncate(n)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"n_ctx": 0}, "n_ctx: expected at least 1, got 0"),
            ({"n_batch": 0}, "n_batch: expected at least 1, got 0"),
            ({"n_slots": -1}, "n_slots: expected at least 1, got -1"),
            ({"n_pages": 0}, "n_pages: expected at least 1, got 0"),
            ({"kv_cache_type": "q3"}, "KV cache type: expected f32 or f16 or q8_0 or q4_0, got 'q3'"),
            ({"backend": "abacus"}, "backend: expected"),
        ],
    )
    def test_options_out_of_range(self, model: GGUFFile, change: dict[str, int], text: str) -> None:
        with pytest.raises(OptionError, match=text):
            Engine.load(model, **{"n_ctx": 32, "backend": "numpy", **change})  # type: ignore[arg-type]


def test_a_failed_step_changes_no_sequence(model: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: NumpyBackend, step: StepInputs) -> np.ndarray:
        raise KernelError("broken")

    engine = Engine.load(model, n_ctx=N_CTX, kv_cache_type="f32", backend="numpy")
    with opened(engine) as (seq,):
        engine.step([Entry(seq, ids(20))])
        n_free = engine.n_pages_free
        with monkeypatch.context() as patch:
            patch.setattr(NumpyBackend, "run", fail)
            with pytest.raises(KernelError, match="broken"):
                engine.step([Entry(seq, ids(60))])
        assert (len(seq), engine.n_pages_free) == (20, n_free)
        logits = last(engine, seq, ids(60, seed=1))
    assert_same(engine, logits, fresh(engine, ids(20) + ids(60, seed=1)))
    engine.close()


def test_a_context_beyond_the_one_trained_for_is_the_callers_choice(model: GGUFFile) -> None:
    engine = Engine.load(model, n_ctx=build(model).hparams.n_ctx_train + 32, n_slots=1, backend="numpy")
    assert engine.n_ctx == engine.n_ctx_train + 32
    engine.close()
