"""Compiles kernels for this CPU, one at a time and only when asked, and keeps them on disk.

A kernel is a Numba function `(row, thread, n_threads)` of three int64: `row` is the address of its
row of a tape, from which it reads its arguments; it does the share of the work that falls to
`thread` of `n_threads`. It is compiled as a C callback, so that a tape can call it by address.

The cache directory is keyed by a hash of this package's sources, the versions of Numba and
llvmlite, and the CPU path: Numba alone would not notice that an imported file has changed. Where the
cache cannot be written, the system's temporary folder serves instead. How long folders stay is for
`cache_files` to say.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib
import logging
import os
import pkgutil
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import llvmlite
import llvmlite.binding as llvm
import numba
import platformdirs
from numba.core.caching import IndexDataCacheFile

from kernels_cpu import KernelError, cache_files
from kernels_cpu.pipeline import KernelCompiler
from kernels_cpu.target import TARGET

SIGNATURE = "void(int64, int64, int64)"
HOME = Path(__file__).parents[1]
# The kernels of one model take about 1 MB.
MIN_FREE_BYTES = 8 << 20

# More processes than these take longer to start than they save.
MAX_PROCESSES = 16
POLL_S = 0.03
# An empty line tells a compiling process that there is no more to do.
NO_MORE = b"\n"
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
    what = (cache_files.code_digest(), numba.__version__, llvmlite.__version__, TARGET)
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


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
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        cache_files.hold_kernels(folder)
        if is_new:
            cache_files.prune(folder.parent.parent)
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
    """A function that becomes a machine address when it is first needed. `cost` is about how long that takes, in
    quarters of a second: the costly ones are begun first."""

    def __init__(self, fn: Callable[[int, int, int], None], cost: int = 1) -> None:
        self.fn = fn
        self.cost = cost
        self.name = f"{fn.__module__}:{fn.__name__}"
        self._compiled: Any = None

    def _marker(self) -> Path:
        return cache_directory() / (self.name.replace(":", ".") + ".done")

    def is_cached(self) -> bool:
        """Whether compiling would only load from disk."""
        return self._compiled is not None or self._marker().exists()

    def load(self) -> Any:
        """What Numba made of the function; compiles, or loads from the disk cache, on first use."""
        if self._compiled is None:
            self._compiled = self._make()
            self._marker().touch()
        return self._compiled

    def _make(self) -> Any:
        made = numba.cfunc(SIGNATURE, nopython=True, cache=True, error_model="numpy", pipeline_class=KernelCompiler)
        return made(self.fn)

    def address(self) -> int:
        """The kernel's entry point."""
        return int(self.load().address)


class Routine(Kernel):
    """A function that Python calls, without the interpreter lock; compiled like a kernel, when it is first needed."""

    def __init__(self, fn: Callable[..., Any], signature: str, cost: int) -> None:
        super().__init__(fn, cost)
        self._signature = signature

    def _make(self) -> Any:
        return numba.njit(self._signature, nogil=True, cache=True, pipeline_class=KernelCompiler)(self.fn)

    def __call__(self, *args: int) -> Any:
        return self.load()(*args)


def routine(signature: str, cost: int = 2) -> Callable[[Callable[..., Any]], Routine]:
    """Decorator: this function, of a Numba signature, is a routine. It must be a module-level name."""
    return lambda fn: Routine(fn, signature, cost)


def kernel(fn: Callable[[int, int, int], None], cost: int = 1) -> Kernel:
    """Decorator: this function is a kernel. It must be a module-level name."""
    return Kernel(fn, cost)


def find_kernel(name: str) -> Kernel:
    """The kernel called `module:function`."""
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function, None)
    if not isinstance(found, Kernel):
        raise KernelError(f'unknown kernel: "{name}"')
    return found


