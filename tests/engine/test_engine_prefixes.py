"""Sequences begin with what others have computed: shared, copied before writing, given up when there is no room."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.engine import Engine, Entry, KVCacheFullError
from localllm.engine.pages import PageAllocator
from localllm.engine.prefix_tree import PrefixTree
from localllm.engine.tape_backend import TapeBackend
from localllm.gguf import open_gguf

PAGE = 32


@pytest.fixture(scope="module", params=["numpy", "tape"])
def engine(
    tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("prefixes") / "model.gguf"
    tiny_models.random_model(path)
    with open_gguf(path) as file:
        engine = Engine.load(file, n_ctx=160, n_batch=160, n_slots=4, n_pages=16, n_threads=2, backend=request.param)
        yield engine
        engine.close()


@pytest.fixture(autouse=True)
def _nothing_is_lost(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        assert engine.n_pages_free == engine.n_pages


def ids(n: int, seed: int) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 256, n)]


def are_same(engine: Engine, a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit; NumPy's own products depend on the number of rows."""
    return np.array_equal(a, b) if isinstance(engine.backend, TapeBackend) else np.allclose(a, b, atol=1e-4)


def answer(engine: Engine, tokens: list[int], key: str, n_known: int) -> np.ndarray:
    """The logits behind tokens, of which so many must be known; the sequence is closed."""
    seq = engine.open_sequence(tokens, key)
    assert len(seq) == n_known
    (logits,) = engine.step([Entry(seq, tokens[len(seq) :])])
    assert logits is not None
    found = logits[-1].copy()
    seq.close()
    return found


@pytest.mark.parametrize("n_common", [1, 31, 32, 33, 64, 79])
def test_logits_are_those_of_a_sequence_of_its_own(engine: Engine, n_common: int) -> None:
    key = f"common {n_common}"
    start = ids(n_common, 1)
    first, second = [start + ids(80 - n_common, seed) for seed in (2, 3)]
    alone = answer(engine, second, f"{key} alone", 0)
    answer(engine, first, key, 0)
    assert are_same(engine, answer(engine, second, key, n_common), alone)
    assert are_same(engine, answer(engine, second, key, 79), alone)  # the last token is evaluated always
    assert len(_known(engine, first, key)) == 79


def _known(engine: Engine, tokens: list[int], key: str) -> tuple[int, ...]:
    seq = engine.open_sequence(tokens, key)
    known = seq.tokens
    seq.close()
    return known


def test_running_sequences_share_full_pages(engine: Engine) -> None:
    tokens = ids(100, 4)
    a = engine.open_sequence()
    engine.step([Entry(a, tokens)])
    n_free = engine.n_pages_free
    b = engine.open_sequence([*tokens[:96], 1, 2])
    assert b.tokens == tuple(tokens[:96])
    assert engine.n_pages_free == n_free
    alone, beside = engine.step([Entry(a, [7]), Entry(b, [*tokens[96:], 7])])
    assert alone is not None and beside is not None
    assert are_same(engine, alone[-1], beside[-1])
    a.close()
    b.close()


def test_pages_of_the_same_tokens_become_one(engine: Engine) -> None:
    tokens = ids(64, 5)
    a, b = engine.open_sequence(), engine.open_sequence()
    before = engine.n_pages_free
    engine.step([Entry(a, tokens), Entry(b, tokens)])
    assert before - engine.n_pages_free == 2
    a.close()
    b.close()


def test_what_is_shared_is_copied_before_it_is_written_to(engine: Engine) -> None:
    tokens = ids(50, 6)
    first = answer(engine, tokens, "copied", 0)
    a, b = (engine.open_sequence([*tokens, seed], "copied") for seed in (1, 2))
    assert len(a) == len(b) == 50
    one, other = engine.step([Entry(a, [1]), Entry(b, [2])])
    assert one is not None and other is not None
    assert not are_same(engine, one[-1], other[-1])
    a.close()
    b.close()
    assert are_same(engine, answer(engine, tokens, "copied", 49), first)


