"""What lies in the cache folder, since when it is unused, and what must go; it never looks into the files.

    weights/<model digest>-<layout>.packed    repacked weights (weights.py), `.used` beside it
    kernels/<hash>/                           compiled kernels (compile.py) of one version, CPU and Numba
    tokenizers/<hash>.bin                     what a tokenizer computes from its vocabulary
    prefixes/<model digest>-<variant>/        pages of KV caches (prefix_files.py)

Only the standard library, because the command line shows and clears the folder. Whatever is here can be made anew, so
that nothing is an error: what cannot be removed stays.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kernels_cpu import prefix_files

WEIGHTS, KERNELS, TOKENIZERS, PREFIXES = KINDS = ("weights", "kernels", "tokenizers", prefix_files.PREFIXES)
OF_MODELS = (WEIGHTS, PREFIXES)
"""Kinds of which each entry is one model's."""

PACKED_SUFFIX, USED_SUFFIX, PARTIAL_SUFFIX = ".packed", ".used", ".partial"

UNUSED_S = 30 * 86400.0
"""What nobody has used for so long is removed."""

MAX_KERNEL_FOLDERS = 8
"""Versions whose kernels are kept, those in use not counted."""

# No file takes this long to make: what is older was left by a process that was killed.
ABANDONED_S = 3600.0
# Folders of kernels and of prefixes say in this file which code made them; who uses kernels holds a lock on it.
CODE_FILE = "code"

PACKAGE = Path(__file__).parent


@dataclass(frozen=True)
class CacheEntry:
    """One thing that can be removed by itself. `key` is the model's digest, or the hash in the name.

    `last_used_s` is Unix time; stale is what the code that runs now would not use.
    """

    kind: str
    path: Path
    key: str
    n_bytes: int
    last_used_s: float
    is_stale: bool


# ------------------------------------------------------------------------------- versions


def _digest(paths: Iterable[Path]) -> str:
    h = hashlib.sha256()
    for path in paths:
        h.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return h.hexdigest()


@functools.cache
def layout_digest() -> str:
    """8 hex digits that change with the code that says how weights are packed. That code must not ask for the CPU."""
    names = ("packing.py", "weights.py")
    return _digest([*(PACKAGE / name for name in names), *sorted((PACKAGE / "quants").glob("*.py"))])[:8]


@functools.cache
def code_digest() -> str:
    """64 hex digits that change with the sources of this package, and with what compiles them."""
    sources = _digest(sorted(PACKAGE.rglob("*.py")))
    versions = [sys.version_info[:2], *(_version(name) for name in ("numba", "llvmlite"))]
    return hashlib.sha256(repr((sources, versions)).encode()).hexdigest()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


# -------------------------------------------------------------------------------- listing


def packed_path(folder: Path, identity: str) -> Path:
    """Where in the cache folder the repacked weights of a model lie; `identity` is the digest of its file."""
    return folder / WEIGHTS / f"{identity.removeprefix('sha256:')}-{layout_digest()}{PACKED_SUFFIX}"


def entries(folder: Path) -> list[CacheEntry]:
    """All that lies in the cache folder, by kind and the latest used first."""
    found = [*_weights(folder), *_kernels(folder), *_tokenizers(folder), *_prefixes(folder)]
    return sorted(found, key=lambda entry: (KINDS.index(entry.kind), -entry.last_used_s))


def _weights(folder: Path) -> Iterator[CacheEntry]:
    for path in (folder / WEIGHTS).glob(f"*{PACKED_SUFFIX}"):
        key, _, layout = path.name.removesuffix(PACKED_SUFFIX).rpartition("-")
        with contextlib.suppress(OSError):
            used = (path, path.with_suffix(USED_SUFFIX))
            last_used_s = max(p.stat().st_mtime for p in used if p.exists())
            yield CacheEntry(WEIGHTS, path, key or layout, path.stat().st_size, last_used_s, layout != layout_digest())


def _is_stale(path: Path) -> bool:
    code = path / CODE_FILE
    return not code.exists() or code.read_text() != code_digest()


def _kernels(folder: Path) -> Iterator[CacheEntry]:
    for path in (folder / KERNELS).glob("[!.]*"):
        with contextlib.suppress(OSError):
            is_stale = _is_stale(path)
            n_bytes = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
            yield CacheEntry(KERNELS, path, path.name, n_bytes, path.stat().st_mtime, is_stale)