def every_kernel() -> list[Kernel]:
    """The kernels of all quant types and operations, and the routines that run them."""
    names = ["kernels_cpu.team"]
    for package in ("kernels_cpu.ops", "kernels_cpu.quants"):
        path = importlib.import_module(package).__path__
        names += [module.name for module in pkgutil.iter_modules(path, f"{package}.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    return list({value.name: value for value in values if isinstance(value, Kernel)}.values())


def compile_all(kernels: Iterable[Kernel], progress: Progress | None = None, n_processes: int = 0) -> None:
    """Make every kernel ready to call; those missing from the disk cache are compiled in parallel processes.

    `progress(done, total)` counts the kernels that had to be compiled; it is not called when none had.

    Raises: KernelError where one does not compile.
    """
    wanted = {k.name: k for k in kernels}
    compile_to_disk(wanted.values(), progress, n_processes)
    for k in wanted.values():
        k.load()


def compile_to_disk(kernels: Iterable[Kernel], progress: Progress | None = None, n_processes: int = 0) -> None:
    """As `compile_all`, but without loading what is compiled into this process."""
    missing = [k for k in {k.name: k for k in kernels}.values() if not k.is_cached()]
    if not missing:
        return
    report = progress or (lambda done, total: None)
    report(0, len(missing))
    Compilers(missing, n_processes or default_processes()).run(report)
    report(len(missing), len(missing))


def default_processes() -> int:
    """As many processes as processors, but no more than pay for their start and their memory."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, MAX_PROCESSES)


class Compilers:
    """Processes that compile kernels. Each gets the next one when it is done with the last, the costly ones first."""

    def __init__(self, kernels: list[Kernel], n_processes: int) -> None:
        self._n_kernels = len(kernels)
        self._todo = deque(sorted(kernels, key=lambda k: -k.cost))
        self._done: list[str] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._logs: list[BinaryIO] = []
        self._n_processes = min(n_processes, len(kernels))

    def run(self, progress: Progress) -> None:
        """Compile them all. Whatever ends this early, an interrupt or an error, ends the processes.

        Raises: KernelError.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            for _ in range(self._n_processes):
                self._start()
            threads = [threading.Thread(target=self._feed, args=(child,), daemon=True) for child in self._children]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                progress(len(self._done), self._n_kernels)
                time.sleep(POLL_S)
            for child, log in zip(self._children, self._logs, strict=True):
                child.wait()
                log.seek(0)
                _check(child.returncode, log.read().decode(errors="replace"))

    def _start(self) -> None:
        # From the folder of this very package, which `-c` puts in front of all others.
        env = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
        command = [sys.executable, "-c", "from kernels_cpu.compile import main; main()", source_hash()]
        self._logs.append(tempfile.TemporaryFile())  # noqa: SIM115  (closed by _end)
        pipe = subprocess.PIPE
        self._children.append(
            subprocess.Popen(command, env=env, cwd=HOME, stdin=pipe, stdout=pipe, stderr=self._logs[-1])
        )

    def _feed(self, child: subprocess.Popen[bytes]) -> None:
        """Give a process work until there is no more, or until it is gone."""
        assert child.stdin is not None and child.stdout is not None
        try:
            while self._todo:
                name = self._todo.popleft().name
                child.stdin.write(name.encode() + b"\n")
                child.stdin.flush()
                if not child.stdout.readline():
                    break
                self._done.append(name)
            child.stdin.write(NO_MORE)
            child.stdin.flush()
            child.stdout.read()
        except (OSError, IndexError, ValueError):
            pass  # it ended, as its status tells; or another thread took the last kernel

    def _end(self) -> None:
        for child in self._children:
            child.kill()
        for child, log in zip(self._children, self._logs, strict=True):
            child.wait()
            log.close()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def _check(returncode: int, log: str) -> None:
    if returncode == OTHER_SOURCES:
        raise KernelError("localllm was changed on disk since this process started: start it again")
    if returncode:
        last = "".join(log.splitlines()[-1:])
        raise KernelError(f"a kernel did not compile (exit status {returncode}): {last}")


def main() -> None:
    """Compile the kernels that stdin names, one a line, and answer each with a line: the body of a compiling process.

    The argument is the parent's source_hash: kernels of other sources must not get among its own. Where stdin ends
    before it says that there is no more, the parent is gone, and this process goes at once.
    """
    if sys.argv[1] != source_hash():
        sys.exit(OTHER_SOURCES)
    answers, names = os.dup(1), queue.SimpleQueue[str]()
    os.dup2(2, 1)  # whatever else prints to stdout
    threading.Thread(target=_read_names, args=(names,), daemon=True).start()
    gc.disable()  # a compiler's garbage is not worth the search: a fifth of its time
    while name := names.get():
        find_kernel(name).load()
        os.write(answers, b"\n")
    os._exit(0)  # at once: the thread is inside a read


def _read_names(names: queue.SimpleQueue[str]) -> None:
    pending = b""
    while block := os.read(0, 1 << 16):
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            names.put(line.decode())
    os._exit(1)
