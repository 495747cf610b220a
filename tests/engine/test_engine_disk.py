"""Pages of the KV cache that went to disk come back bit for bit, or not at all."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.engine import Engine, Entry
from localllm.engine.kv_disk import tier as tier_module
from localllm.engine.kv_disk import writer as writer_module
from localllm.engine.kv_disk.page_file import HEAD_BYTES, checksum
from localllm.gguf import GGUFFile, open_gguf

PAGE = 32
DIGEST = "ab" * 32
Load = Callable[..., Any]


@pytest.fixture(scope="module")
def gguf(tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tmp_path_factory.mktemp("disk") / "model.gguf"
    tiny_models.random_model(path)
    with open_gguf(path) as file:
        yield file


@pytest.fixture(scope="module")
def load(gguf: GGUFFile) -> Load:
    """load(folder, …): an engine whose pages go to a folder, for a `with`; saved unless told otherwise."""

    @contextmanager
    def make(folder: Path, *, saves: bool = True, disk: int = 1 << 30, **over: Any) -> Iterator[Engine]:
        sizes = {"n_ctx": 512, "n_batch": 512, "n_slots": 4, "n_pages": 40, "n_threads": 2, "backend": "numpy"} | over
        engine = Engine.load(gguf, cache_dir=folder, model_digest=DIGEST, kv_disk_bytes=disk, **sizes)
        try:
            yield engine
            if saves:
                engine.save_prefixes(10)
        finally:
            engine.close()
        assert engine.n_pages_free == engine.n_pages

    return make


def ids(n: int, seed: int = 0) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 256, n)]


def answer(engine: Engine, tokens: list[int], key: Any = (), adapters: Any = ()) -> tuple[np.ndarray, int]:
    """The logits behind tokens, and how many of these were known."""
    held = engine.prefetch(tokens, key)
    seq = engine.open_sequence(tokens, key)
    del held
    n_known = len(seq)
    (logits,) = engine.step([Entry(seq, tokens[n_known:], adapters=adapters)])
    assert logits is not None
    found = logits[-1].copy()
    seq.close()
    return found, n_known


def files(folder: Path) -> list[Path]:
    return sorted((folder / "prefixes").glob("*/*.kv"))


@pytest.mark.parametrize("backend", ["numpy", "tape"])
@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "q4_0"])
def test_what_was_known_is_known_after_a_restart(load: Load, tmp_path: Path, kv_type: str, backend: str) -> None:
    tokens, options = ids(170), {"kv_cache_type": kv_type, "backend": backend}
    with load(tmp_path, **options) as engine:
        alone, n_known = answer(engine, tokens)
        assert n_known == 0
    assert engine.n_pages_written == len(files(tmp_path)) == 5
    with load(tmp_path, **options) as engine:
        restored, n_known = answer(engine, tokens)
        assert (n_known, engine.n_tokens_restored) == (160, 160)
        assert np.array_equal(restored, alone) if backend == "tape" else np.allclose(restored, alone, atol=1e-5)
        assert answer(engine, tokens)[1] == 169  # from memory, the last page too
    assert engine.n_pages_written == 0  # nothing is written twice
    other = {"kv_cache_type": "f16" if kv_type == "f32" else "f32", "backend": backend}
    with load(tmp_path, **other) as engine:
        assert answer(engine, tokens)[1] == 0
    with load(tmp_path, disk=0, **options) as engine:
        assert answer(engine, tokens)[1] == 0


def test_another_way_of_computing_finds_nothing(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tmp_path, backend="tape") as engine:
        answer(engine, ids(170))
    monkeypatch.setattr("localllm.engine.tape_backend.source_hash", lambda: "of another CPU path")
    with load(tmp_path, backend="tape") as engine:
        assert answer(engine, ids(170))[1] == 0


@pytest.mark.parametrize("n", [1, 95, 127, 128, 129, 160])
def test_only_full_pages_of_prefixes_that_are_worth_it(load: Load, tmp_path: Path, n: int) -> None:
    with load(tmp_path) as engine:
        answer(engine, ids(n))
    n_pages = n // PAGE if n >= tier_module.MIN_PAGES * PAGE else 0
    assert len(files(tmp_path)) == n_pages
    with load(tmp_path) as engine:
        assert answer(engine, [*ids(n), 1])[1] == n_pages * PAGE


def test_what_differs_is_computed(load: Load, tmp_path: Path) -> None:
    system = ids(140)
    first, second = [*system, *ids(60, 1)], [*system, *ids(60, 2)]
    with load(tmp_path) as engine:
        answer(engine, first)
        answer(engine, second)
    assert len(files(tmp_path)) == 4 + 2 + 2
    with load(tmp_path) as engine:
        answer(engine, system)
        assert answer(engine, first)[1] == 192  # of which memory had 140, with a part of the fifth page
        assert engine.n_tokens_restored == 128 + 64
        assert answer(engine, second)[1] == 192
        assert engine.n_pages - engine.n_pages_free == 0


def test_keys_keep_prefixes_apart(load: Load, tmp_path: Path, gguf: GGUFFile, lora_files: ModuleType) -> None:
    path = lora_files.adapter_for(gguf.paths[0], tmp_path / "adapter.gguf", lora_files.FIRST)
    tokens, key = ids(150), (("digest", 0.5),)
    with load(tmp_path) as engine:
        place, _ = engine.load_adapter(path)
        alone, _ = answer(engine, tokens, key, ((place, 0.5),))
    with load(tmp_path) as engine:
        assert answer(engine, tokens)[1] == 0
        assert answer(engine, tokens, (("digest", 0.25),))[1] == 0
        place, _ = engine.load_adapter(path)
        restored, n_known = answer(engine, tokens, key, ((place, 0.5),))
        assert n_known == 128 and np.allclose(restored, alone, atol=1e-5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3), st.integers(0, 10**9), st.sampled_from(["flip", "cut", "grow", "empty", "swap"]))
def test_damage_is_told_and_removed(
    load: Load, tmp_path_factory: pytest.TempPathFactory, which: int, place: int, how: str
) -> None:
    folder, tokens = tmp_path_factory.mktemp("damage"), ids(140)
    with load(folder) as engine:
        answer(engine, tokens)
    path = next(p for p in files(folder) if p.stem.split("-")[0] == _chain_of(files(folder), which))
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[place % len(content)] ^= 1 << place % 8
    elif how == "swap":
        other = next(p for p in files(folder) if p != path)
        content = bytearray(other.read_bytes())
    else:
        content = {"cut": content[: place % len(content)], "grow": content + b"\0", "empty": bytearray()}[how]
    path.write_bytes(content)
    with load(folder, saves=False) as engine:
        _, n_known = answer(engine, tokens)
        assert n_known == which * PAGE
        assert not path.exists()


def _chain_of(paths: list[Path], i: int) -> str:
    """The chain of the i-th page of the only prefix."""
    behind = {path.stem.split("-")[1]: path.stem.split("-")[0] for path in paths}
    chains = set(behind.values())
    chain = behind[next(before for before in behind if not any(c.startswith(before) for c in chains))]
    for _ in range(i):
        chain = behind[chain[:16]]
    return chain


def test_the_sum_tells_every_byte() -> None:
    for n in (1, 7, 8, 4095, 4096, 9001):
        content = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
        good = checksum(content)
        for i in range(0, n, 1 + n // 97):
            content[i] ^= 1 << i % 8
            assert checksum(content) != good
            content[i] ^= 1 << i % 8
        assert checksum(content) == good


def test_links_and_folders_are_nobodys_pages(load: Load, tmp_path: Path) -> None:
    with load(tmp_path) as engine:
        answer(engine, ids(140))
    for i, path in enumerate(files(tmp_path)):
        path.rename(tmp_path / f"{i}")
        path.symlink_to(tmp_path / f"{i}") if i % 2 else path.mkdir()
    with load(tmp_path) as engine:
        assert answer(engine, ids(140))[1] == 0


@pytest.mark.skipif(os.name == "nt", reason="there are no such permissions")
@pytest.mark.parametrize("umask", [0, 0o777])
def test_nobody_else_may_read_them(load: Load, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with load(tmp_path) as engine:
            answer(engine, ids(140))
    finally:
        os.umask(before)
    assert len(files(tmp_path)) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}
    folders = tmp_path / "prefixes", files(tmp_path)[0].parent
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


@pytest.mark.parametrize("trouble", ["a file in the way", "no space", "read only", "cleared"])
def test_where_nothing_can_be_written_all_else_works(
    load: Load,
    tmp_path: Path,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*args: Any) -> Any:
        raise OSError(28 if trouble == "no space" else 30, trouble)

    if trouble == "a file in the way":
        (tmp_path / "prefixes").touch()
    with load(tmp_path) as engine:
        if trouble in ("no space", "read only"):
            monkeypatch.setattr("localllm.engine.kv_disk.store.write_page", refuse)
        if trouble == "cleared":
            (folder,) = (tmp_path / "prefixes").iterdir()
            (folder / "code").unlink()
            folder.rmdir()
        for seed in range(3):
            assert answer(engine, ids(140, seed))[1] == 0
    assert files(tmp_path) == []
    assert len([r for r in caplog.records if "no longer kept" in r.getMessage()]) == 1


def test_the_size_is_bounded(load: Load, tmp_path: Path) -> None:
    with load(tmp_path) as engine:
        page = HEAD_BYTES + engine.backend.page_bytes
    for seed in range(3):
        with load(tmp_path, disk=8 * page) as engine:
            answer(engine, ids(140, seed))
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 8 * page
    with load(tmp_path, disk=8 * page, saves=False) as engine:
        assert [answer(engine, ids(140, seed))[1] > 0 for seed in range(3)] == [False, True, True]
    with load(tmp_path, disk=page - 1) as engine:
        answer(engine, ids(140, 9))
    assert engine.n_pages_written == 0


def test_a_full_disk_is_not_filled(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 0

    monkeypatch.setattr("localllm.engine.kv_disk.store.shutil.disk_usage", lambda folder: Usage)
    with load(tmp_path) as engine:
        answer(engine, ids(140))
    assert files(tmp_path) == []


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_idle_engine_writes_behind(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 0.05)
    with load(tmp_path, saves=False) as engine:
        answer(engine, ids(140))
        wait_for(lambda: engine.n_pages_written == 4)
        answer(engine, ids(140, 1))
        wait_for(lambda: engine.n_pages_written == 8)
    assert len(files(tmp_path)) == 8


def test_pages_that_give_way_are_written_while_steps_run(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 1e9)
    monkeypatch.setattr(writer_module, "REST", 1)
    with load(tmp_path, saves=False, n_pages=16) as engine:
        answer(engine, ids(300))
        assert engine.n_pages_written == 0
        wait_for(lambda: bool(engine._disk.writer._changed._waiters))  # type: ignore[union-attr, attr-defined]
        answer(engine, ids(510, 1))
        assert engine.n_pages_evicted >= 9
        wait_for(lambda: engine.n_pages_written == 9)
    with load(tmp_path) as engine:
        assert answer(engine, ids(300))[1] == 288


def test_to_ask_what_is_known_takes_nothing(load: Load, tmp_path: Path) -> None:
    """What was read for a prompt waits for it however many look whose turn is first."""
    tokens = ids(300)
    with load(tmp_path) as engine:
        assert engine.n_known(tokens) == 0
        answer(engine, tokens)
        assert engine.n_known(tokens) == 299 and engine.n_known([*tokens[:40], 1]) == 40
        assert engine.n_known(tokens, "another key") == 0
    with load(tmp_path) as engine:
        assert engine.n_known(tokens) == 0, "on disk, and not read"
        held = engine.prefetch(tokens)
        assert engine.n_known(tokens) == 288
        assert (engine.n_tokens_restored, engine.n_pages_idle) == (0, 0)
        assert answer(engine, tokens)[1] == 288
        del held


@pytest.mark.parametrize("are_written", [False, True])
def test_pages_that_just_gave_way_are_at_hand(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_written: bool
) -> None:
    """As those of a request that gave way to others, which nobody prefetches again."""
    if not are_written:
        monkeypatch.setattr(writer_module.Writer, "_wake", lambda self, is_urgent=False: None)
    with load(tmp_path, saves=False, n_pages=16, backend="tape") as engine:
        alone, _ = answer(engine, ids(300))
        answer(engine, ids(510, 1))
        if are_written:
            wait_for(lambda: engine.n_pages_written >= 9)  # and those of the second once the engine counts as idle
        wait_for(lambda: engine.n_known(ids(300)) == 288)
        seq = engine.open_sequence(ids(300))
        assert (len(seq), engine.n_tokens_restored) == (288, 288)
        (logits,) = engine.step([Entry(seq, ids(300)[288:])])
        assert logits is not None and np.array_equal(logits[-1], alone)
        seq.close()


def test_of_too_many_that_give_way_those_that_others_begin_with_stay(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_RESCUED_BYTES", 0)  # which leaves room for 8
    monkeypatch.setattr(writer_module.Writer, "_wake", lambda self, is_urgent=False: None)
    with load(tmp_path, n_pages=16) as engine:
        answer(engine, ids(500))
        answer(engine, ids(510, 1))
    with load(tmp_path) as engine:
        assert answer(engine, ids(500))[1] == 8 * PAGE
        assert answer(engine, ids(510, 1))[1] == 15 * PAGE


def test_the_end_has_a_time_and_the_newest_goes_first(load: Load, tmp_path: Path) -> None:
    with load(tmp_path, saves=False) as engine:
        for seed in range(3):
            answer(engine, ids(170, seed))
        engine.save_prefixes(0)
        assert engine.n_pages_written == 0
    with load(tmp_path, saves=False) as engine:
        for seed in range(3):
            answer(engine, ids(170, seed))
        write, store = engine._disk._store.write, engine._disk._store  # type: ignore[union-attr]
        store.write = lambda page, content: (time.sleep(0.05), write(page, content))[1]  # type: ignore
        engine.save_prefixes(0.2)
        assert 3 <= engine.n_pages_written <= 6
    with load(tmp_path, saves=False) as engine:
        assert answer(engine, ids(170, 2))[1] >= 3 * PAGE
        assert answer(engine, ids(170, 0))[1] == 0


def test_what_was_read_waits_for_who_holds_it(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tmp_path) as engine:
        for seed in range(2):
            answer(engine, ids(140, seed))
    with load(tmp_path) as engine:
        waiting = engine._disk._read  # type: ignore[union-attr]
        held = [engine.prefetch(ids(140)), engine.prefetch(ids(140))]
        assert len(waiting) == 4
        held.pop()
        assert len(waiting) == 4
        held.clear()  # as a request that was canceled
        assert len(waiting) == 0 and len(engine.open_sequence(ids(140))) == 0
    with load(tmp_path) as engine:
        held = [engine.prefetch(ids(140))]
        answer(engine, ids(140))
        assert len(engine._disk._read) == 0  # type: ignore[union-attr]  # though somebody holds it still
        assert engine.prefetch(ids(140)) == []
    monkeypatch.setattr(tier_module, "MAX_READ_BYTES", 6 * engine.backend.page_bytes)
    with load(tmp_path) as engine:
        held = [engine.prefetch(ids(140, seed)) for seed in range(2)]
        assert [len(pages) for pages in held] in ([4, 2], [4, 3])  # type: ignore[arg-type]  # two threads may be at it


def test_processes_share_what_they_write(load: Load, tmp_path: Path) -> None:
    with load(tmp_path, saves=False) as one, load(tmp_path, saves=False) as other:
        for engine in (one, other):
            answer(engine, ids(140))
        answer(one, ids(200, 1))
        one.save_prefixes(10)
        other.save_prefixes(10)
        assert (one.n_pages_written, other.n_pages_written) == (4 + 6, 0)
        assert answer(other, ids(200, 1))[1] == 192


def test_without_memory_nothing_is_copied(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(page: int) -> Any:
        raise MemoryError

    with load(tmp_path, n_pages=16) as engine:
        monkeypatch.setattr(engine.backend, "read_page", refuse)
        for seed in range(3):
            assert answer(engine, ids(400, seed))[1] == 0
    assert files(tmp_path) == []


def test_as_many_come_back_as_there_is_room_for(load: Load, tmp_path: Path) -> None:
    with load(tmp_path) as engine:
        answer(engine, ids(500))
    with load(tmp_path, saves=False, n_pages=16) as engine:
        other = engine.open_sequence()
        engine.step([Entry(other, ids(300, 1))])
        held = engine.prefetch(ids(500))
        seq = engine.open_sequence(ids(500))
        assert held is not None and len(seq) == 6 * PAGE
        seq.close()
        other.close()


def test_steps_and_reading_go_on_at_the_same_time(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread reads for prompts while steps take their pages, evict, and the writer writes."""
    monkeypatch.setattr(writer_module, "IDLE_S", 0.0)
    prompts = [[*ids(130 + 40 * (i % 2), i % 3), *ids(100, i)] for i in range(12)]
    with load(tmp_path, n_pages=24, backend="tape", disk=0) as engine:
        alone = [answer(engine, prompt)[0] for prompt in prompts]
    with load(tmp_path, n_pages=24, backend="tape") as engine:
        stop, failed = threading.Event(), list[BaseException]()

        def read() -> None:
            rng = np.random.default_rng(0)
            try:
                while not stop.is_set():
                    engine.prefetch(prompts[int(rng.integers(len(prompts)))])
            except BaseException as error:
                failed.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for i in np.random.default_rng(1).integers(0, len(prompts), 150):
                assert np.array_equal(answer(engine, prompts[int(i)])[0], alone[int(i)])
        finally:
            stop.set()
            reader.join()
        assert not failed and engine.n_tokens_restored > 0 and engine.n_pages_evicted > 0