def test_a_truncated_sequence_writes_to_nobody_elses_pages(engine: Engine) -> None:
    tokens = ids(96, 7)
    first = answer(engine, tokens, "truncated", 0)
    seq = engine.open_sequence(tokens, "truncated")
    seq.truncate(40)
    engine.step([Entry(seq, ids(56, 8))])
    seq.close()
    assert are_same(engine, answer(engine, tokens, "truncated", 95), first)


def test_keys_keep_sequences_apart(engine: Engine) -> None:
    tokens = ids(40, 9)
    answer(engine, tokens, "one adapter", 0)
    answer(engine, tokens, "another", 0)


def test_pages_used_longest_ago_give_way(engine: Engine) -> None:
    prompts = [ids(160, seed) for seed in range(20, 24)]  # five pages each, of sixteen
    for i, prompt in enumerate(prompts[:3]):
        answer(engine, prompt, f"old {i}", 0)
    answer(engine, prompts[0], "old 0", 159)
    n_evicted = engine.n_pages_evicted
    answer(engine, prompts[3], "old 3", 0)
    assert engine.n_pages_evicted > n_evicted
    assert len(_known(engine, prompts[0], "old 0")) == 159
    assert len(_known(engine, prompts[1], "old 1")) < 159


def test_pages_in_use_do_not_give_way(engine: Engine) -> None:
    seqs = [engine.open_sequence((), f"held {i}") for i in range(4)]
    for i, seq in enumerate(seqs[:3]):
        engine.step([Entry(seq, ids(160, 30 + i))])
    with pytest.raises(KVCacheFullError):
        engine.step([Entry(seqs[3], ids(33, 40))])
    engine.step([Entry(seqs[3], ids(32, 41))])
    for seq in seqs:
        seq.close()


@pytest.mark.parametrize("n_kept", [149, 70])
def test_where_there_is_no_room_for_a_copy_the_known_page_is_written_to(engine: Engine, n_kept: int) -> None:
    tokens, others = ids(160, 50), [engine.open_sequence((), f"other {i}") for i in range(3)]
    whole = answer(engine, tokens, f"alone {n_kept}", 0)
    answer(engine, tokens[:150], f"full {n_kept}", 0)
    for i, (other, n) in enumerate(zip(others, (160, 160, 32), strict=True)):
        engine.step([Entry(other, ids(n, 51 + i))])  # all pages but five
    seq = engine.open_sequence(tokens[:150], f"full {n_kept}")
    assert len(seq) == 149 and engine.n_pages_free == 0
    seq.truncate(n_kept)
    (logits,) = engine.step([Entry(seq, tokens[n_kept:])])
    assert logits is not None and are_same(engine, logits[-1], whole)
    seq.close()
    assert are_same(engine, answer(engine, tokens, f"full {n_kept}", 159), whole)
    for other in others:
        other.close()


SOME = st.lists(st.integers(0, 2), max_size=100)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(SOME, st.sampled_from("ab")), max_size=12), SOME, st.sampled_from("ab"), st.integers(0, 8))
def test_the_longest_known_start_is_found(
    kept: list[tuple[list[int], str]], wanted: list[int], key: str, n_evicted: int
) -> None:
    pages = PageAllocator(64)
    tree = PrefixTree(pages)
    for tokens, its in kept:
        node = tree.root(its)
        for i in range(0, len(tokens), PAGE):
            (page,) = pages.take(1)
            added = tree.add(node, tuple(tokens[i : i + PAGE]), page)
            pages.release(page)
            if added is None:
                break
            node = added
    assert tree.n_idle == 64 - pages.n_free
    nodes, n = tree.find(wanted, key)
    starts = [tokens for tokens, its in kept if its == key]
    assert n == max((_common(tokens, wanted) for tokens in starts), default=0)
    assert [token for node in nodes for token in node.tokens][:n] == wanted[:n]
    freed = tree.evict(n_evicted)
    assert freed == min(n_evicted, tree.n_idle + freed)
    tree.evict(64)
    assert (tree.n_idle, pages.n_free) == (0, 64)


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
