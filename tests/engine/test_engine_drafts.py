"""Drafts of tokens in a step: their logits, and that nobody else sees them before they are accepted."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.engine import Engine, Entry
from localllm.engine.prefix_tree import common_length
from localllm.gguf import open_gguf

PAGE = 32


@pytest.fixture(scope="module")
def engine(tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("drafts") / "model.gguf"
    tiny_models.random_model(path)
    with open_gguf(path) as file:
        engine = Engine.load(file, n_ctx=256, n_batch=256, n_slots=4, n_pages=40, n_threads=2)
        yield engine
        engine.close()


def ids(n: int, seed: int) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 256, n)]


def known(engine: Engine, tokens: list[int], key: object) -> int:
    seq = engine.open_sequence([*tokens, 0], key)
    n = len(seq)
    seq.close()
    return n


@settings(max_examples=40, deadline=None)
@given(
    n_before=st.integers(1, 70), n_draft=st.integers(1, 70), n_right=st.integers(0, 70), seed=st.integers(0, 2**32 - 1)
)
def test_what_is_rejected_leaves_no_trace(engine: Engine, n_before: int, n_draft: int, n_right: int, seed: int) -> None:
    n_right = min(n_right, n_draft)
    before, draft = ids(n_before, seed), ids(n_draft, seed + 1)
    key, rest = object(), ids(40, seed + 2)  # a key that no other example has
    alone = engine.open_sequence((), object())
    (rows,) = engine.step([Entry(alone, [*before, *draft], "all")])
    assert rows is not None
    expected = rows[n_before - 1 :].copy()
    alone.truncate(n_before + n_right)
    (rows,) = engine.step([Entry(alone, rest, "all")])
    assert rows is not None
    expected_rest = rows.copy()
    alone.close()

    seq = engine.open_sequence((), key)
    (rows,) = engine.step([Entry(seq, [*before, *draft], n_draft + 1, n_draft=n_draft)])
    assert rows is not None and np.array_equal(rows, expected)
    assert known(engine, [*before, *draft], key) == n_before // PAGE * PAGE
    seq.truncate(n_before + n_right)
    assert known(engine, [*before, *draft], key) == (n_before + n_right) // PAGE * PAGE
    (rows,) = engine.step([Entry(seq, rest, "all")])
    assert rows is not None and np.array_equal(rows, expected_rest)
    seq.close()
    assert known(engine, [*before, *draft[:n_right], *rest], key) == n_before + n_right + len(rest)
    assert known(engine, [*before, *draft], key) == n_before + n_right + common_length(draft[n_right:], rest)
    assert engine.n_pages_free == engine.n_pages


def test_a_draft_that_nobody_judged_goes_with_its_sequence(engine: Engine) -> None:
    before, draft = ids(30, 1), ids(50, 2)
    seq = engine.open_sequence((), "closed")
    engine.step([Entry(seq, [*before, *draft], 51, n_draft=50)])
    seq.close()
    assert known(engine, [*before, *draft], "closed") == 30


def test_a_draft_copies_the_page_that_others_use(engine: Engine) -> None:
    tokens = ids(40, 3)
    first = engine.open_sequence((), "shared")
    engine.step([Entry(first, tokens)])
    first.close()
    second, third = engine.open_sequence([*tokens, 1], "shared"), engine.open_sequence([*tokens, 1], "shared")
    assert len(second) == len(third) == 40
    engine.step([Entry(second, [1, *ids(20, 4)], 21, n_draft=20)])
    second.truncate(41)
    (rows,) = engine.step([Entry(third, [1], "last")])
    assert rows is not None
    found = rows.copy()
    alone = engine.open_sequence((), "shared alone")
    (rows,) = engine.step([Entry(alone, [*tokens, 1], "last")])
    assert rows is not None and np.array_equal(found, rows)
    for seq in (second, third, alone):
        seq.close()


@pytest.mark.parametrize("logits, n_draft", [(-1, 0), (3, 0), (1, -1), (1, 3)])
def test_what_is_no_part_of_an_entry_is_refused(engine: Engine, logits: int, n_draft: int) -> None:
    seq = engine.open_sequence((), "refused")
    with pytest.raises(ValueError, match=r"expected .* 0\.\.2 tokens, got"):
        engine.step([Entry(seq, [1, 2], logits, n_draft=n_draft)])
    assert len(seq) == 0
    seq.close()
