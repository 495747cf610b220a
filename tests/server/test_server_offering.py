"""`localllm registry serve` as a process: the token, files over plain connections and TLS, clients that stall."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.names import parse_name
from registry.store import Store

ROOT = Path(__file__).parents[2]
TLS = ROOT / "tests/fixtures/tls"
ADDRESS = "offers the models of"
Start = Callable[..., Any]


class Offering:
    """The process, where it answers, and its token."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stderr is not None and process.stdout is not None
        self.log = ""
        while ADDRESS not in self.log:
            line = process.stderr.readline()
            assert line, self.log
            self.log += line
        self.url = self.log.rpartition(" at ")[2].strip()
        self.token = process.stdout.readline().strip() if "new token" in self.log else ""

    def client(self, **settings: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, trust_env=False, **settings)


@pytest.fixture
def environment(store: Store, tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "LOCALLLM_"))}
    state = {"LOCALLLM_MODELS": str(store.root), "LOCALLLM_STATE_DIR": str(tmp_path / "state")}
    return {**clean, **state, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def offer(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """offer(*arguments, **variables): the process, once it answers."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> Offering:
        command = [sys.executable, "-m", "localllm", "registry", "serve", "--port", "0", *arguments]
        process = subprocess.Popen(
            command, env={**environment, **variables}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        processes.append(process)
        return Offering(process)

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def blob_url(store: Store) -> tuple[str, bytes]:
    model = store.resolve(parse_name("m"))
    return f"/v2/library/m/blobs/sha256:{model.model_digest}", model.model_paths[0].read_bytes()


def test_with_a_token_that_is_made_once(offer: Start, add_model: Any, store: Store) -> None:
    add_model()
    offering = offer()
    assert len(offering.token) > 40
    url, content = blob_url(store)
    with offering.client() as client:
        assert client.get("/v2/").json() == {}
        assert client.get(url).content == content
        assert client.get(url, headers={"range": "bytes=7-99"}).content == content[7:100]
        assert client.get(url).content == content  # the connection goes on after bytes that passed it by
        assert client.get(url, headers={"authorization": ""}).status_code == 401
        assert client.get("/v2/", headers={"host": "evil.example"}).status_code == 403
    offering.process.send_signal(signal.SIGTERM)
    _, log = offering.process.communicate(timeout=20)
    assert offering.process.returncode == 0 and offering.token not in offering.log + log
    again = offer()
    assert again.token == "" and "registry-token" in again.log
    again.token = offering.token
    with again.client() as client:
        assert client.get("/v2/").status_code == 200


def test_over_tls(offer: Start, add_model: Any, store: Store) -> None:
    add_model()
    offering = offer("--tls-cert", str(TLS / "localhost.crt"), "--tls-key", str(TLS / "localhost.key"))
    assert offering.url.startswith("https:")
    url, content = blob_url(store)
    with offering.client(verify=False) as client:
        assert client.get(url).content == content


def test_many_clients_at_once_and_some_that_take_nothing(offer: Start, add_model: Any, store: Store) -> None:
    add_model()
    big, _ = store.blobs.put(os.urandom(1 << 20) * 24)
    raw = store.manifest(parse_name("m")).raw.replace(
        b'"layers":[', f'"layers":[{{"mediaType":"x","digest":"{big}","size":{24 << 20}}},'.encode()
    )
    store.write_manifest(parse_name("big"), raw)
    offering = offer("--no-token", LOCALLLM_CLIENT_TIMEOUT="1s")
    path, content = f"/v2/library/big/blobs/{big}", store.blobs.read(big, 1 << 30)
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    address = ("127.0.0.1", httpx.URL(offering.url).port)
    stalled = [socket.create_connection(address) for _ in range(12)]
    for connection in stalled:
        connection.sendall(request)
    with offering.client() as client, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: client.get(path).content == content, range(16)))
    time.sleep(2.5)  # longer than the server waits for clients that take nothing
    for connection in stalled:
        connection.settimeout(20)
        with connection, contextlib.suppress(ConnectionResetError):
            received = 0
            while part := connection.recv(1 << 20):
                received += len(part)
            assert received < len(content)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", "--host", "0.0.0.0", "--no-token"], "would let everybody"),
        (["serve", "--tls-cert", str(TLS / "localhost.crt")], "its key (--tls-key) is missing"),
        (["serve", "--port", "99999"], "invalid port"),
        (["serve", "--host", "192.0.2.1", "--no-token", "--insecure"], "cannot listen on 192.0.2.1"),
        (["serve", "--token-file", str(TLS)], "cannot be used"),
        (["list"], "unknown action"),
        ([], "accepts 1 arg(s), received 0"),
    ],
)
def test_what_is_refused(environment: dict[str, str], arguments: list[str], text: str) -> None:
    command = [sys.executable, "-m", "localllm", "registry", *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and text in ended.stderr and "Traceback" not in ended.stderr
