"""The folder of a model's pages: who may read it, how much there may be, what is done where something is wrong.

It knows neither what a page holds nor when it is worth keeping. Several processes may share the folder.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
from pathlib import Path

from kernels_cpu import cache_files, prefix_files
from localllm.engine.backend import Bytes
from localllm.engine.kv_disk.page_file import HEAD_BYTES, DamagedError, PageId, read_page, write_page
from localllm.engine.kv_disk.settings import VARIANT_DIGITS, DiskSettings

# The disk is looked at again when so much of the limit was written.
LOOK_SHARE = 1 / 16

logger = logging.getLogger(__name__)


class PageStore:
    """Pages of `page_bytes` each of one model and variant; `is_on` is False once nothing more can be written."""

    def __init__(self, settings: DiskSettings, identity: str, page_bytes: int) -> None:
        self._root = settings.cache_dir
        self._folder = prefix_files.prefixes_folder(self._root, settings.model_digest, identity[:VARIANT_DIGITS])
        self._max_bytes = settings.max_bytes
        self._page_bytes = page_bytes
        self._lock = threading.Lock()
        self._n_until_look = 0.0
        self.is_on = True
        try:
            self._make_folder()
        except OSError as error:
            self._turn_off(error.strerror or type(error).__name__)

    def has(self, page: PageId) -> bool:
        """Whether there is a file of the page."""
        return self._path(page).exists()

    def read(self, page: PageId) -> Bytes | None:
        """The content of a page, None where there is none that can be trusted. What is damaged is removed."""
        path = self._path(page)
        try:
            return read_page(path, page, self._page_bytes)
        except DamagedError:
            logger.warning("a damaged page of a prompt is removed: %s", path)
            with contextlib.suppress(OSError):
                path.unlink()
        except (OSError, MemoryError):
            pass  # mostly: there is none
        return None

    def used(self, page: PageId) -> None:
        """Note that this page is used now, and so are those before it."""
        with contextlib.suppress(OSError):
            os.utime(self._path(page))

    def write(self, page: PageId, content: Bytes) -> bool:
        """Keep a page, after others made room for it; whether it was. Where that is not possible, nothing is written
        from now on."""
        with self._lock:
            if not self.is_on:
                return False
            try:
                if not self._has_room():
                    raise OSError(errno.ENOSPC, "there is no room")
                write_page(self._path(page), page, content)
            except OSError as error:
                was_cleared = not self._folder.is_dir()
                self._turn_off("it was cleared" if was_cleared else error.strerror or type(error).__name__)
                return False
            self._n_until_look -= HEAD_BYTES + content.nbytes
            return True

    def _path(self, page: PageId) -> Path:
        return self._folder / prefix_files.page_name(page.chain, page.before)

    def _make_folder(self) -> None:
        """Make the folder, for this user alone whatever the umask. Raises: OSError."""
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if folder.is_symlink() or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
                raise OSError(0, f"{folder} is not this user's")
            folder.chmod(0o700)
        (self._folder / cache_files.CODE_FILE).write_text(cache_files.code_digest())

    def _has_room(self) -> bool:
        """Whether another page may be written. All pages may take half of what would be free without them."""
        n_new = HEAD_BYTES + self._page_bytes
        if self._n_until_look < n_new:
            n_bytes = prefix_files.prune_prefixes(self._root, self._max_bytes - n_new, cache_files.UNUSED_S)
            most = min(self._max_bytes, (n_bytes + shutil.disk_usage(self._folder).free) // 2)
            if n_bytes > most - n_new:
                n_bytes = prefix_files.prune_prefixes(self._root, most - n_new, cache_files.UNUSED_S)
            self._n_until_look = min(most - n_bytes, max(self._max_bytes * LOOK_SHARE, n_new))
        return self._n_until_look >= n_new

    def _turn_off(self, why: str) -> None:
        self.is_on = False
        logger.warning("prompts are no longer kept in %s until the model is loaded again: %s", self._folder, why)
