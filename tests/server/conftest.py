"""A daemon over a temporary store, whose runners are the scripted fake of tests/scheduler."""

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from localllm.durations import NS_PER_S
from localllm.scheduler import Scheduler
from localllm.scheduler.budget import Budget
from localllm.scheduler.memory import MemoryEstimate
from localllm.server import Daemon, Settings, create_app
from measuring.ports import free_port
from registry.create import ModelContents, ModelFacts, create_from_gguf
from registry.names import parse_name
from registry.progress import PULLING_MANIFEST, Progress
from registry.store import Store

ROOT = Path(__file__).parents[2]
FAKE_RUNNER = ROOT / "tests/scheduler/fake_runner.py"
JINJA = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "models")


@pytest.fixture(scope="session")
def gguf_of(tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType) -> Callable[[str, str], bytes]:
    """gguf_of(kind, jinja): the bytes of a tiny model, made once."""
    folder = tmp_path_factory.mktemp("gguf")

    @functools.cache
    def make(kind: str, jinja: str) -> bytes:
        path = folder / "model.gguf"
        if kind == "script":
            tiny_models.script_model(path, ["ok"], tmpl=jinja)
        else:
            tiny_models.bert_model(path)
        return path.read_bytes()

    return make


@pytest.fixture
def add_model(store: Store, gguf_of: Callable[[str, str], bytes]) -> Callable[..., None]:
    """add_model(name, template=…, system=…, params=…, messages=…, jinja=…, kind="script"): puts a tiny model there."""

    def add(name: str = "m", *, jinja: str = JINJA, kind: str = "script", **contents: Any) -> None:
        digest, _ = store.blobs.put(gguf_of(kind, jinja))
        facts = ModelFacts("llama", 134_515_008, "F32")
        for _ in create_from_gguf(store, parse_name(name), ModelContents([digest], facts, **contents)):
            pass

    return add


def no_pull(reference: str, cancel: threading.Event, access: Any) -> Iterator[Progress]:
    yield PULLING_MANIFEST
    raise AssertionError("this test pulls nothing")


def fake_scheduler(**settings: Any) -> Scheduler:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    settings.setdefault("estimate", lambda want: MemoryEstimate(1000, 1.0, n_ctx_train=4096))
    settings.setdefault("budget", Budget(lambda: 1 << 40, lambda: 1 << 40, lambda pid: 0))
    return Scheduler(command=[sys.executable, str(FAKE_RUNNER)], env=env, **settings)


@dataclass
class Running:
    """A daemon in this process and a client for it."""

    daemon: Daemon
    http: httpx.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)

    async def post(self, path: str, body: Any, method: str = "POST") -> httpx.Response:
        """Send a body: bytes or text as they are, anything else as JSON."""
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return await self.http.request(method, path, content=content)

    async def lines(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The records of a streamed answer."""
        response = await self.post(path, body)
        assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson"
        assert response.text.endswith("\n")
        return [json.loads(line) for line in response.text.splitlines()]


@pytest.fixture
def running(store: Store) -> Callable[..., Any]:
    """`async with running(scheduler=…, pull=…, **settings) as r`: the application, started, with a client."""

    @contextlib.asynccontextmanager
    async def start(
        scheduler: dict[str, Any] | None = None, pull: Any = no_pull, **settings: Any
    ) -> AsyncIterator[Running]:
        settings.setdefault("keep_alive_ns", 300 * NS_PER_S)
        settings.setdefault("state_dir", store.root.parent / "state")
        daemon = Daemon(store, fake_scheduler(**(scheduler or {})), pull, Settings(**settings))
        app = create_app(daemon)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:11434", timeout=30) as http:
                yield Running(daemon, http)

    return start


@dataclass
class LiveDaemon:
    """`localllm serve` in a process of its own, with fake runners."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it with a signal; its status and its log."""
        self.process.send_signal(number)
        return self.process.wait(timeout=30), self.log.read_text()


@pytest.fixture
def start_live(store: Store, tmp_path: Path) -> Iterator[Callable[..., LiveDaemon]]:
    """start_live(**variables): a daemon process that answers; ended after the test."""
    daemons: list[LiveDaemon] = []

    def start(**variables: str) -> LiveDaemon:
        port = free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "LOCALLLM_"))}
        variables = {"LOCALLLM_HOST": f"127.0.0.1:{port}", "LOCALLLM_STATE_DIR": str(tmp_path / "state"), **variables}
        env = {**clean, "PYTHONPATH": str(ROOT), "LOCALLLM_MODELS": str(store.root), **variables}
        command = [sys.executable, str(Path(__file__).with_name("serve_with_fake_runners.py")), str(FAKE_RUNNER)]
        # A pipe would fill up, and whoever writes to a full pipe waits.
        log = tmp_path / f"daemon-{port}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, env=env, cwd=tmp_path, stderr=stderr)
        scheme = "https" if "LOCALLLM_TLS_CERT" in variables else "http"
        daemons.append(LiveDaemon(f"{scheme}://127.0.0.1:{port}", process, log))
        _wait_until_it_answers(daemons[-1])
        return daemons[-1]

    yield start
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait()


def _wait_until_it_answers(daemon: LiveDaemon) -> None:
    deadline = time.monotonic() + 30
    while daemon.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(daemon.url, trust_env=False, verify=False).status_code == 200:
                return
        time.sleep(0.02)


@pytest.fixture
def until() -> Callable[..., Any]:
    """`await until(condition)`: wait until it holds."""

    async def wait(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "condition not met in time"
            await asyncio.sleep(0.01)

    return wait
