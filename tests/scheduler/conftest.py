"""A scheduler whose runners are the scripted fake beside this file."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localllm.messages import GenerateRequest, LoadRequest, ModelSpec
from localllm.scheduler import Scheduler
from localllm.scheduler.budget import Budget
from localllm.scheduler.memory import MemoryEstimate

FAKE_RUNNER = Path(__file__).with_name("fake_runner.py")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def make_scheduler() -> Callable[..., Scheduler]:
    """Scheduler(**settings) on fake runners, with memory for anything unless told otherwise."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def make(**settings: Any) -> Scheduler:
        settings.setdefault("estimate", lambda want: MemoryEstimate(1000, 1.0))
        settings.setdefault("budget", Budget(lambda: 1 << 40, lambda: 1 << 40, lambda pid: 0))
        return Scheduler(command=[sys.executable, str(FAKE_RUNNER)], env=env, **settings)

    return make


@pytest.fixture
def want() -> Callable[..., LoadRequest]:
    """want("a", num_ctx=..., fake={...}): a load of model "a"."""

    def make(name: str = "a", *, fake: dict[str, Any] | None = None, **settings: Any) -> LoadRequest:
        model = ModelSpec(
            name, f"manifest-{name}", [f"/nowhere/{name}.gguf"], f"digest-{name}", params={"fake": fake or {}}
        )
        settings.setdefault("num_ctx", 4096)
        return LoadRequest(model, **settings)

    return make


@pytest.fixture
def ask() -> Callable[[str], GenerateRequest]:
    """ask(prompt): a request with an id of its own."""
    count = iter(range(10**6))
    return lambda prompt: GenerateRequest(str(next(count)), "generate", prompt=prompt)
