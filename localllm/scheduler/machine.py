"""What memory there is for this process: the machine's, and what its control groups leave of that; it knows no model.

A limit of a control group holds for all groups below it, so that the way up to the root is walked and the tightest one
counts. What files occupy in memory can be given back at any time, so it counts as free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil


@dataclass(frozen=True)
class Group:
    """The bounds of a control group: `limit_bytes` and what it uses of them that cannot be given back."""

    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class _Files:
    """The names that one version of control groups has for the same things."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]


# Above memory.high a group is slowed down until it is of no use.
_V2 = _Files(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))
_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


@dataclass(frozen=True)
class Machine:
    """The memory that this process may use. `proc` and `cgroup` are where Linux tells of itself."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")

    def total_bytes(self) -> int:
        """All of it, used or not."""
        return min([_physical().total, *(group.limit_bytes for group in self.groups())])

    def available_bytes(self) -> int:
        """What can be had now without swapping."""
        left = (group.limit_bytes - group.used_bytes for group in self.groups())
        return max(0, min([_physical().available, *left]))

    def groups(self) -> Iterator[Group]:
        """The groups with a limit that this process is in, the innermost first."""
        for folder, files in self._folders():
            limits = [limit for name in files.limits if (limit := _number(folder / name)) is not None]
            if limits:
                used = _number(folder / files.usage) or 0
                yield Group(min(limits), max(0, used - _sum_of(folder / "memory.stat", files.reclaimable)))

    def _folders(self) -> Iterator[tuple[Path, _Files]]:
        """Folders of the groups. A path that is another machine's view, as in a container, leads to its root here."""
        with contextlib.suppress(OSError):
            for line in (self.proc / "self/cgroup").read_text().splitlines():
                _, is_group, rest = line.partition(":")
                controllers, _, path = rest.partition(":")
                if is_group and not controllers:
                    yield from ((folder, _V2) for folder in _way_up(self.cgroup, path))
                elif "memory" in controllers.split(","):
                    yield from ((folder, _V1) for folder in _way_up(self.cgroup / "memory", path))


def _way_up(root: Path, path: str) -> Iterator[Path]:
    """The folder of a group below `root`, if it is there, and those around it, `root` last."""
    parts = PurePosixPath(path).relative_to("/").parts if path.startswith("/") else ()
    if ".." not in parts:
        for n in range(len(parts), 0, -1):
            if (folder := root.joinpath(*parts[:n])).is_dir():
                yield folder
    yield root


def _number(path: Path) -> int | None:
    """The number in a file; None for `max`, and where there is no such file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _sum_of(path: Path, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError, ValueError):
        fields = dict(line.split() for line in path.read_text().splitlines())
        return sum(int(fields.get(name, 0)) for name in names)
    return 0


def _physical() -> psutil._common.svmem:  # type: ignore[name-defined]
    return psutil.virtual_memory()


def touched_bytes(pid: int) -> int:
    """Memory of a process that is its own and in use, without what it has of files; 0 where that is not told."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return max(0, memory.rss - getattr(memory, "shared", memory.rss))
