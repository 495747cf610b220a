"""Tokens that go through a model in several steps come out as those that go through at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu.ops import OWN_ROWS
from localllm.engine import Engine, Entry, KVCacheFullError
from localllm.engine.sequence import Sequence
from localllm.gguf import open_gguf

MODELS = ("llama-dense.q8_0", "gemma3-dense.q8_0", "qwen3-dense")
"""Other values cross between layers with norms before and around what they compute; the last has no quantised ones."""
N_LAYERS = 5
SIZES: dict[str, Any] = {"n_ctx": 96, "n_batch": 48, "n_threads": 2}


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, parity_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = parity_models.make(request.param, tmp_path_factory.mktemp("stages") / "model.gguf", n_layers=N_LAYERS)
    return made


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with open_gguf(path) as gguf:
        engine = Engine.load(gguf, n_slots=6, **SIZES)
        yield engine
        assert engine.n_pages_free == engine.n_pages
        engine.close()


@pytest.fixture(scope="module")
def adapters(engine: Engine, path: Path, lora_files: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What an entry may have in force."""
    folder = tmp_path_factory.mktemp("loaded")
    recipes = (lora_files.FIRST, lora_files.SECOND)
    first, second = (engine.load_adapter(lora_files.adapter_for(path, folder / r.name, r))[0] for r in recipes)
    return [(), ((first, 1.0),), ((second, 0.5), (first, -0.5))]


def ids(n: int, seed: int = 0) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 128, n)]


@contextmanager
def opened(engine: Engine, n: int, key: Any = None) -> Iterator[list[Sequence]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(engine.open_sequence(key=key))) for _ in range(n)]


def at_once(engine: Engine, tokens: list[int], adapters: Any = ()) -> np.ndarray:
    """The logits after each token."""
    with opened(engine, 1) as (seq,):
        (logits,) = engine.step([Entry(seq, tokens, "all", adapters)])
        assert logits is not None
        return logits.copy()


def go(engine: Engine, seq: Sequence, tokens: list[int], n_stages: int, *others: Entry, adapters: Any = ()) -> Any:
    """One step; gives the logits of the others, and of all the tokens or None."""
    n = min(n_stages, engine.n_stages - seq.n_stages_done)
    results = engine.step([*others, Entry(seq, tokens, "all", adapters, n_stages=n)])
    return [None if logits is None else logits.copy() for logits in results]


def test_a_stage_is_a_layer(engine: Engine) -> None:
    assert engine.n_stages == N_LAYERS


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_bits_whatever_runs_beside(engine: Engine, adapters: list[Any], data: st.DataObject) -> None:
    """Steps of few rows lay values out otherwise than steps of many: all changes between these occur."""
    any_adapters = st.sampled_from(adapters) if data.draw(st.booleans(), "with adapters") else st.just(())
    texts = [ids(40, 1 + i) for i in range(data.draw(st.integers(0, OWN_ROWS), "others"))]
    forces = [data.draw(any_adapters) for _ in texts]
    tokens, force = ids(40), data.draw(any_adapters)
    expected = at_once(engine, tokens, force)
    theirs = [at_once(engine, text, its) for text, its in zip(texts, forces, strict=True)]
    with opened(engine, len(texts) + 1) as (seq, *seqs):
        while len(seq) < len(tokens):
            n_rows = data.draw(st.integers(1, min(20, len(tokens) - len(seq))), "rows")
            chunk = tokens[len(seq) : len(seq) + n_rows]
            logits = None
            while logits is None:
                beside = [
                    Entry(other, text[len(other) : len(other) + data.draw(st.integers(1, 2))], "all", its)
                    for other, text, its in zip(seqs, texts, forces, strict=True)
                    if len(other) < 39
                ]
                before = [len(entry.seq) for entry in beside]
                n_stages = data.draw(st.integers(1, engine.n_stages), "stages")
                *others, logits = go(engine, seq, chunk, n_stages, *beside, adapters=force)
                for entry, n, rows in zip(beside, before, others, strict=True):
                    np.testing.assert_array_equal(rows, theirs[seqs.index(entry.seq)][n : n + len(rows)])
            np.testing.assert_array_equal(logits, expected[len(seq) - n_rows : len(seq)])


