"""The KV cache's layout and attention over it: against the twin, and bit for bit against itself in other batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu import twin
from kernels_cpu.ops import attention, kv

PAGE = 32
MAX_THREADS = 3


@dataclass
class Cache:
    """A layer's pages in shuffled order, all bytes of them NaN until written."""

    n_head: int
    n_head_kv: int
    head_dim: int
    n_slots: int = 1
    n_ctx: int = 640
    window: int = 0
    softcap: float = 0.0
    pages: np.ndarray = field(init=False)
    tables: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        max_pages = self.n_ctx // PAGE
        self.page_bytes = kv.kv_page_bytes(self.n_head_kv, self.head_dim) + 64
        order = np.random.default_rng(5).permutation(self.n_slots * max_pages)
        self.tables = order.reshape(self.n_slots, max_pages).astype(np.int32)
        self.pages = np.full((order.size, self.page_bytes), 0xFF, np.uint8)
        self.scratch = attention.AttentionScratch(MAX_THREADS, self.n_ctx, self.n_head, self.n_head_kv, self.head_dim)
        self.memory = np.zeros(self.scratch.n_bytes // 8 + 1, np.int64)

    def rows(self, n: int, seed: int = 0, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k, v of n rows."""
        rng = np.random.default_rng(seed)
        cols = self.n_head * self.head_dim, self.n_head_kv * self.head_dim, self.n_head_kv * self.head_dim
        q, k, v = (rng.standard_normal((n, c)).astype(np.float32) for c in cols)
        return q * np.float32(spread), k, v

    def step(
        self, run_tape: Any, padded: Any, qkv: Any, positions: Any, slots: Any = None, n_threads: int = 1, more: int = 0
    ) -> np.ndarray:
        """Writes k and v, attends; gives [n, n_head * head_dim]."""
        q, k, v = (padded(x, more) for x in qkv)
        n = len(positions)
        p = np.asarray(positions, np.int32)
        s = np.zeros(n, np.int32) if slots is None else np.asarray(slots, np.int32)
        out = padded(np.zeros_like(qkv[0]))
        count = np.array([n], np.int64)
        start = self.memory.ctypes.data
        where = (p, s, self.tables, self.tables.shape[1])
        write = (kv.kv_write, count, k, k.strides[0], v, v.strides[0], self.pages, self.page_bytes, self.n_head_kv)
        attend = (
            *(count, q, q.strides[0], out, out.strides[0], self.pages, self.page_bytes),
            *(self.n_head, self.n_head_kv, self.head_dim, *where, float(self.head_dim**-0.5)),
            *(self.window, float(self.softcap), start, self.scratch.thread_bytes),
            *(start + self.scratch.partials_offset, self.scratch.n_segments, attention.attention_tile.address()),
        )
        calls = [
            (*write, self.head_dim, *where),
            (attention.attention_partial, *attend),
            (attention.attention_merge, *attend),
        ]
        run_tape(calls, n_threads)
        assert not out[:, self.n_head * self.head_dim :].any()
        return out[:n, : self.n_head * self.head_dim].copy()

    def expected(self, qkv: Any, positions: Any, history: Any = None) -> np.ndarray:
        """The twin's result of one sequence, with keys and values rounded to float16; history comes before qkv."""
        q, k, v = qkv
        if history is not None:
            k, v = np.concatenate([history[1], k]), np.concatenate([history[2], v])
        k, v = (x.astype(np.float16).astype(np.float32) for x in (k, v))
        args = (self.n_head, self.n_head_kv, self.head_dim, float(self.head_dim**-0.5), self.window, self.softcap)
        return twin.twin_attention(q, k, v, np.asarray(positions), *args)


SHAPES = [(9, 3, 64), (4, 1, 256), (2, 2, 32), (5, 1, 20), (3, 3, 7), (16, 2, 80)]
shapes = pytest.mark.parametrize(("n_head", "n_head_kv", "head_dim"), SHAPES)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@shapes
def test_kv_write_is_numpy_float16(
    run_tape: Any, padded: Any, n_threads: int, n_head: int, n_head_kv: int, head_dim: int
) -> None:
    cache = Cache(n_head, n_head_kv, head_dim, n_slots=2, n_ctx=128)
    q, k, v = cache.rows(6)
    k *= np.geomspace(1e-9, 1e5, k.size, dtype=np.float32).reshape(k.shape)  # denormals to overflow
    positions, slots = [0, 15, 16, 31, 32, 127], [0, 0, 1, 1, 1, 0]
    cache.step(run_tape, padded, (q, k, v), positions, slots, n_threads)
    hd16 = -(-head_dim // 16) * 16
    halves = cache.pages.view(np.uint16)
    with np.errstate(over="ignore"):
        expected_k, expected_v = k.astype(np.float16), v.astype(np.float16)
    for i, (p, s) in enumerate(zip(positions, slots, strict=True)):
        page = halves[cache.tables[s, p // PAGE]]
        for head in range(n_head_kv):
            keys = page[head * PAGE * head_dim :][: PAGE * head_dim].reshape(2, head_dim, 16)
            start = PAGE * (n_head_kv * head_dim + head * hd16)
            values = page[start : start + PAGE * hd16].reshape(PAGE, hd16)
            columns = slice(head * head_dim, (head + 1) * head_dim)
            assert np.array_equal(keys[p % PAGE // 16, :, p % 16], expected_k[i, columns].view(np.uint16))
            assert np.array_equal(values[p % PAGE, :head_dim], expected_v[i, columns].view(np.uint16))
            assert not values[p % PAGE, head_dim:].any()


@pytest.mark.parametrize("n", [1, 7, 40, 300])
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"window": 260}, {"softcap": 3.0}], ids=str)
@shapes
def test_attention_of_a_prompt(
    run_tape: Any, padded: Any, n: int, options: Any, n_head: int, n_head_kv: int, head_dim: int
) -> None:
    cache = Cache(n_head, n_head_kv, head_dim, **options)
    qkv = cache.rows(n, spread=3.0)
    got = cache.step(run_tape, padded, qkv, range(n), n_threads=2, more=1)
    np.testing.assert_allclose(got, cache.expected(qkv, range(n)), atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"window": 100}, {"window": 512, "softcap": 20.0}], ids=str)
@shapes
def test_decoding_is_prefill_bit_for_bit(
    run_tape: Any, padded: Any, options: Any, n_head: int, n_head_kv: int, head_dim: int
) -> None:
    """Rows one at a time, in pairs, in one batch with another sequence, on 1 to 3 threads: the same bits."""
    n = 530
    whole, parts = (Cache(n_head, n_head_kv, head_dim, n_slots=2, **options) for _ in range(2))
    qkv = whole.rows(n, spread=2.0)
    expected = whole.step(run_tape, padded, qkv, range(n), n_threads=3)
    np.testing.assert_allclose(expected, whole.expected(qkv, range(n)), atol=1e-5)
    chunks = [250, 255, 256, 257, 259, 263, 275, 276, 511, 512, 513, 522, n]
    for k, (first, end) in enumerate(zip([0, *chunks], chunks, strict=False)):
        rows = tuple(x[first:end] for x in qkv)
        got = parts.step(run_tape, padded, rows, range(first, end), n_threads=k % 3 + 1)
        assert np.array_equal(got.view(np.int32), expected[first:end].view(np.int32)), (first, end)
    twice = tuple(np.concatenate([x[:40], x[520:530], x[40:80]]) for x in qkv)
    positions, slots = [*range(40), *range(520, 530), *range(40, 80)], [1] * 40 + [0] * 10 + [1] * 40
    got = parts.step(run_tape, padded, twice, positions, slots, n_threads=2)
    assert np.array_equal(got[:40], expected[:40])
    assert np.array_equal(got[40:50], expected[520:530])
    assert np.array_equal(got[50:], expected[40:80])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(1, 299), max_size=8, unique=True),
    window=st.sampled_from([0, 1, 5, 33, 257]),
    shape=st.sampled_from(SHAPES),
    n_threads=st.integers(1, 3),
)
def test_any_chunking_is_the_whole(
    run_tape: Any, padded: Any, cuts: list[int], window: int, shape: Any, n_threads: int
) -> None:
    n = 300
    whole, parts = (Cache(*shape, window=window) for _ in range(2))
    qkv = whole.rows(n)
    expected = whole.step(run_tape, padded, qkv, range(n))
    ends = [*sorted(cuts), n]
    for first, end in zip([0, *ends], ends, strict=False):
        rows = tuple(x[first:end] for x in qkv)
        got = parts.step(run_tape, padded, rows, range(first, end), n_threads=n_threads)
        assert np.array_equal(got.view(np.int32), expected[first:end].view(np.int32)), (first, end)


