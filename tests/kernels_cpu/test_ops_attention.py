"""The KV cache's layout and attention over it: against the twin, and bit for bit against itself in other batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu import twin
from kernels_cpu.kv_rounding import KV_ROUNDINGS, quantised, rotated
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
    kv_type: str = "f16"
    pages: np.ndarray = field(init=False)
    tables: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        max_pages = self.n_ctx // PAGE
        self.layout = kv.KVLayout(self.kv_type, self.n_head_kv, self.head_dim)
        self.page_bytes = self.layout.page_bytes + 64
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
        start, scratch, layout = self.memory.ctypes.data, self.scratch, self.layout
        threads = start + scratch.threads_offset
        where = (p, s, self.tables, self.tables.shape[1])
        sizes = (layout.key_bytes, layout.value_bytes, layout.key_rotation, layout.value_rotation)
        cache = (self.pages, self.page_bytes)
        write = (
            *(count, k, k.strides[0], v, v.strides[0], *cache, self.n_head_kv, self.head_dim, *where, *sizes),
            *(threads + attention.JOB_BYTES, scratch.thread_bytes),
        )
        attend = (
            *(count, q, q.strides[0], out, out.strides[0], *cache),
            *(self.n_head, self.n_head_kv, self.head_dim, *where, float(self.head_dim**-0.5)),
            *(self.window, float(self.softcap), start, threads, scratch.thread_bytes),
            *(start + scratch.partials_offset, scratch.n_segments, *sizes),
            attention.ATTENTION_TILE[self.kv_type].address(),
        )
        calls = [(kv.KV_WRITE[self.kv_type], *write), (attention.attention, *attend)]
        run_tape(calls, n_threads)
        assert not out[:, self.n_head * self.head_dim :].any()
        return out[:n, : self.n_head * self.head_dim].copy()

    def expected(self, qkv: Any, positions: Any, history: Any = None) -> np.ndarray:
        """The twin's result of one sequence, with keys and values as the type keeps them; history comes before qkv."""
        q, k, v = qkv
        if history is not None:
            k, v = np.concatenate([history[1], k]), np.concatenate([history[2], v])
        rounding = KV_ROUNDINGS[self.kv_type]
        k, v = rounding.keys(k, self.head_dim), rounding.values(v, self.head_dim)
        q = self.queries(q)
        args = (self.n_head, self.n_head_kv, self.head_dim, float(self.head_dim**-0.5), self.window, self.softcap)
        return twin.twin_attention(q, k, v, np.asarray(positions), *args)

    def queries(self, q: np.ndarray) -> np.ndarray:
        """Queries as integers of 16 bits with a scale for each head, where the type takes them so."""
        if self.kv_type in ("f32", "f16"):
            return q
        heads = rotated(q.reshape(-1, self.head_dim), self.layout.key_rotation)
        d = np.abs(heads).max(axis=1, keepdims=True) / np.float32(32767)
        return rotated(np.rint(heads / d) * d, self.layout.key_rotation).reshape(q.shape)

    def kept(self, slot: int, position: int, head: int) -> tuple[Any, ...]:
        """What the page holds of a head at a position: (key, value), or (key codes, scales, value codes, scales)."""
        page = self.pages[self.tables[slot, position // PAGE]][: self.layout.page_bytes]
        keys = page[head * self.layout.key_bytes :][: self.layout.key_bytes]
        first = self.n_head_kv * self.layout.key_bytes + head * self.layout.value_bytes
        values = page[first : first + self.layout.value_bytes]
        read = {"f32": self._floats, "f16": self._floats, "q8_0": self._bytes, "q4_0": self._nibbles}[self.kv_type]
        return read(keys, values, position % PAGE)

    def _floats(self, keys: np.ndarray, values: np.ndarray, p: int) -> tuple[Any, ...]:
        dtype = {"f32": np.float32, "f16": np.float16}[self.kv_type]
        v, width = values.view(dtype), -(-self.head_dim // 16) * 16
        groups = [v[PAGE * c : PAGE * min(c + 32, width)].reshape(PAGE, -1)[p] for c in range(0, width, 32)]
        whole = np.concatenate(groups)
        assert not whole[self.head_dim :].any()
        return keys.view(dtype).reshape(self.head_dim, PAGE)[:, p], whole[: self.head_dim]

    def _bytes(self, keys: np.ndarray, values: np.ndarray, p: int) -> tuple[Any, ...]:
        n = -(-self.head_dim // 32)
        k = keys[64 * n :].reshape(n, 8, PAGE, 4)[:, :, p].reshape(n, 32).astype(int) - 128
        v = values[64 * n :].view(np.int8).reshape(n, PAGE, 32)[:, p]
        return k, self._scales(keys, p), v, self._scales(values, p)

    def _nibbles(self, keys: np.ndarray, values: np.ndarray, p: int) -> tuple[Any, ...]:
        n = -(-self.head_dim // 32)
        k = keys[64 * n :].reshape(n, 4, PAGE, 4)[:, :, p]
        v = values[64 * n :].reshape(n, PAGE, 16)[:, p]
        key_codes = np.stack([k & 15, k >> 4], axis=2).reshape(n, 32).astype(int) - 8
        value_codes = (np.stack([v & 15, v >> 4], axis=1).reshape(n, 32).astype(int) + 8) % 16 - 8
        return key_codes, self._scales(keys, p), value_codes, self._scales(values, p)

    def _scales(self, part: np.ndarray, p: int) -> np.ndarray:
        n = -(-self.head_dim // 32)
        return part[: 64 * n].view(np.float16).reshape(n, PAGE)[:, p].astype(np.float32)


TYPES = ["f32", "f16", "q8_0", "q4_0"]
SHAPES = [(9, 3, 64), (4, 1, 256), (2, 2, 32), (5, 1, 20), (3, 3, 7), (16, 2, 80), (4, 2, 96), (2, 1, 128)]
types = pytest.mark.parametrize("kv_type", TYPES)
shapes = pytest.mark.parametrize(("n_head", "n_head_kv", "head_dim"), SHAPES)


def tolerance(kv_type: str) -> float:
    """A query's value on the edge between two integers may round the other way."""
    return 2e-5 if kv_type in ("f32", "f16") else 2e-4


@pytest.mark.parametrize("n_threads", [1, 3])
@types
@shapes
def test_what_a_page_holds(
    run_tape: Any, padded: Any, n_threads: int, kv_type: str, n_head: int, n_head_kv: int, head_dim: int
) -> None:
    cache = Cache(n_head, n_head_kv, head_dim, n_slots=2, n_ctx=128, kv_type=kv_type)
    q, k, v = cache.rows(6)
    scales = np.geomspace(1e-9, 1e5, k.size, dtype=np.float32).reshape(k.shape)  # denormals to overflow
    k, v = k * scales, v * scales
    v[3] = 0.0
    positions, slots = [0, 15, 16, 31, 32, 127], [0, 0, 1, 1, 1, 0]
    cache.step(run_tape, padded, (q, k, v), positions, slots, n_threads)
    for i, (p, s) in enumerate(zip(positions, slots, strict=True)):
        for head in range(n_head_kv):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            for got, want in zip(
                cache.kept(s, p, head), expected_in_page(cache, k[i, columns], v[i, columns]), strict=True
            ):
                assert np.array_equal(got, want), (p, head)


def expected_in_page(cache: Cache, k: np.ndarray, v: np.ndarray) -> tuple[Any, ...]:
    if cache.kv_type in ("f32", "f16"):
        with np.errstate(over="ignore"):
            return tuple(x.astype({"f32": np.float32, "f16": np.float16}[cache.kv_type]) for x in (k, v))
    bits, layout = KV_ROUNDINGS[cache.kv_type].bits, cache.layout
    turned = rotated(k[None], layout.key_rotation), rotated(v[None], layout.value_rotation)
    return tuple(part[0] for x in turned for part in quantised(x, bits))


@pytest.mark.parametrize("n", [7, 300])
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"window": 260, "softcap": 3.0}], ids=str)
@types
@shapes
def test_attention_of_a_prompt(
    run_tape: Any, padded: Any, n: int, options: Any, kv_type: str, n_head: int, n_head_kv: int, head_dim: int
) -> None:
    cache = Cache(n_head, n_head_kv, head_dim, kv_type=kv_type, **options)
    qkv = cache.rows(n, spread=3.0)
    got = cache.step(run_tape, padded, qkv, range(n), n_threads=2, more=1)
    np.testing.assert_allclose(got, cache.expected(qkv, range(n)), atol=tolerance(kv_type))


@pytest.mark.parametrize("options", [{}, {"window": 300, "softcap": 20.0}], ids=str)
@types
@shapes
def test_decoding_is_prefill_bit_for_bit(
    run_tape: Any, padded: Any, options: Any, kv_type: str, n_head: int, n_head_kv: int, head_dim: int
) -> None:
    """Rows one at a time, in pairs, in one batch with another sequence, on 1 to 3 threads: the same bits."""
    n = 530
    whole, parts = (Cache(n_head, n_head_kv, head_dim, n_slots=2, kv_type=kv_type, **options) for _ in range(2))
    qkv = whole.rows(n, spread=2.0)
    expected = whole.step(run_tape, padded, qkv, range(n), n_threads=3)
    np.testing.assert_allclose(expected, whole.expected(qkv, range(n)), atol=tolerance(kv_type))
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(1, 299), max_size=8, unique=True),
    window=st.sampled_from([0, 1, 5, 33, 257]),
    shape=st.sampled_from(SHAPES),
    kv_type=st.sampled_from(TYPES),
    n_threads=st.integers(1, 3),
)
def test_any_chunking_is_the_whole(
    run_tape: Any, padded: Any, cuts: list[int], window: int, shape: Any, kv_type: str, n_threads: int
) -> None:
    n = 300
    whole, parts = (Cache(*shape, window=window, kv_type=kv_type) for _ in range(2))
    qkv = whole.rows(n)
    expected = whole.step(run_tape, padded, qkv, range(n))
    ends = [*sorted(cuts), n]
    for first, end in zip([0, *ends], ends, strict=False):
        rows = tuple(x[first:end] for x in qkv)
        got = parts.step(run_tape, padded, rows, range(first, end), n_threads=n_threads)
        assert np.array_equal(got.view(np.int32), expected[first:end].view(np.int32)), (first, end)


@types
def test_several_sequences_decode_together(run_tape: Any, padded: Any, kv_type: str) -> None:
    """12 sequences of different lengths, all in one step (many rows) and one a step (few)."""
    lengths = [1, 2, 31, 32, 33, 64, 100, 200, 255, 256, 257, 400]
    caches = [Cache(6, 3, 48, n_slots=12, kv_type=kv_type) for _ in range(2)]
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
        np.testing.assert_allclose(alone, caches[1].expected(row, [length], history), atol=tolerance(kv_type))


@types
def test_scores_of_any_size(run_tape: Any, padded: Any, kv_type: str) -> None:
    """Softmax of scores in the tens of thousands picks the largest; a NaN stays in its row."""
    cache = Cache(4, 2, 64, kv_type=kv_type)
    qkv = cache.rows(50, spread=1e4)
    got = cache.step(run_tape, padded, qkv, range(50))
    if kv_type in ("f32", "f16"):
        np.testing.assert_allclose(got, cache.expected(qkv, range(50)), atol=2e-3)
    qkv[0][10] = np.nan
    assert np.isnan(cache.step(run_tape, padded, qkv, range(50))).any(axis=1).nonzero()[0].tolist() == [10]


@pytest.mark.parametrize("window", [0, 12])
@pytest.mark.parametrize("bad", [1e38, np.nan])
@types
def test_what_a_row_may_not_see_does_not_reach_it(
    run_tape: Any, padded: Any, kv_type: str, bad: float, window: int
) -> None:
    """Values that the type cannot hold, or that are none, reach only the rows that see them."""
    cache = Cache(3, 1, 64, kv_type=kv_type, window=window)
    q, k, v = cache.rows(60)
    v[25] = bad
    got = cache.step(run_tape, padded, (q, k, v), range(60), n_threads=2)
    seen = np.arange(60) >= 25 if window == 0 else (np.arange(60) >= 25) & (np.arange(60) < 25 + window)
    clean = v.copy()
    clean[25] = 0.0
    assert np.array_equal(got[~seen], cache.step(run_tape, padded, (q, k, clean), range(60))[~seen])
    if kv_type != "f32" or np.isnan(bad):
        assert not np.isfinite(got[seen]).all(axis=1).any()
