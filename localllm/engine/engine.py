"""Runs steps of many sequences over one model and one KV cache; it knows token ids, and neither text nor requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Sequence_
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kernels_cpu.adapters import MAX_PER_ROW, PLACES, targets
from kernels_cpu.compile import default_cache_dir
from kernels_cpu.graph import PAGE_POSITIONS, Adaptation, StagedRows, StepInputs
from kernels_cpu.kv_rounding import KV_ROUNDINGS
from localllm.engine.backend import Backend, BackendOptions, Progress
from localllm.engine.errors import KVCacheFullError, NoPlaceError, NoSlotError
from localllm.engine.kv_disk import DiskSettings, DiskTier
from localllm.engine.pages import PageAllocator
from localllm.engine.prefix_tree import PrefixTree
from localllm.engine.sequence import Chunk, Entry, Pool, Sequence, n_pages_for
from localllm.engine.tape_backend import TapeBackend
from localllm.errors import ContextLengthError, OptionError, RequestError
from localllm.models import ModelGraph, build
from localllm.models.lora import read_adapter

if TYPE_CHECKING:
    from localllm.gguf import GGUFFile


def _numpy_backend(options: BackendOptions) -> Backend:
    # Imported on demand: the `gguf` package behind it takes longer to import than the rest of the engine.
    from localllm.engine.numpy_backend import NumpyBackend

    return NumpyBackend(options)


BACKENDS: dict[str, Callable[[BackendOptions], Backend]] = {"numpy": _numpy_backend, "tape": TapeBackend}
"""What can compute a step, by the name that `Engine.load` takes."""


SLOTS_WITHOUT_CACHE = 128
"""Sequences of a step of a model that keeps none."""


class Engine:
    """A loaded model. Not for use by several threads at once.

    `pooling` says which rows of `step_hidden` stand for a text; if `is_bidirectional`, these rows are one a sequence,
    pooled already, and a sequence must be whole in one step.
    """

    def __init__(
        self,
        model: ModelGraph,
        backend: Backend,
        *,
        n_ctx: int,
        n_batch: int,
        n_slots: int,
        n_pages: int,
        disk: DiskTier | None = None,
    ) -> None:
        self.hparams = model.hparams
        self.pooling = model.pooling
        self.is_bidirectional = model.graph.is_bidirectional
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_slots = n_slots
        self.backend = backend
        self._targets = targets(model.graph)
        self._free_places = list(range(PLACES - 1, -1, -1))
        self._pages = PageAllocator(n_pages)
        self._disk = disk
        self._tree = PrefixTree(self._pages, disk)
        self._pool = Pool(self._pages, backend.copy_page, None if self.is_bidirectional else self._tree)
        self._private_pool = Pool(self._pages, backend.copy_page, None)
        self._page_tables = np.full((n_slots, n_pages_for(n_ctx)), -1, np.int32)
        self._free_slots = list(range(n_slots - 1, -1, -1))
        self.n_tokens_restored = 0

    @classmethod
    def load(
        cls,
        gguf: GGUFFile,
        *,
        n_ctx: int,
        n_batch: int = 512,
        n_slots: int = 4,
        n_pages: int | None = None,
        n_threads: int = 0,
        kv_cache_type: str = "f16",
        cache_dir: Path | None = None,
        model_digest: str | None = None,
        kv_disk_bytes: int = 0,
        on_progress: Progress | None = None,
        backend: str = "tape",
        beside: Engine | None = None,
    ) -> Engine:
        """Builds the model of a GGUF, which must stay open while the engine is used.

        `n_ctx` is the length of the longest sequence, `n_batch` the most rows of a step, `n_slots` how many sequences
        may be open, `n_pages` the size of the KV cache in pages of 32 positions (default: enough for all slots at full
        length), `n_threads` 0 the number of physical cores, `kv_cache_type` a key of KV_ROUNDINGS. `cache_dir` and
        `model_digest` say where a backend may keep what it derives from the weights, and where pages of the KV cache
        are kept for later, those of all models in at most `kv_disk_bytes` (0: none). `beside` is an engine whose
        threads this one uses too: it is closed after this one, and the two never step at the same time.

        A model whose rows see what comes after them takes whole sequences and has no cache: there `n_batch` is at least
        `n_ctx`, and many sequences may be open.

        Raises:
            GGUFError, UnsupportedModelError: the model cannot be built.
            OptionError: an option outside its range.
        """
        n_pages = n_slots * n_pages_for(n_ctx) if n_pages is None else n_pages
        for name, value in (("n_ctx", n_ctx), ("n_batch", n_batch), ("n_slots", n_slots), ("n_pages", n_pages)):
            if value < 1:
                raise OptionError(f"{name}: expected at least 1, got {value}")
        if kv_cache_type not in KV_ROUNDINGS:
            raise OptionError(f"KV cache type: expected {' or '.join(KV_ROUNDINGS)}, got {kv_cache_type!r}")
        if backend not in BACKENDS:
            raise OptionError(f"backend: expected {' or '.join(BACKENDS)}, got {backend!r}")
        model = build(gguf)
        if model.graph.is_bidirectional:
            n_batch = max(n_batch, n_ctx)
            n_slots, n_pages = max(n_slots, SLOTS_WITHOUT_CACHE), max(n_pages, n_batch)
        options = BackendOptions(
            graph=model.graph,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_slots=n_slots,
            n_pages=n_pages,
            n_threads=n_threads,
            kv_cache_type=kv_cache_type,
            cache_dir=cache_dir,
            model_digest=model_digest,
            on_progress=on_progress,
            beside=beside.backend if beside else None,
        )
        made = BACKENDS[backend](options)
        disk = None
        if kv_disk_bytes and model_digest and not model.graph.is_bidirectional:
            settings = DiskSettings(cache_dir or default_cache_dir(), model_digest, kv_disk_bytes)
            disk = DiskTier(settings, made, kv_cache_type, n_pages)
        return cls(model, made, n_ctx=n_ctx, n_batch=n_batch, n_slots=n_slots, n_pages=n_pages, disk=disk)

    @property
    def n_vocab(self) -> int:
        return self.hparams.n_vocab

    @property
    def n_ctx_train(self) -> int:
        return self.hparams.n_ctx_train

    @property
    def n_stages(self) -> int:
        """Stages of the model that tokens may go through in several steps."""
        return self.backend.n_stages

    @property
    def n_pages(self) -> int:
        """Pages of the KV cache."""
        return self._pages.n_pages

    @property
    def n_pages_free(self) -> int:
        """Pages that no sequence holds; some of them hold tokens for those that begin alike."""
        return self._pages.n_free + self._tree.n_idle

    @property
    def n_pages_idle(self) -> int:
        """Those of them that hold tokens."""
        return self._tree.n_idle

    @property
    def n_pages_evicted(self) -> int:
        """How often a page with known tokens was given up for another use."""
        return self._tree.n_evicted

    @property
    def memory_bytes(self) -> int:
        """Memory for weights, KV cache and workspace."""
        return self.backend.memory_bytes

    @property
    def n_pages_written(self) -> int:
        """Pages that were written to disk."""
        return self._disk.writer.n_written if self._disk else 0

    def prefetch(self, tokens: Sequence_[int], key: Hashable = ()) -> object:
        """Reads from disk what memory does not have of the beginning of `tokens`, for an `open_sequence` of them while
        what this gives is held. Any thread may call it, beside steps."""
        if self._disk is None or key is None:
            return None
        known = tokens[: len(tokens) - 1]
        return self._disk.prefetch(known, key, self._tree.n_full_pages(known, key))

    def save_prefixes(self, timeout_s: float) -> None:
        """Writes what is known and not on disk yet, for at most so long; once, at the end. Any thread may call it."""
        if self._disk:
            self._disk.save(timeout_s)

    def n_known(self, tokens: Sequence_[int], key: Hashable = ()) -> int:
        """How many of `tokens` an `open_sequence` of them would hold at this moment, if there is room for what was read
        from disk."""
        known = tokens[: len(tokens) - 1]
        n = self._tree.find(known, key)[1]
        if self._disk is None:
            return n
        n_pages = n // PAGE_POSITIONS
        return max(n, PAGE_POSITIONS * (n_pages + self._disk.n_at_hand(known, key, n_pages)))

    def open_sequence(self, tokens: Sequence_[int] = (), key: Hashable = ()) -> Sequence:
        """A sequence that holds the longest start of `tokens` that any other held under the same `key`, running or
        closed, except their last: it must be evaluated. The key stands for the adapters in force; None is for a
        sequence that shares nothing and of which nothing is kept.

        Raises:
            NoSlotError: `n_slots` sequences are open.
        """
        if not self._free_slots:
            raise NoSlotError(self.n_slots)
        slot = self._free_slots.pop()
        pool = self._private_pool if key is None else self._pool
        sequence = Sequence(slot, self._page_tables[slot], pool, self._free_slots, key)
        known = tokens[: len(tokens) - 1] if tokens else ()
        sequence.begin_like(known)
        if self._disk and key is not None:
            self._restore(sequence, known, key, self._disk)
        return sequence

    def _restore(self, sequence: Sequence, tokens: Sequence_[int], key: Hashable, disk: DiskTier) -> None:
        """Lengthen a sequence by what was read for `tokens`, as far as there is room."""
        n = len(sequence) // PAGE_POSITIONS
        for content in disk.take(tokens, key, n):
            sequence.truncate(n * PAGE_POSITIONS)  # of its last page it may have a part
            self._tree.evict(1 - self._pages.n_free)
            if self._pages.n_free == 0:
                break
            page = sequence.hold_page()
            self.backend.write_page(page, content)
            sequence.extend(list(tokens[n * PAGE_POSITIONS : (n + 1) * PAGE_POSITIONS]))
            disk.restored(sequence.last_node)
            self.n_tokens_restored += PAGE_POSITIONS
            n += 1

    def load_adapter(self, path: Path) -> tuple[int, int]:
        """Loads the LoRA adapter in a GGUF; gives its place, for entries, and the bytes it takes.

        Unlike all else, this and `drop_adapter` may be called by another thread than steps are, one at a time. The
        first call may take some seconds.

        Raises:
            AdapterError: it is no LoRA adapter, or none for this model.
            NoPlaceError: too many are loaded.
        """
        if not self._free_places:
            raise NoPlaceError(PLACES)
        matrices = read_adapter(path, self.hparams.arch, self._targets)
        place = self._free_places[-1]
        n_bytes = self.backend.put_adapter(place, matrices)
        self._free_places.pop()
        return place, n_bytes

    def drop_adapter(self, place: int) -> None:
        """Unloads an adapter, which no step that runs may name."""
        self.backend.drop_adapter(place)
        self._free_places.append(place)

    def step(self, entries: Sequence_[Entry]) -> list[npt.NDArray[np.float32] | None]:
        """Appends each entry's tokens to its sequence, at most `n_batch` in all, and gives their logits.

        One item an entry: float32 [k, n_vocab] with k = 1 for "last" and the number of tokens for "all", None for
        "none" or 0, or where the tokens are not through. The arrays are valid until the next step. A sequence may
        appear once, and only the last entry may be one that goes through some stages. If anything is raised, no
        sequence has changed, but that they may have lost their chunks.

        Raises:
            KVCacheFullError: not enough free pages; truncate or close a sequence and try again.
            ContextLengthError: a sequence would grow beyond `n_ctx`.
            RequestError: a token id that the model does not have.
            ValueError: no tokens, too many, a closed sequence or one that appears twice, or stages as they cannot be.
        """
        return self._step(entries, self.backend.run)

    def step_hidden(self, entries: Sequence_[Entry]) -> list[npt.NDArray[np.float32] | None]:
        """As `step`, with the rows that stand for texts, float32 [k, n_embd], in place of logits, and without stages.
        Raises: as step."""
        if any(_is_staged(entry) for entry in entries):
            raise ValueError("step: rows that stand for texts go through all stages at once")
        return self._step(entries, self.backend.run_hidden)

    def _step(
        self, entries: Sequence_[Entry], run: Callable[[StepInputs], npt.NDArray[np.float32]]
    ) -> list[npt.NDArray[np.float32] | None]:
        self._check(entries)
        self._make_room(entries)
        try:
            for entry in entries:
                entry.seq.hold(len(entry.tokens))
            inputs = self._inputs(entries)
            with self._disk.stepping() if self._disk else contextlib.nullcontext():
                logits = run(inputs)
        except BaseException:
            for entry in entries:
                entry.seq.give_back()
            raise
        done = entries
        if inputs.staged is not None and inputs.staged.end < self.n_stages:
            done = entries[:-1]
            chunk = Chunk([int(token) for token in entries[-1].tokens], inputs.staged.end, inputs.staged.values)
            entries[-1].seq.chunk = chunk
        for entry in done:
            entry.seq.extend([int(token) for token in entry.tokens], entry.n_draft)
        logits_of = _split(done, logits)
        return logits_of if done is entries else [*logits_of, None]

    def _make_room(self, entries: Sequence_[Entry]) -> None:
        """Have the pages that a step takes, at the cost of what only the tree uses. Raises KVCacheFullError."""
        n_needed = _n_pages_missing(entries)
        self._tree.evict(n_needed - self._pages.n_free)
        if n_needed > self._pages.n_free:
            for entry in entries:
                entry.seq.own_tail()
            n_needed = _n_pages_missing(entries)
        if n_needed > self._pages.n_free:
            raise KVCacheFullError(n_needed, self._pages.n_free)

    def close(self) -> None:
        """Gives back the backend's threads and memory; the engine must not be used afterwards."""
        if self._disk:
            self._disk.close()
        self.backend.close()

    def _check(self, entries: Sequence_[Entry]) -> None:
        n_rows = sum(len(entry.tokens) for entry in entries)
        if not 1 <= n_rows <= self.n_batch:
            raise ValueError(f"step: expected 1..{self.n_batch} tokens, got {n_rows}")
        if len({entry.seq.slot for entry in entries}) != len(entries):
            raise ValueError("step: expected each sequence once, got one twice")
        if any(_is_staged(entry) for entry in entries[:-1]):
            raise ValueError("step: expected tokens that go through some stages as the last entry, got others after it")
        for entry in entries:
            self._check_entry(entry)

    def _check_entry(self, entry: Entry) -> None:
        entry.seq.check_open()
        if len(entry.tokens) == 0:
            raise ValueError("step: expected at least one token an entry, got none")
        if not 0 <= _n_out(entry) <= len(entry.tokens):
            raise ValueError(f"step: expected logits of 0..{len(entry.tokens)} tokens, got {entry.logits}")
        n_most = entry.seq.n_draft + len(entry.tokens)
        if not 0 <= entry.n_draft <= n_most:
            raise ValueError(f"step: expected a draft of 0..{n_most} tokens, got {entry.n_draft}")
        if entry.seq.chunk and entry.seq.chunk.tokens != list(entry.tokens):
            raise ValueError("step: expected the tokens that are on their way, got others")
        n_left = self.n_stages - entry.seq.n_stages_done
        if entry.n_stages is not None and not 1 <= entry.n_stages <= n_left:
            raise ValueError(f"step: expected 1..{n_left} stages, got {entry.n_stages}")
        if self.is_bidirectional and len(entry.seq):
            raise ValueError("step: expected a whole sequence, got the rest of one")
        if len(entry.adapters) > MAX_PER_ROW:
            raise ValueError(f"step: expected at most {MAX_PER_ROW} adapters an entry, got {len(entry.adapters)}")
        n_after = len(entry.seq) + len(entry.tokens)
        if n_after > self.n_ctx:
            raise ContextLengthError(f"{n_after} tokens do not fit the context of {self.n_ctx}", n_after, self.n_ctx)
        for token in (min(entry.tokens), max(entry.tokens)):
            if not 0 <= token < self.n_vocab:
                raise RequestError(f"token id: expected 0..{self.n_vocab - 1}, got {token}")

    def _staged(self, entry: Entry, end: int) -> StagedRows | None:
        """What the last entry's rows, of which `end` is the end, go through, where that is not all."""
        if not _is_staged(entry):
            return None
        chunk, n_done = entry.seq.chunk, entry.seq.n_stages_done
        n_stages = self.n_stages - n_done if entry.n_stages is None else entry.n_stages
        values = dict(chunk.values) if chunk else {}
        return StagedRows(end - len(entry.tokens), n_done, n_done + n_stages, values)

    def _inputs(self, entries: Sequence_[Entry]) -> StepInputs:
        # Lists, and one array of each at the end: after a pass over the weights the caches are cold, and every other
        # call of NumPy costs some 30 us.
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        output_rows: list[int] = []
        adaptations: list[Adaptation] = []
        for entry in entries:
            n_before, n = len(entry.seq), len(entry.tokens)
            ids.extend(entry.tokens)
            positions.extend(range(n_before, n_before + n))
            slots.extend([entry.seq.slot] * n)
            output_rows.extend(range(len(ids) - _n_out(entry), len(ids)))
            if entry.adapters:
                first = len(ids) - n
                adaptations.extend(Adaptation(first, len(ids), place, scale) for place, scale in entry.adapters)
        staged = self._staged(entries[-1], len(ids))
        if staged and staged.end < self.n_stages:
            del output_rows[len(output_rows) - _n_out(entries[-1]) :]
        return StepInputs(
            ids=np.array(ids, np.int32),
            positions=np.array(positions, np.int32),
            slots=np.array(slots, np.int32),
            page_tables=self._page_tables,
            output_rows=np.array(output_rows, np.int32),
            adaptations=tuple(adaptations),
            staged=staged,
        )


def _is_staged(entry: Entry) -> bool:
    """Whether its tokens do not go through the whole model in this step."""
    return entry.n_stages is not None or entry.seq.chunk is not None


def _n_pages_missing(entries: Sequence_[Entry]) -> int:
    return sum(entry.seq.n_pages_missing(len(entry.tokens)) for entry in entries)


def _n_out(entry: Entry) -> int:
    if isinstance(entry.logits, int):
        return entry.logits
    return {"last": 1, "all": len(entry.tokens), "none": 0}[entry.logits]


def _split(entries: Sequence_[Entry], logits: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32] | None]:
    parts: list[npt.NDArray[np.float32] | None] = []
    end = 0
    for entry in entries:
        start, end = end, end + _n_out(entry)
        parts.append(logits[start:end] if end > start else None)
    return parts
