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

import functools
import hashlib
import importlib
import logging
import os
import pkgutil
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import platformdirs
from numba.core.caching import IndexDataCacheFile
from numba.core.registry import cpu_target

from kernels_cpu import KernelError, cache_files
from kernels_cpu.pipeline import KernelCompiler
from kernels_cpu.target import TARGET
from kernels_cpu.workers import CAN_FORK, Progress, Start, Workers, forked, serve, spawned

SIGNATURE = "void(int64, int64, int64)"
HOME = Path(__file__).parents[1]
# The kernels of one model take about 1 MB.
MIN_FREE_BYTES = 8 << 20

# More processes than these take longer to start than they save.
MAX_PROCESSES = 16
# Exit status of a compiling process that finds other sources than its parent has loaded.
OTHER_SOURCES = 86

logger = logging.getLogger(__name__)


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
    """The kernels of all quant types and operations, the routines that run them, and those of automata."""
    names = ["kernels_cpu.team", *_modules("kernels_cpu.ops"), *_modules("kernels_cpu.quants")]
    return [*_kernels_in(names), *constraint_kernels()]


def constraint_kernels() -> list[Kernel]:
    """What constrained answers need, whatever the model."""
    return _kernels_in(["kernels_cpu.masking", *_modules("kernels_cpu.automata")])


def _modules(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return [module.name for module in pkgutil.iter_modules(path, f"{package}.")]


def _kernels_in(names: Iterable[str]) -> list[Kernel]:
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
    names = [k.name for k in sorted(missing, key=lambda k: -k.cost)]
    Workers(names, _start(), n_processes or default_processes()).run(report, _check)
    report(len(missing), len(missing))


def default_processes() -> int:
    """As many processes as processors, but no more than pay for their start and their memory."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, MAX_PROCESSES)


def _start() -> Start:
    """How a compiling process is started."""
    if CAN_FORK:
        set_up()
        return forked(_compile)
    # From the folder of this very package, which `-c` puts in front of all others.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    command = [sys.executable, "-c", "from kernels_cpu.compile import main; main()", source_hash()]
    return spawned(command, env, str(HOME))


def set_up() -> None:
    """Have Numba set up what it needs for the first function that it compiles or loads, which takes half a second."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _compile(name: str) -> None:
    find_kernel(name).load()


def _check(returncode: int, log: str) -> None:
    if returncode == OTHER_SOURCES:
        raise KernelError("localllm was changed on disk since this process started: start it again")
    if returncode:
        last = "".join(log.splitlines()[-1:])
        raise KernelError(f"a kernel did not compile (exit status {returncode}): {last}")


def main() -> None:
    """The body of a compiling process that is no copy of its parent.

    The argument is the parent's source_hash: kernels of other sources must not get among its own.
    """
    if sys.argv[1] != source_hash():
        sys.exit(OTHER_SOURCES)
    serve(_compile)
