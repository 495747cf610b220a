"""The cache on disk: used when sound, rebuilt when not, never needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localllm.gguf import open_gguf
from localllm.tokenizer import Tokenizer, cache, load_tokenizer, loader

TEXT = "hello, 🦙 hell"
Load = Callable[[], Tokenizer]


@pytest.fixture(params=["bpe", "spm"])
def load(request: pytest.FixtureRequest, tmp_path: Path, tiny_models: ModuleType) -> Load:
    writer = {"bpe": tiny_models.random_model, "spm": tiny_models.spm_model}[request.param]
    writer(tmp_path / "m.gguf")

    def load_cached() -> Tokenizer:
        with open_gguf(tmp_path / "m.gguf") as f:
            return load_tokenizer(f, tmp_path / "cache")

    return load_cached


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows each time a vocabulary is computed rather than read."""
    built: list[str] = []
    compute = loader._Loader._compute

    def counted(*args: object) -> object:
        built.append("built")
        return compute(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(loader._Loader, "_compute", counted)
    return built


def entry(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / cache.FOLDER).iterdir()
    return path


def test_second_load_computes_nothing(load: Load, built: list[str], tmp_path: Path) -> None:
    first, second = load(), load()
    assert built == ["built"] and first.encode(TEXT) == second.encode(TEXT)
    assert [first.piece(i) for i in range(first.n_vocab)] == [second.piece(i) for i in range(first.n_vocab)]
    assert entry(tmp_path).suffix == ".bin"


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 72, 73, 500, -1])
def test_truncated_entry_is_rebuilt(load: Load, built: list[str], tmp_path: Path, cut: int) -> None:
    expected = load().encode(TEXT)
    path = entry(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert load().encode(TEXT) == expected and built == ["built"] * 2
    assert path.read_bytes() == whole


def test_any_flipped_bit_is_noticed(load: Load, built: list[str], tmp_path: Path) -> None:
    expected = load().encode(TEXT)
    path = entry(tmp_path)
    whole = path.read_bytes()
    for at in [0, 9, 40, 73, 80, *np.linspace(100, len(whole) - 1, 15).astype(int).tolist()]:
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        built.clear()
        assert load().encode(TEXT) == expected and built == ["built"]


def test_entry_of_another_vocabulary_is_not_used(load: Load, built: list[str], tmp_path: Path) -> None:
    load()
    path = entry(tmp_path)
    key = cache.digest([b"other"])
    cache.store(tmp_path / "cache", key, {"text_starts": np.zeros(3, np.uint32)})
    os.replace(tmp_path / "cache" / cache.FOLDER / f"{key.hex()[:40]}.bin", path)
    load()
    assert built == ["built"] * 2


def test_folder_that_cannot_be_used(load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert load().decode(load().encode(TEXT)) == TEXT
    assert "cannot be" in caplog.text


def test_no_temporary_file_is_left_behind(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    load()
    assert list((tmp_path / "cache" / cache.FOLDER).iterdir()) == [] and "No space left" in caplog.text


def test_key_depends_on_the_division_of_its_parts() -> None:
    assert cache.digest([b"ab", b"c"]) != cache.digest([b"a", b"bc"])


def test_sections_come_back_as_they_were(tmp_path: Path) -> None:
    sections = {"a": np.arange(5, dtype=np.uint32), "b": np.zeros(0, np.uint8), "c": np.arange(3, dtype=np.uint8)}
    key = cache.digest([b"x"])
    cache.store(tmp_path, key, sections)
    loaded = cache.load(tmp_path, key)
    assert loaded is not None and cache.load(tmp_path, cache.digest([b"y"])) is None
    for name, array in sections.items():
        assert loaded[name].dtype == array.dtype and np.array_equal(loaded[name], array)
