"""Compiles kernels for this CPU, one at a time and only when asked, and keeps them on disk.

A kernel is a Numba function `(row, thread, n_threads)` of three int64: `row` is the address of its
row of a tape, from which it reads its arguments; it does the share of the work that falls to
`thread` of `n_threads`. It is compiled as a C callback, so that a tape can call it by address.

The cache directory is keyed by a hash of this package's sources, the versions of Numba and
llvmlite, and the CPU path: Numba alone would not notice that an imported file has changed. Where the
cache cannot be written, the system's temporary folder serves instead.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import platformdirs
from numba.core.caching import IndexDataCacheFile

from kernels_cpu import KernelError
from kernels_cpu.target import TARGET

SIGNATURE = "void(int64, int64, int64)"
PACKAGE = Path(__file__).parent
# The kernels of one model take about 1 MB.
MIN_FREE_BYTES = 8 << 20

# Exit status of a compiling process that finds other sources than its parent has loaded.
OTHER_SOURCES = 86

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def _forced() -> bool:
    return bool(os.environ.get("LOCALLLM_CPU", "").strip())


# LLVM's machine scheduler moves loads so far ahead of their use that generated loops spill registers: with it the
# products of several rows are 1.2 to 1.4 times slower on AVX2. Without it the order of emission stands.
llvm.set_option("localllm", "-enable-misched=false")

if _forced():
    numba.config.CPU_NAME = TARGET.cpu_name
    numba.config.CPU_FEATURES = TARGET.features


def default_cache_dir() -> Path:
    """Where caches live unless the caller says otherwise: LOCALLLM_CACHE_DIR, else the user's cache folder."""
    return Path(os.environ.get("LOCALLLM_CACHE_DIR") or platformdirs.user_cache_dir("localllm", appauthor=False))


@functools.cache
def source_hash() -> str:
    """16 hex digits that change whenever compiled code could."""
    h = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        h.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    h.update(repr((numba.__version__, llvmlite.__version__, TARGET, sys.version_info[:2])).encode())
    return h.hexdigest()[:16]


@functools.cache
def cache_directory() -> Path:
    """The folder of compiled kernels for this package, Numba and CPU path.

    Raises:
        KernelError: neither the cache folder nor the temporary one can be written.
    """
    preferred = default_cache_dir() / "kernels" / source_hash()
    problem = _problem_with(preferred)
    if problem is None:
        return preferred
    private = Path(tempfile.gettempdir()) / f"localllm-{_user_id()}"
    substitute = private / "kernels" / source_hash()
    if not _is_ours(private) or _problem_with(substitute) is not None:
        raise KernelError(
            f"compiled kernels cannot be kept in {preferred} ({problem}) nor in {private}; "
            "set LOCALLLM_CACHE_DIR to a folder that can be written"
        )
    logger.warning("compiled kernels cannot be kept in %s (%s); they are in %s", preferred, problem, private)
    return substitute


def _problem_with(folder: Path) -> str | None:
    """Why compiled kernels cannot be kept in a folder, which is made; None if they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        is_full = shutil.disk_usage(folder).free < MIN_FREE_BYTES and not any(folder.glob("*.done"))
    except OSError as error:
        return error.strerror or type(error).__name__
    return "no space left" if is_full else None


def _user_id() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _is_ours(folder: Path) -> bool:
    """Whether a folder, which is made, belongs to this user alone: what is loaded from it is run."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True  # Windows: the temporary folder is the user's own
    return not folder.is_symlink() and found.st_uid == _user_id() and not found.st_mode & 0o022


numba.config.CACHE_DIR = str(cache_directory())


def _take_damage_as_absence() -> None:
    """Numba does not sync its cache files, so that a power cut may leave them empty or cut short, and then raises at
    every load for ever. Here such a file counts as missing: the kernel is compiled again and the file replaced."""
    load_index, load_data = IndexDataCacheFile._load_index, IndexDataCacheFile._load_data

    def index_or_none(cache_file: Any) -> Any:
        try:
            return load_index(cache_file)
        except OSError:
            raise
        except Exception as error:  # unpickling damaged bytes may raise anything
            logger.warning("a damaged kernel cache is made anew: %s: %s", cache_file._index_path, error)
            return {}

    def data_or_missing(cache_file: Any, name: str) -> Any:
        try:
            return load_data(cache_file, name)
        except OSError:
            raise
        except Exception as error:
            logger.warning("a damaged compiled kernel is made anew: %s: %s", name, error)
            raise FileNotFoundError(name) from error  # which Numba takes for a file that was removed

    IndexDataCacheFile._load_index, IndexDataCacheFile._load_data = index_or_none, data_or_missing