def _tokenizers(folder: Path) -> Iterator[CacheEntry]:
    for path in (folder / TOKENIZERS).glob("*.bin"):
        with contextlib.suppress(OSError):
            found = path.stat()
            yield CacheEntry(TOKENIZERS, path, path.stem, found.st_size, found.st_mtime, False)


def _prefixes(folder: Path) -> Iterator[CacheEntry]:
    for path in (folder / PREFIXES).glob("[!.]*"):
        with contextlib.suppress(OSError):
            n_bytes, used_s = prefix_files.size_and_use(path)
            key = path.name.partition("-")[0]
            yield CacheEntry(PREFIXES, path, key, n_bytes, used_s or path.stat().st_mtime, _is_stale(path))


# ------------------------------------------------------------------------------- removing


def remove(entry: CacheEntry) -> bool:
    """Remove an entry; False where it is in use or cannot be removed.

    Mapped weights may go at any time (where the system lets them: elsewhere they stay), since the mapping keeps them
    alive; a process whose folder of kernels went could compile no more.
    """
    if entry.kind == KERNELS:
        return not _is_held(entry.path) and _remove_folder(entry.path)
    if entry.kind == PREFIXES:
        return _remove_folder(entry.path)
    with contextlib.suppress(OSError):
        entry.path.with_suffix(USED_SUFFIX).unlink(missing_ok=True)
        entry.path.unlink()
        return True
    return False


def _remove_folder(path: Path) -> bool:
    # Under another name first: a half removed folder must not be taken for a whole one, and Windows refuses to rename
    # a folder in use.
    gone = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.rename(gone)
    except OSError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def remove_model(folder: Path, identity: str) -> int:
    """Remove what is a model's: its repacked weights, of any layout, its prefixes; gives the bytes freed."""
    digest = identity.removeprefix("sha256:")
    found = [*_weights(folder), *_prefixes(folder)]
    return sum(entry.n_bytes for entry in found if entry.key == digest and remove(entry))


def prune(folder: Path, max_weights_bytes: float = math.inf, keep: Path | None = None) -> list[CacheEntry]:
    """Remove what is unused for long, what is beyond the limits, and what killed processes left; but not `keep`.

    The weights that were used last may take `max_weights_bytes` together. Gives what went. (Of prefixes, pages go by
    themselves: see `prefix_files.prune_prefixes`.)
    """
    _remove_abandoned(folder)
    now, n_bytes, n_folders, gone = time.time(), 0, 0, []
    for entry in entries(folder):
        n_bytes += entry.n_bytes if entry.kind == WEIGHTS else 0
        n_folders += entry.kind == KERNELS
        is_beyond = {WEIGHTS: n_bytes > max_weights_bytes, KERNELS: n_folders > MAX_KERNEL_FOLDERS}.get(
            entry.kind, False
        )
        is_old = now - entry.last_used_s > UNUSED_S
        if (is_old or is_beyond) and entry.path != keep and remove(entry):
            gone.append(entry)
            n_bytes -= entry.n_bytes if entry.kind == WEIGHTS else 0
    return gone


def _remove_abandoned(folder: Path) -> None:
    half = [*(folder / WEIGHTS).glob(f"*{PARTIAL_SUFFIX}"), *(folder / PREFIXES).glob(f"*/*{PARTIAL_SUFFIX}")]
    for path in [*half, *(folder / KERNELS).glob(".*"), *(folder / PREFIXES).glob(".*")]:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (folder / WEIGHTS).glob(f"*{USED_SUFFIX}"):
        with contextlib.suppress(OSError):
            if not path.with_suffix(PACKED_SUFFIX).exists():
                path.unlink()


# ---------------------------------------------------------------------- kernels in use

_held: dict[Path, int] = {}


def hold_kernels(folder: Path) -> None:
    """Mark a folder of kernels as made by this code and used now, and keep it from others' pruning until this process
    ends. Raises: OSError where it cannot be written."""
    code = folder / CODE_FILE
    if not code.exists():
        code.write_text(code_digest())
    os.utime(folder)
    if folder not in _held:
        _held[folder] = os.open(code, os.O_RDONLY)
        _lock(_held[folder], exclusive=False)


def _is_held(folder: Path) -> bool:
    try:
        handle = os.open(folder / CODE_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(handle, exclusive=True)
    finally:
        os.close(handle)


if sys.platform == "win32":

    def _lock(handle: int, *, exclusive: bool) -> bool:
        """Windows removes no file that is open: nothing more is needed."""
        return True
else:
    import fcntl

    def _lock(handle: int, *, exclusive: bool) -> bool:
        """Whether the file could be locked without waiting; where a file system has no locks it counts as locked."""
        try:
            fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