def test_several_wait_between_stages(engine: Engine) -> None:
    texts = [ids(12, seed) for seed in range(3)]
    expected = [at_once(engine, text) for text in texts]
    with opened(engine, 3) as seqs:
        for seq, text in zip(seqs, texts, strict=True):
            assert go(engine, seq, text, 1) == [None]
        for seq, text, wanted in zip(seqs, texts, expected, strict=True):
            assert (seq.n_chunk, seq.n_stages_done, len(seq)) == (12, 1, 0)
            np.testing.assert_array_equal(go(engine, seq, text, engine.n_stages)[0], wanted)
            assert (seq.n_chunk, seq.n_stages_done, len(seq)) == (0, 0, 12)


def test_without_a_number_they_go_through_all_that_are_left(engine: Engine) -> None:
    tokens = ids(12)
    expected = at_once(engine, tokens)
    with opened(engine, 2) as (seq, other):
        go(engine, seq, tokens, 1)
        _, logits = engine.step([Entry(other, ids(3, 1)), Entry(seq, tokens)])
        assert logits is not None and len(logits) == 1
        np.testing.assert_array_equal(logits[0], expected[-1])


def test_a_chunk_is_lost_where_the_sequence_is_truncated(engine: Engine) -> None:
    expected = at_once(engine, ids(30)[:20] + ids(10, 2))
    with opened(engine, 1) as (seq,):
        engine.step([Entry(seq, ids(30))])
        n_free = engine.n_pages_free
        go(engine, seq, ids(40, 1), 1)
        assert engine.n_pages_free == n_free - 2, "the pages of what is on its way are held"
        seq.truncate(20)
        assert (engine.n_pages_free, seq.n_chunk) == (n_free, 0)
        (logits,) = engine.step([Entry(seq, ids(10, 2))])
        assert logits is not None
        np.testing.assert_array_equal(logits[0], expected[-1])
        go(engine, seq, ids(40, 1), 1)
    assert engine.n_pages_free == engine.n_pages, "closed, it holds none"


def test_others_find_nothing_of_it_before_it_is_through(engine: Engine) -> None:
    tokens = ids(40, 7)
    with opened(engine, 1, ()) as (seq,):
        go(engine, seq, tokens, 1)
        with closing(engine.open_sequence(tokens)) as other:
            assert len(other) == 0
        go(engine, seq, tokens, engine.n_stages)
        with closing(engine.open_sequence(tokens)) as other:
            assert len(other) == 32


def test_a_step_that_does_not_fit_leaves_it_where_it_is(path: Path) -> None:
    tokens = ids(12)
    with open_gguf(path) as gguf:
        engine = Engine.load(gguf, n_slots=2, n_pages=2, **SIZES)
        expected = at_once(engine, tokens)
        with opened(engine, 2) as (seq, other):
            go(engine, seq, tokens, 1)
            with pytest.raises(KVCacheFullError):
                engine.step([Entry(other, ids(33))])
            with pytest.raises(KVCacheFullError):
                go(engine, seq, tokens, 1, Entry(other, ids(33)))
            assert (seq.n_chunk, seq.n_stages_done) == (12, 1)
            np.testing.assert_array_equal(go(engine, seq, tokens, engine.n_stages)[0], expected)
        engine.close()


def test_a_step_that_fails_loses_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = ids(12)
    expected = at_once(engine, tokens)
    with opened(engine, 1) as (seq,):
        go(engine, seq, tokens, 1)
        with monkeypatch.context() as patch:
            patch.setattr(engine.backend, "run", lambda step: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                go(engine, seq, tokens, 1)
        assert seq.n_chunk == 0 and len(seq) == 0
        np.testing.assert_array_equal(go(engine, seq, tokens, engine.n_stages)[0], expected)


def test_what_cannot_be(engine: Engine) -> None:
    tokens = ids(12)
    with opened(engine, 2) as (seq, other):
        for n_stages in (0, -1, engine.n_stages + 1):
            with pytest.raises(ValueError, match=rf"expected 1..{engine.n_stages} stages, got {n_stages}"):
                engine.step([Entry(seq, tokens, n_stages=n_stages)])
        go(engine, seq, tokens, 1)
        with pytest.raises(ValueError, match="expected the tokens that are on their way"):
            engine.step([Entry(seq, tokens[:-1])])
        with pytest.raises(ValueError, match=rf"expected 1..{engine.n_stages - 1} stages"):
            engine.step([Entry(seq, tokens, n_stages=engine.n_stages)])
        with pytest.raises(ValueError, match="as the last entry"):
            engine.step([Entry(seq, tokens), Entry(other, tokens)])
        with pytest.raises(ValueError, match="all stages at once"):
            engine.step_hidden([Entry(seq, tokens)])
        assert seq.n_chunk == 12
