"""The default number of threads."""

from __future__ import annotations

import os

import psutil
import pytest

from localllm.engine.tape_backend import default_threads


@pytest.mark.parametrize(("physical", "allowed", "want"), [(4, 8, 4), (4, 2, 2), (None, 3, 3), (1, 1, 1)])
def test_physical_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, physical: int | None, allowed: int, want: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: physical)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    assert default_threads() == want