def test_several_sequences_decode_together(run_tape: Any, padded: Any) -> None:
    """12 sequences of different lengths, all in one step (many rows) and one a step (few)."""
    lengths = [1, 2, 31, 32, 33, 64, 100, 200, 255, 256, 257, 400]
    caches = [Cache(6, 3, 48, n_slots=12) for _ in range(2)]
    qkv = caches[0].rows(400, seed=9)
    for slot, length in enumerate(lengths):
        for cache in caches:
            cache.step(run_tape, padded, tuple(x[:length] for x in qkv), range(length), [slot] * length)
    last = caches[0].rows(12, seed=10)
    together = caches[0].step(run_tape, padded, last, lengths, range(12), n_threads=2)
    for slot, length in enumerate(lengths):
        row = tuple(x[slot : slot + 1] for x in last)
        alone = caches[1].step(run_tape, padded, row, [length], [slot])
        assert np.array_equal(alone[0], together[slot])
        history = tuple(x[:length] for x in qkv)
        np.testing.assert_allclose(alone, caches[1].expected(row, [length], history), atol=1e-5)


def test_scores_of_any_size(run_tape: Any, padded: Any) -> None:
    """Softmax of scores in the tens of thousands picks the largest; a NaN stays in its row and the ones after it."""
    cache = Cache(4, 2, 64)
    qkv = cache.rows(50, spread=1e4)
    got = cache.step(run_tape, padded, qkv, range(50))
    np.testing.assert_allclose(got, cache.expected(qkv, range(50)), atol=2e-3)
    qkv[0][10] = np.nan
    assert np.isnan(cache.step(run_tape, padded, qkv, range(50))).any(axis=1).nonzero()[0].tolist() == [10]