_take_damage_as_absence()


class Kernel:
    """A function that becomes a machine address when it is first needed."""

    def __init__(self, fn: Callable[[int, int, int], None]) -> None:
        self.fn = fn
        self.name = f"{fn.__module__}:{fn.__name__}"
        self._compiled: Any = None

    def _marker(self) -> Path:
        return cache_directory() / (self.name.replace(":", ".") + ".done")

    def is_cached(self) -> bool:
        """Whether compiling would only load from disk."""
        return self._compiled is not None or self._marker().exists()

    def address(self) -> int:
        """The kernel's entry point; compiles, or loads from the disk cache, on first use."""
        if self._compiled is None:
            make = numba.cfunc(SIGNATURE, nopython=True, cache=True, error_model="numpy")
            self._compiled = make(self.fn)
            self._marker().touch()
        return int(self._compiled.address)


def kernel(fn: Callable[[int, int, int], None]) -> Kernel:
    """Decorator: this function is a kernel. It must be a module-level name."""
    return Kernel(fn)


def find_kernel(name: str) -> Kernel:
    """The kernel called `module:function`."""
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function, None)
    if not isinstance(found, Kernel):
        raise KernelError(f'unknown kernel: "{name}"')
    return found


def compile_all(kernels: Iterable[Kernel], progress: Progress | None = None, n_processes: int = 0) -> None:
    """Make every kernel ready to call; those missing from the disk cache are compiled in parallel processes.

    `progress(done, total)` counts the kernels that had to be compiled; it is not called when none had.
    """
    wanted = {k.name: k for k in kernels}
    missing = [k for k in wanted.values() if not k.is_cached()]
    if len(missing) > 1:
        _compile_in_processes(missing, progress or (lambda done, total: None), n_processes or os.cpu_count() or 1)
    elif missing and progress:
        progress(0, 1)
    for k in wanted.values():
        k.address()
    if missing and progress:
        progress(len(missing), len(missing))


def _compile_in_processes(missing: list[Kernel], progress: Progress, n_processes: int) -> None:
    n = min(n_processes, len(missing))
    # Deal them out like cards: neighbours in the list (the tiles of one type) cost about the same.
    shares = [[k.name for k in missing[i::n]] for i in range(n)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", "from kernels_cpu.compile import main; main()", source_hash()]
    # A pipe that nobody writes to: its end tells the children that this process is gone.
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in shares]
        children = [
            subprocess.Popen(command + share, env=env, stderr=log, **quiet)  # type: ignore[call-overload]
            for share, log in zip(shares, logs, strict=True)
        ]
        _wait_for(children, lambda: progress(sum(k.is_cached() for k in missing), len(missing)))
        for child, log in zip(children, logs, strict=True):
            log.seek(0)
            _check(child.returncode, log.read().decode(errors="replace"))


def _wait_for(children: list[subprocess.Popen[bytes]], report: Callable[[], None]) -> None:
    """Until all have ended; if that is interrupted, they are ended."""
    try:
        while any(child.poll() is None for child in children):
            report()
            time.sleep(0.05)
    except BaseException:
        for child in children:
            child.kill()
        raise
    finally:
        for child in children:
            child.communicate()


def _check(returncode: int, log: str) -> None:
    if returncode == OTHER_SOURCES:
        raise KernelError("localllm was changed on disk since this process started: start it again")
    if returncode:
        last = "".join(log.splitlines()[-1:])
        raise KernelError(f"a kernel did not compile (exit status {returncode}): {last}")


def main() -> None:
    """Compile the kernels named by the command line, unless stdin ends: the body of a compiling process.

    The first argument is the parent's source_hash: kernels of other sources must not get among its own.
    """
    if sys.argv[1] != source_hash():
        sys.exit(OTHER_SOURCES)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for name in sys.argv[2:]:
        find_kernel(name).address()


def _exit_with_parent() -> None:
    os.read(0, 1)  # not sys.stdin: a thread inside it would make the interpreter's own end fail
    os._exit(1)
