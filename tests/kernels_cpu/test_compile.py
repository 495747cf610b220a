"""Where compiled kernels are kept, and that nothing goes on compiling for a process that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import kernels_cpu.compile
from kernels_cpu import KernelError


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The module, deciding anew, with a temporary folder of its own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    kernels_cpu.compile.cache_directory.cache_clear()
    yield kernels_cpu.compile
    kernels_cpu.compile.cache_directory.cache_clear()


def test_the_cache_folder_is_preferred(compiling: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "new"))
    assert compiling.cache_directory() == tmp_path / "new" / "kernels" / compiling.source_hash()


@pytest.mark.parametrize("problem", ["a file", "full"])
def test_a_cache_that_cannot_be_written_has_a_substitute(
    compiling: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, problem: str
) -> None:
    (tmp_path / "file").touch()
    cache = tmp_path / ("file" if problem == "a file" else "folder")
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(cache))
    if problem == "full":
        free = {True: SimpleNamespace(free=0), False: SimpleNamespace(free=1 << 40)}
        monkeypatch.setattr("shutil.disk_usage", lambda path: free[path.is_relative_to(cache)])
    chosen = compiling.cache_directory()
    assert chosen.is_relative_to(tmp_path / "temporary") and chosen.is_dir()
    private = chosen.parent.parent
    assert private.stat().st_mode & 0o077 == 0
    assert compiling.cache_directory() == chosen

    compiling.cache_directory.cache_clear()
    private.chmod(0o777)  # as another user might have prepared it
    with pytest.raises(KernelError, match="LOCALLLM_CACHE_DIR"):
        compiling.cache_directory()


@pytest.mark.parametrize("can_fork", sorted({False, kernels_cpu.compile.CAN_FORK}))
def test_kernels_are_compiled_in_processes_of_their_own(tmp_path: Path, can_fork: bool) -> None:
    program = (
        "import kernels_cpu.compile\n"
        f"kernels_cpu.compile.CAN_FORK = {can_fork}\n"
        "from kernels_cpu.compile import compile_all, find_kernel\n"
        "names = ['kernels_cpu.ops.rows:rows', 'kernels_cpu.quants.f32:embedding']\n"
        "compile_all([find_kernel(name) for name in names], lambda done, total: print(done, total))"
    )
    env = {**os.environ, "LOCALLLM_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=200)
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.splitlines()[-1] == "2 2"
    assert len(list(tmp_path.rglob("*.done"))) == 2


def test_a_compiling_process_ends_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from kernels_cpu.compile import main; main()", kernels_cpu.compile.source_hash()]
    env = {**os.environ, "LOCALLLM_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    assert child.stdin is not None
    child.stdin.write(b"kernels_cpu.ops.elementwise:scale\n" * 50)
    child.stdin.close()
    child.stdin = None
    _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (1, b"") and len(list(tmp_path.rglob("*.done"))) <= 1


def test_a_process_whose_sources_were_changed_compiles_nothing(compiling: ModuleType, tmp_path: Path) -> None:
    """An update under a running daemon must not put its kernels among those of the old code."""
    program = (
        "import kernels_cpu.compile as c\n"
        "kernels = [c.find_kernel(f'kernels_cpu.ops.elementwise:{n}') for n in ('scale', 'softcap')]\n"
        "c.CAN_FORK = False\n"
        "c.source_hash = lambda: 'older'\n"
        "c.compile_all(kernels)"
    )
    env = {**os.environ, "LOCALLLM_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=200)
    assert "KernelError: localllm was changed on disk since this process started: start it again" in ended.stderr
    assert not list(tmp_path.rglob("*.done"))


@pytest.mark.parametrize(("pattern", "n_bytes"), [("*.nbc", 0), ("*.nbc", 100), ("*.nbi", 0), ("*.nbi", 40)])
def test_damaged_cache_files_are_made_anew(tmp_path: Path, pattern: str, n_bytes: int) -> None:
    code = (
        "from kernels_cpu.ops import elementwise\n"
        "from kernels_cpu.team import ROUTINES\n"
        "ROUTINES[2].load()\n"
        "print(elementwise.scale.address() > 0)"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "LOCALLLM_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "True\n", done.stderr
        files = list(tmp_path.rglob(pattern))
        assert len(files) >= 2 and all(path.stat().st_size > n_bytes for path in files)
        for path in files:
            os.truncate(path, n_bytes)
