"""The real daemon with real runners on tiny models; nothing here is scripted but the models themselves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psutil
import pytest

from localllm import env
from measuring.ports import free_port

ROOT = Path(__file__).parents[2]
# The first load may have to compile the kernels, on a busy machine.
TIMEOUT_S = 200
ASSISTANT = "<|assistant|>"
LETTER_PROBABILITIES = {"A": -0.693147, "B": -1.203973, "C": -1.609438}


@dataclass
class Server:
    """`python -m localllm serve` in a process of its own, with a store and a state folder of its own."""

    process: subprocess.Popen[bytes]
    url: str
    models: Path
    log_path: Path
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=False, limits=limits)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def post(self, path: str, body: Any) -> dict[str, Any]:
        """The object that answers a request that is not streamed; it must succeed."""
        response = self.http.post(path, json={"stream": False, **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def refused(self, path: str, body: Any, status: int) -> str:
        """The error text of a request that must be refused with this status."""
        response = self.http.post(path, json={"stream": False, **body})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert isinstance(error, str) and error
        return error

    def lines(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The objects of a streamed answer."""
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.content.decode("utf-8", "strict").splitlines()]

    def add(self, path: Path) -> str:
        """Pull a file into the store; its name there."""
        self.post("/api/pull", {"model": f"file:{path}"})
        return path.stem

    def names(self) -> list[str]:
        return sorted(model["name"] for model in self.http.get("/api/tags").json()["models"])

    def loaded(self) -> dict[str, dict[str, Any]]:
        """/api/ps by the models' names, without `:latest`."""
        return {model["name"].removesuffix(":latest"): model for model in self.http.get("/api/ps").json()["models"]}

    def blobs(self) -> set[str]:
        folder = self.models / "blobs"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def unload_all(self) -> None:
        for name in self.loaded():
            self.post("/api/generate", {"model": name, "keep_alive": 0})

    def runners(self) -> list[psutil.Process]:
        """The processes below the daemon, all of them."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def runner_of(self, name: str) -> psutil.Process:
        """The process that a model was loaded into last; others may be kept ready for the next model."""
        pids = re.findall(rf"loaded {name}:latest: .*runner (\d+)", self.log)
        return psutil.Process(int(pids[-1]))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it with a signal; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(40)
        self.http.close()
        return status


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of its own for weights and vocabularies, with the compiled kernels that the user has."""
    kernels = env.cache_dir() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    folder = tmp_path_factory.mktemp("cache")
    (folder / "kernels").symlink_to(kernels)
    return folder


@pytest.fixture(scope="session")
def serve_env(cache_dir: Path) -> dict[str, str]:
    """The environment of a daemon, without settings of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "LOCALLLM_"))}
    cpu = {"LOCALLLM_CPU": os.environ["LOCALLLM_CPU"]} if "LOCALLLM_CPU" in os.environ else {}
    # Tests that want prompts to be kept on disk say so.
    disk = {"LOCALLLM_KV_DISK": "0"}
    return {**kept, **cpu, **disk, "LOCALLLM_CACHE_DIR": str(cache_dir), "PYTHONPATH": str(ROOT)}


StartServer = Callable[..., Server]


def _starter(serve_env: dict[str, str], folder_of: Callable[[], Path]) -> Iterator[StartServer]:
    servers: list[Server] = []

    def start(models: Path | None = None, env: dict[str, str] | None = None, **settings: str) -> Server:
        folder = folder_of()
        port = free_port()
        models = models or folder / "models"
        variables = {
            **serve_env,
            "LOCALLLM_HOST": f"127.0.0.1:{port}",
            "LOCALLLM_MODELS": str(models),
            "LOCALLLM_STATE_DIR": str(folder / "state"),
            **{f"LOCALLLM_{name.upper()}": value for name, value in settings.items()},
            **(env or {}),
        }
        command = [sys.executable, "-m", "localllm", "serve"]
        log_path = folder / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, env=variables, cwd=folder, stderr=log, stdout=log)
        servers.append(Server(process, f"http://127.0.0.1:{port}", models, log_path))
        _wait_until_it_answers(servers[-1])
        return servers[-1]

    yield start
    for server in servers:
        children = server.runners() if server.process.poll() is None else []
        server.stop()
        assert psutil.wait_procs(children, timeout=20)[1] == []


@pytest.fixture
def start_server(serve_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """start_server(models=folder, env={"TMPDIR": …}, max_queue="4", …): a daemon that answers; ended after the test."""
    yield from _starter(serve_env, lambda: tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def server(serve_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One daemon for all tests that leave it as it was; four requests of a model run at the same time."""
    starter = _starter(serve_env, lambda: tmp_path_factory.mktemp("server"))
    yield next(starter)(num_parallel="4")
    next(starter, None)


def _wait_until_it_answers(server: Server) -> None:
    deadline = time.monotonic() + 60
    while server.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if server.http.get("/").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"the daemon does not answer: {server.log}")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType) -> Callable[[str], Path]:
    """gguf(name): the file of one of the models below, made once."""
    folder = tmp_path_factory.mktemp("gguf")
    tiny = tiny_models
    makers: dict[str, Callable[[Path], Any]] = {
        "random": tiny.random_model,
        "other": lambda path: tiny.random_model(path, seed=7),
        "long": lambda path: tiny.random_model(path, ctx=131072),
        "spm": tiny.spm_model,
        "bert": tiny.bert_model,
        "flat": lambda path: tiny.flat_model(path, LETTER_PROBABILITIES),
        "loop": lambda path: tiny.script_model(path, ["ab", "cd", "ef"], loop=True),
        "story": lambda path: tiny.script_model(path, ["Once", " upon", " a", " time"]),
        "stops": lambda path: tiny.script_model(path, ["MNO", "PQR", "S", "TU", "V", "Wiiik", " tail"]),
        "utf8": lambda path: tiny.script_model(
            path, [b"\xf0", b"\x9f", b"\xa6", b"\x99", "щ", b"\xe4", b"\xbd", b"\xa0", "!"]
        ),
        "ab": lambda path: tiny.flat_model(path, {"A": 3.0, "<|eos|>": 0.0}),
    }

    def make(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            makers[name](path)
        return path

    return make


@pytest.fixture(scope="session")
def model(server: Server, gguf: Callable[[str], Path]) -> Callable[[str], str]:
    """model(name): the same model in the store of `server`, pulled once."""

    def add(name: str) -> str:
        if f"{name}:latest" not in server.names():
            server.add(gguf(name))
        return name

    return add


def wait_for(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


@pytest.fixture(scope="session", name="wait_for")
def wait_for_fixture() -> Callable[..., None]:
    """wait_for(condition, timeout_s=20.0)."""
    return wait_for
