"""Processes that share work: what they answer, how they fail, and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels_cpu.workers import CAN_FORK, Workers, forked

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="forks are Linux's")


def _written(folder: Path) -> dict[str, int]:
    return {path.name: int(path.read_text()) for path in folder.iterdir()}


def test_every_name_is_worked_on_once_and_by_others(tmp_path: Path) -> None:
    names = [f"name-{i}" for i in range(20)]
    ended: list[tuple[int, str]] = []
    seen: list[tuple[int, int]] = []

    def work(name: str) -> None:
        (tmp_path / name).write_text(str(os.getpid()))
        print("not among the answers")

    workers = Workers(names, forked(work), 3)
    workers.run(lambda done, total: seen.append((done, total)), lambda status, text: ended.append((status, text)))
    assert sorted(_written(tmp_path)) == sorted(names)
    assert os.getpid() not in _written(tmp_path).values()
    assert [status for status, _ in ended] == [0] * 3 and {total for _, total in seen} == {20}
    assert sum(text.count("not among the answers") for _, text in ended) == 20


def test_what_a_process_raises_is_told(tmp_path: Path) -> None:
    def work(name: str) -> None:
        raise ValueError(f"no {name}")

    with pytest.raises(RuntimeError, match=r"1: .*ValueError: no bread"):
        Workers(["bread"], forked(work), 1).run(lambda *_: None, _raise)


def _raise(status: int, text: str) -> None:
    raise RuntimeError(f"{status}: {' '.join(text.splitlines())}")


def test_a_process_holds_no_file_of_its_parent_open(tmp_path: Path) -> None:
    with open(tmp_path / "open", "wb") as file:

        def work(name: str) -> None:
            assert int(name) not in map(int, os.listdir("/proc/self/fd"))

        Workers([str(file.fileno())], forked(work), 1).run(lambda *_: None, _none_failed)


def _none_failed(status: int, text: str) -> None:
    assert status == 0, text


def test_forked_processes_end_with_their_parent(tmp_path: Path) -> None:
    program = (
        "import os, time, pathlib\n"
        "from kernels_cpu.workers import Workers, forked\n"
        "def work(name):\n"
        f"    pathlib.Path({str(tmp_path)!r}, name).write_text(str(os.getpid()))\n"
        "    time.sleep(60)\n"
        "Workers(['a', 'b'], forked(work), 2).run(print, print)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.DEVNULL)
    _wait_until(lambda: len([path for path in tmp_path.iterdir() if path.read_text()]) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    pids = _written(tmp_path).values()
    _wait_until(lambda: not any(_is_running(pid) for pid in pids))


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
