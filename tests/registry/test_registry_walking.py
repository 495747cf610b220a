"""Folders are read while others change them."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from registry.staging import staged_bytes
from registry.store import Store


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """A folder in which folders and a file come and go."""
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            (folder / "host" / "user" / "model").mkdir(parents=True)
            (folder / "host" / "user" / "model" / "tag").write_bytes(b"{}")
            shutil.rmtree(folder / "host")

    changer = threading.Thread(target=change)
    changer.start()
    try:
        yield
    finally:
        is_over.set()
        changer.join()


@pytest.mark.parametrize("read", [staged_bytes, lambda folder: Store(folder.parent).names()], ids=["staged", "names"])
def test_what_goes_meanwhile_is_no_error(read: Callable[[Path], object], tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    with changing(folder):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            read(folder)
