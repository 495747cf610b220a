"""A daemon that answers from a script, the command line run in this process or on a terminal of any width."""

import http.server
import io
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Reply = tuple[int, list[Any] | bytes]


class FakeDaemon:
    """Records requests, and in `gone` the paths of those whose client went away.

    `blobs` are files by digest: bytes that were sent, or paths that were named, unless `shares` is False.
    `pieces` is the answer to generate and chat, `replies` overrides whole endpoints.
    A reply is (status, body): a list is sent as one JSON line per item (a float among them is a pause in seconds).
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.gone: list[str] = []
        self.pieces: list[str] = ["ok"]
        self.thinking: list[str] = []
        self.final: dict[str, Any] = {}
        self.replies: dict[str, Reply | Callable[[Any], Reply]] = {}
        self.blobs: dict[str, bytes | str] = {}
        self.shares = True
        handler = type("Handler", (_Handler,), {"daemon": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def bodies(self, path: str) -> list[Any]:
        """The bodies sent to one endpoint, in order."""
        return [body for _, where, body in self.requests if where == path]

    def reply(self, path: str, body: Any) -> Reply:
        scripted = self.replies.get(path)
        if scripted is not None:
            return scripted(body) if callable(scripted) else scripted
        defaults: dict[str, list[Any]] = {
            "/api/version": [{"version": "9.9.9"}],
            "/api/show": [{"details": {"family": "llama"}, "capabilities": ["completion"], "model_info": {}}],
            "/api/load": [{"status": "success"}],
            "/api/tags": [{"models": []}],
            "/api/ps": [{"models": []}],
        }
        if path in ("/api/generate", "/api/chat"):
            return 200, [
                *self._chunks(path),
                self._chunk(path, "", "") | {"done": True, "done_reason": "stop"} | self.final,
            ]
        return 200, defaults.get(path, [{}])

    def _chunks(self, path: str) -> list[Any]:
        thoughts = [self._chunk(path, piece, "") for piece in self.thinking]
        return thoughts + [self._chunk(path, "", piece) for piece in self.pieces]

    @staticmethod
    def _chunk(path: str, thinking: str, text: str) -> dict[str, Any]:
        extra = {"thinking": thinking} if thinking else {}
        if path == "/api/generate":
            return {"model": "m", "response": text, "done": False} | extra
        return {"model": "m", "message": {"role": "assistant", "content": text} | extra, "done": False}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    daemon: FakeDaemon

    def log_message(self, *arguments: Any) -> None:
        pass

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        is_blob = self.path.startswith("/api/blobs/")
        body = json.loads(raw) if raw and not is_blob else None
        self.daemon.requests.append((self.command, self.path, body))
        status, content = self._blob(raw) if is_blob else self.daemon.reply(self.path, body)
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            self._send(content)
        except OSError:
            self.daemon.gone.append(self.path)

    def _blob(self, raw: bytes) -> Reply:
        digest = self.path.removeprefix("/api/blobs/")
        if self.command == "HEAD":
            return (200 if digest in self.daemon.blobs else 404), b""
        named = self.headers.get("X-Localllm-File")
        if named and not self.daemon.shares:
            return 400, [{"error": "cannot be shared"}]
        self.daemon.blobs[digest] = named or raw
        return (200, [{"status": "success"}]) if named else (201, b"")

    def _send(self, content: list[Any] | bytes) -> None:
        if isinstance(content, bytes):
            self.wfile.write(content)
            return
        for item in content:
            if isinstance(item, float):
                time.sleep(item)
            else:
                self.wfile.write(json.dumps(item).encode() + b"\n")
                self.wfile.flush()

    do_GET = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815


class Terminal:
    """The command line on a pseudo-terminal, read back through a terminal emulator."""

    def __init__(self, arguments: list[str], columns: int, rows: int = 10) -> None:
        import pyte

        self.raw = b""
        self.columns = columns
        self.screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.99)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = os.openpty()
        _set_size(slave, columns, rows)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "localllm", *arguments],
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        """Reads until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.text()
            if not self._read():
                assert condition(), self.text()
                return

    def wait_for_text(self, text: str, timeout_s: float = 20) -> None:
        """Reads until the screen holds the text, rows joined."""
        self.wait_for(lambda: text in "".join(self.rows()), timeout_s)

    def wait_for_exit(self, timeout_s: float = 20) -> int:
        deadline = time.monotonic() + timeout_s
        while self._read():
            assert time.monotonic() < deadline, self.text()
        return self.process.wait(timeout_s)

    def rows(self) -> list[str]:
        """All rows, those scrolled off included, without trailing blanks."""
        gone = ["".join(line[x].data for x in range(self.columns)) for line in self.screen.history.top]
        return [row.rstrip() for row in [*gone, *self.screen.display]]

    def text(self) -> str:
        return "\n".join(self.rows())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> bool:
        """Takes what has arrived; False at the end."""
        if not select.select([self._master], [], [], 0.02)[0]:
            return True
        try:
            received = os.read(self._master, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.raw += received
        self._stream.feed(received)
        return bool(received)


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("LOCALLLM_", "OLLAMA_")) or name in ("COLUMNS", "LINES", "NO_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALLLM_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    fake = FakeDaemon()
    monkeypatch.setenv("LOCALLLM_HOST", f"127.0.0.1:{fake.port}")
    yield fake
    fake.stop()


class Result:
    """What one run of the command line gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class _StandardInput(io.TextIOWrapper):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs the command line in this process; standard input, output and error are no terminals."""

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        from localllm.cli import app

        monkeypatch.setattr(sys, "stdin", _StandardInput(stdin))
        code = app.run(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Runs the command line on a pseudo-terminal: `terminal(columns, *arguments)`."""
    opened: list[Terminal] = []

    def start(columns: int, *arguments: str) -> Terminal:
        opened.append(Terminal(list(arguments), columns))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def run_process() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs the command line in a process of its own."""

    def run(*arguments: str, stdin: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "localllm", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, timeout=60, **options)

    return run
