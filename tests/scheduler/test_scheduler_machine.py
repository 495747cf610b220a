"""The memory that there is, read from made-up trees of control groups."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from localllm.scheduler import machine
from localllm.scheduler.budget import SPARE_BYTES, Budget, budget_of_machine
from localllm.scheduler.machine import Group, Machine

GB = 10**9
V1_NONE = str(2**63 - 4096)


@pytest.fixture(autouse=True)
def physical(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 GB, half of it free."""
    monkeypatch.setattr(machine, "_physical", lambda: SimpleNamespace(total=64 * GB, available=32 * GB))


def machine_of(tmp_path: Path, own: str, files: dict[str, str | int]) -> Machine:
    """What /proc/self/cgroup says, and the files below /sys/fs/cgroup."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return Machine(tmp_path / "proc", tmp_path / "cgroup")


def stat(**fields: int) -> str:
    return "\n".join(f"{name} {value}" for name, value in fields.items())


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    for found in (Machine(tmp_path / "none", tmp_path / "none"), machine_of(tmp_path, "0::/\n", {})):
        assert (found.total_bytes(), found.available_bytes()) == (64 * GB, 32 * GB)


def test_the_own_group_counts_and_its_cached_files_are_free(tmp_path: Path) -> None:
    files = {
        "a/b/memory.max": 8 * GB,
        "a/b/memory.current": 7 * GB,
        "a/b/memory.stat": stat(anon=3 * GB, file=9 * GB, inactive_file=1 * GB, active_file=2 * GB, shmem=1),
        "a/memory.max": "max",
    }
    found = machine_of(tmp_path, "0::/a/b\n", files)
    assert (found.total_bytes(), found.available_bytes()) == (8 * GB, 4 * GB)
    assert list(found.groups()) == [Group(8 * GB, 4 * GB)]


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {
        "a/b/c/memory.max": 40 * GB,
        "a/b/c/memory.current": 1 * GB,
        "a/b/memory.max": 20 * GB,
        "a/b/memory.current": 2 * GB,
        "a/memory.max": 24 * GB,
        "a/memory.high": 22 * GB,
        "a/memory.current": 18 * GB,
        "other/memory.max": 1,
    }
    found = machine_of(tmp_path, "0::/a/b/c\n", files)
    assert (found.total_bytes(), found.available_bytes()) == (20 * GB, 4 * GB)


@pytest.mark.parametrize("own", ["0::/", "0::/../../docker/1", "0::/docker/not-here", "0::"])
def test_in_a_container_the_root_is_the_own_group(tmp_path: Path, own: str) -> None:
    found = machine_of(tmp_path, f"{own}\n", {"memory.max": 4 * GB, "memory.current": 1 * GB})
    assert (found.total_bytes(), found.available_bytes()) == (4 * GB, 3 * GB)


def test_version_1(tmp_path: Path) -> None:
    files = {
        "memory/docker/1/memory.limit_in_bytes": V1_NONE,
        "memory/docker/memory.limit_in_bytes": 6 * GB,
        "memory/docker/memory.usage_in_bytes": 5 * GB,
        "memory/docker/memory.stat": stat(total_inactive_file=1 * GB, total_active_file=1 * GB),
        "cpu/docker/1/memory.limit_in_bytes": 1,
    }
    found = machine_of(
        tmp_path, "5:cpu,cpuacct:/docker/1\n4:hugetlb,memory:/docker/1\n1:name=systemd:/x\n0::/\n", files
    )
    assert (found.total_bytes(), found.available_bytes()) == (6 * GB, 3 * GB)


@pytest.mark.parametrize("text", ["", "junk", "0::/a:b\n\n"])
def test_what_cannot_be_read_bounds_nothing(tmp_path: Path, text: str) -> None:
    found = machine_of(tmp_path, text, {"memory.max": "junk", "memory.stat": "junk junk junk"})
    assert (found.total_bytes(), found.available_bytes()) == (64 * GB, 32 * GB)


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    assert machine_of(tmp_path, "0::/\n", {"memory.max": GB, "memory.current": 2 * GB}).available_bytes() == 0


@pytest.mark.parametrize(("setting", "total"), [("", 36 * GB), ("50%", 20 * GB), ("8GB", 8 * GB), ("999GB", 40 * GB)])
def test_the_budget_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, total: int) -> None:
    monkeypatch.setenv("LOCALLLM_MAX_MEMORY", setting)
    budget = budget_of_machine(machine_of(tmp_path, "0::/\n", {"memory.max": 40 * GB, "memory.current": GB}))
    assert budget.total_bytes() == total - SPARE_BYTES and budget.available_bytes() == 32 * GB


def model(promised_bytes: int, pid: int) -> SimpleNamespace:
    return SimpleNamespace(promised_bytes=promised_bytes, pid=pid)


def test_promises_count_and_what_is_in_use_counts_once() -> None:
    budget = Budget(lambda: 1000, lambda: 500, {1: 100, 2: 30}.__getitem__)
    a, b = model(300, 1), model(20, 2)
    assert budget.room(()) == 500
    assert budget.room([a]) == 500 - (300 - 100)
    assert budget.room([a, b]) == 500 - (300 - 100)  # the second took more than it was promised
    assert budget.room([b], leaving=[a]) == 600
    tight = Budget(lambda: 350, lambda: 500, lambda pid: 0)
    assert (tight.room([a]), tight.room([a, b]), tight.room((), [a, b])) == (50, 30, 350)


def test_touched_memory_of_a_process_is_its_own() -> None:
    assert 2**20 < machine.touched_bytes(os.getpid()) < 2**34 and machine.touched_bytes(2**22 + 1) == 0
