"""Graphs of one operation many times over random weights, run by the compiled backend; no model is needed.

It uses what every model uses, graph and backend, and knows nothing of the layout of packed weights or of a tape.
"""

from __future__ import annotations

import time

import gguf
import numpy as np
import numpy.typing as npt

from kernels_cpu.graph import PAGE_POSITIONS, Graph, StepInputs, Value, Weight
from kernels_cpu.quants.table import QuantType
from kernels_cpu.twin import dequantise
from localllm.engine.backend import BackendOptions
from localllm.engine.tape_backend import TapeBackend

N_IDS = 32
"""Rows of the embeddings that the input comes from."""

F32_TYPE = 0
POOL_BLOCKS = 1 << 14
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-3, 10.0


def random_weight(name: str, quant: QuantType, n_rows: int, n_cols: int, rng: np.random.Generator) -> Weight:
    """A matrix of random codes with scales as models have them: no NaN, nothing huge, no float too small."""
    if quant.takes_floats:
        kind = gguf.GGMLQuantizationType(quant.format.type_id)
        data = gguf.quants.quantize(rng.standard_normal((n_rows, n_cols), np.float32), kind).view(np.uint8)
    else:
        usable = _usable_blocks(quant, rng)
        data = usable[rng.integers(0, len(usable), n_rows * n_cols // quant.format.block_columns)]
    return Weight(name, quant.format.type_id, n_rows, n_cols, data.reshape(-1))


def _usable_blocks(quant: QuantType, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Of blocks of random bytes those with sensible scales, uint8 [n, block_bytes]."""
    fmt = quant.format
    pool = rng.integers(0, 256, (POOL_BLOCKS, fmt.block_bytes), np.uint8)
    with np.errstate(all="ignore"):  # most random scales are no sensible numbers
        values = dequantise(Weight("pool", fmt.type_id, POOL_BLOCKS, fmt.block_columns, pool.reshape(-1)))
        largest = np.abs(values).max(axis=1)
    return pool[(largest > SMALLEST_WEIGHT) & (largest < LARGEST_WEIGHT)]


def products(weight: Weight, copies: int, n_batch: int, n_threads: int, bits: int) -> TapeBackend:
    """A backend that adds up the products of its rows with `copies` copies of a matrix, each in memory of its own.

    With 16 bits they are products on output rows, which are the ones that take activations of 16 bits.
    """
    rng, graph = np.random.default_rng(0), Graph()
    x = _input(graph, weight.n_cols, rng)
    if bits == 16:
        x = graph.select_outputs(x)
    total: Value | None = None
    for i in range(copies):
        y = graph.linear(x, Weight(f"w{i}", weight.type_id, weight.n_rows, weight.n_cols, weight.data))
        total = y if total is None else graph.add(y, total)
    assert total is not None
    graph.output(total if bits == 16 else graph.select_outputs(total))
    return TapeBackend(_options(graph, 1, n_batch, 1, 1, n_threads, "f16"))


def product_step(n: int, bits: int) -> StepInputs:
    """`n` rows at once. They use no KV cache and so need no positions."""
    rows = np.arange(n, dtype=np.int32)
    outputs = rows if bits == 16 else rows[:1]
    return StepInputs(rows % N_IDS, np.zeros_like(rows), np.zeros_like(rows), np.zeros((1, 1), np.int32), outputs)


class CachedAttention:
    """`n_layers` layers that only attend, over caches of `n_positions` positions filled with random keys and values."""

    def __init__(
        self, n_layers: int, n_head: int, n_head_kv: int, head_dim: int, n_positions: int, n_threads: int, kv: str
    ) -> None:
        rng, graph = np.random.default_rng(0), Graph()
        q = _input(graph, n_head * head_dim, rng)
        k, v = (_input(graph, n_head_kv * head_dim, rng) for _ in range(2))
        for layer in range(n_layers):
            y = graph.attention(q, k, v, layer, n_head, n_head_kv, head_dim, head_dim**-0.5)
        graph.output(graph.select_outputs(y))
        self._n_pages = -(-n_positions // PAGE_POSITIONS)
        n_ctx = self._n_pages * PAGE_POSITIONS
        self._backend = TapeBackend(_options(graph, n_ctx, PAGE_POSITIONS, 2, self._n_pages, n_threads, kv))
        self._pages = np.full((2, self._n_pages), -1, np.int32)
        self._fill(rng)

    def time_decode(self, depth: int) -> float:
        """Seconds of one row at position `depth - 1`: it sees `depth` positions."""
        one = np.ones(1, np.int32)
        step = StepInputs(one, one * (depth - 1), one, self._pages, one * 0)
        start = time.perf_counter()
        self._backend.run(step)
        return time.perf_counter() - start

    def close(self) -> None:
        """Give back threads and memory."""
        self._backend.close()

    def _fill(self, rng: np.random.Generator) -> None:
        """Each page by a short sequence in slot 0 that has only this page; slot 1 has them all."""
        positions = np.arange(PAGE_POSITIONS, dtype=np.int32)
        for page in range(self._n_pages):
            self._pages[0, 0] = page
            ids = rng.integers(0, N_IDS, PAGE_POSITIONS).astype(np.int32)
            self._backend.run(StepInputs(ids, positions, positions * 0, self._pages, positions[:1]))
        self._pages[1] = np.arange(self._n_pages)


def _input(graph: Graph, n_cols: int, rng: np.random.Generator) -> Value:
    data: npt.NDArray[np.float32] = rng.standard_normal((N_IDS, n_cols), np.float32)
    name = f"input{len(graph.nodes)}"
    return graph.embedding(Weight(name, F32_TYPE, N_IDS, n_cols, data.view(np.uint8).reshape(-1)))


def _options(
    graph: Graph, n_ctx: int, n_batch: int, n_slots: int, n_pages: int, n_threads: int, kv: str
) -> BackendOptions:
    return BackendOptions(
        graph=graph,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_slots=n_slots,
        n_pages=n_pages,
        n_threads=n_threads,
        kv_cache_type=kv,
        cache_dir=None,
        model_digest=None,
        on_progress=None,
    )
