"""The process: frames, threads, signals, ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import pytest

from localllm import options as model_options
from localllm.errors import GGUFError, UnsupportedModelError
from localllm.frames import encode_frame, read_frame
from localllm.messages import (
    Cancel,
    Chunk,
    Detokenize,
    Done,
    Error,
    Failed,
    Figures,
    GenerateRequest,
    LoadRequest,
    Message,
    ModelSpec,
    Prefill,
    Progress,
    Ready,
    Rendered,
    Shutdown,
    Text,
    Tokenize,
    Tokens,
)
from localllm.runner.batch import Batch
from localllm.runner.model import Reporter, choose_n_ctx, choose_n_threads, load_model
from localllm.runner.outbox import Outbox
from localllm.runner.service import Service

ROOT = Path(__file__).parents[2]
SPEC = ModelSpec("m", "digest", ["m.gguf"], "digest")


def request(identifier: str, prompt: str = "<|assistant|>", **options: Any) -> GenerateRequest:
    resolved = model_options.resolve({}, {"temperature": 0, **options})
    return GenerateRequest(identifier, "generate", prompt, raw=True, options=resolved)


class Pipes:
    """A service in threads of this process, and the daemon's ends of its pipes."""

    def __init__(self, load: Callable[..., Any]) -> None:
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        self.to_runner, self.from_runner = os.fdopen(in_write, "wb"), os.fdopen(out_read, "rb")
        self.exits: list[int] = []
        self.figures: list[Figures] = []
        self.stdin, self.stdout = os.fdopen(in_read, "rb"), os.fdopen(out_write, "wb")
        self.outbox = Outbox(self.stdout)
        service = Service(self.outbox, load, self.exits.append)
        self.thread = threading.Thread(target=service.serve, args=(self.stdin,))
        self.thread.start()

    def close(self) -> None:
        self.to_runner.close()
        self.thread.join(5)
        self.outbox.close()
        for stream in (self.stdin, self.stdout, self.from_runner):
            stream.close()

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.to_runner.write(encode_frame(message))
        self.to_runner.flush()

    def receive(self) -> Message:
        """The next message that is no Prefill and no Figures: the latter are collected in `figures`."""
        while isinstance(message := read_frame(self.from_runner), Figures | Prefill):
            if isinstance(message, Figures):
                self.figures.append(message)
        assert message is not None
        return message

    def exits_by(self, timeout_s: float) -> list[int]:
        """The statuses that the process would have ended with, once there is one or the time is over."""
        deadline = time.monotonic() + timeout_s
        while not self.exits and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.exits

    def answer(self) -> list[Message]:
        """The messages up to the next end of a request."""
        messages = [self.receive()]
        while isinstance(messages[-1], Chunk):
            messages.append(self.receive())
        return messages


@pytest.fixture
def pipes(script_runner: Any) -> Iterator[Callable[..., Pipes]]:
    made: list[Pipes] = []

    def make(load: Callable[..., Any] | None = None, **script: Any) -> Pipes:
        model = script_runner(**script).model
        made.append(Pipes(load or (lambda request, outbox: model)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_conversation_over_the_pipe(pipes: Any) -> None:
    runner = pipes()
    runner.send(request("0"), LoadRequest(SPEC))  # a request may come before the model is there
    assert runner.receive() == Ready(4096)
    messages = runner.answer()
    assert [m.text for m in messages[:-1]] == ["ab", "cd", "ef"]
    assert isinstance(messages[-1], Done)
    runner.send(Tokenize("1", "ab"), Detokenize("2", [64, 65]), request("3"))
    tokens, text = runner.receive(), runner.receive()
    assert isinstance(tokens, Tokens) and len(tokens.tokens) == 2
    assert isinstance(text, Text) and len(text.text) == 2
    assert isinstance(runner.answer()[-1], Done)
    runner.send(Detokenize("4", [10**6]), request("5"))
    error = runner.receive()
    assert isinstance(error, Error) and (error.id, error.kind) == ("4", "RequestError")
    assert isinstance(runner.answer()[-1], Done)
    runner.send(Shutdown())
    runner.thread.join(5)
    assert not runner.thread.is_alive()


def test_figures_follow_the_end_of_the_work(pipes: Any) -> None:
    runner = pipes()
    runner.send(LoadRequest(SPEC), request("0"))
    assert isinstance(runner.receive(), Ready)
    (*_, done) = runner.answer()
    figures = read_frame(runner.from_runner)
    assert isinstance(done, Done) and isinstance(figures, Figures)
    counted = sum(message.counts.generated_tokens for message in (*runner.figures, figures))
    assert counted == done.stats.eval_count
    assert figures.levels.sequences_running == 0 and figures.levels.kv_cache_pages == 4096


def test_cancel_over_the_pipe(pipes: Any) -> None:
    runner = pipes(loop=True)
    runner.send(LoadRequest(SPEC), request("long"))
    assert isinstance(runner.receive(), Ready)
    assert runner.receive().id == "long"
    runner.send(Cancel("long"), request("next", num_predict=2), Cancel("next"), request("last", num_predict=2))
    seen = runner.receive()
    while getattr(seen, "id", None) != "last":
        assert not isinstance(seen, Done) or seen.id == "next"
        seen = runner.receive()
    assert isinstance(runner.answer()[-1], Done)


def test_a_model_that_cannot_be_loaded(pipes: Any) -> None:
    def load(request: LoadRequest, outbox: Outbox) -> Any:
        outbox.send(Progress("reading model"))
        raise GGUFError("not a GGUF", hint="pull it again")

    runner = pipes(load)
    runner.send(LoadRequest(SPEC))
    assert runner.receive() == Progress("reading model")
    assert runner.receive() == Failed("not a GGUF", "GGUFError", "pull it again")
    assert runner.exits_by(5) == [1]


def test_a_step_loop_that_fails_ends_the_process(pipes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: Batch) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Batch, "step", fail)
    runner = pipes()
    runner.send(LoadRequest(SPEC), request("0"))
    assert isinstance(runner.receive(), Ready)
    assert runner.exits_by(5) == [1]


def test_every_message_is_answered(pipes: Any) -> None:
    runner = pipes()
    strange = [Rendered("a", "text"), Tokens("b", [1]), Done("c")]
    runner.send(LoadRequest(SPEC), *strange)
    assert isinstance(runner.receive(), Ready)
    for message in strange:
        told = f'a message of type "{message.type}" is not for a runner'
        assert runner.receive() == Error(message.id, told, "RunnerError")


def test_a_message_that_cannot_be_written_ends_the_process() -> None:
    stream, exits = io.BytesIO(), list[int]()
    outbox = Outbox(stream, exits.append)
    outbox.send(Text("1", object()))  # type: ignore[arg-type]
    outbox.close()
    assert exits == [1] and not stream.getvalue()


def test_exceptions_are_logged_without_their_texts() -> None:
    script = (
        "import logging, threading\n"
        "from localllm.runner.__main__ import start_log\n"
        "start_log()\n"
        "try: int('secretword')\n"
        "except ValueError: logging.getLogger('x').exception('failed')\n"
        "thread = threading.Thread(target=int, args=('secretword',))\n"
        "thread.start(); thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.count("builtins.ValueError") == 2
    assert "ERROR x: failed" in done.stderr and "CRITICAL" in done.stderr and "secretword" not in done.stderr


def test_progress_is_thinned_out_but_never_loses_an_end() -> None:
    sent: list[Any] = []
    report = Reporter(sent.append)
    for status in ("compiling kernels", "repacking weights"):
        for completed in range(1001):
            report(status, completed, 1000)
    assert [(m.status, m.completed) for m in sent if m.completed in (0, 1000)] == [
        ("compiling kernels", 0),
        ("compiling kernels", 1000),
        ("repacking weights", 0),
        ("repacking weights", 1000),
    ]
    assert len(sent) < 20


@pytest.mark.parametrize(
    ("num_ctx", "n_ctx_train", "n_ctx"),
    [(0, 8192, 4096), (0, 2048, 2048), (9000, 8192, 8192), (64, 8192, 64), (99, 0, 99)],
)
def test_the_context_in_force(num_ctx: int, n_ctx_train: int, n_ctx: int) -> None:
    assert choose_n_ctx(num_ctx, n_ctx_train) == n_ctx


def test_no_more_threads_than_processors() -> None:
    n_processors = os.cpu_count() or 1
    assert [choose_n_threads(n) for n in (1, 10**6)] == [1, n_processors]
    assert 1 <= choose_n_threads(0) <= n_processors


@pytest.fixture
def start() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def make() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "localllm.runner"]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def streams(process: subprocess.Popen[bytes]) -> tuple[BinaryIO, BinaryIO]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout  # type: ignore[return-value]


def load_request(model: Path, cache: Path) -> LoadRequest:
    spec = ModelSpec("m", "digest", [str(model)], "digest")
    return LoadRequest(spec, num_ctx=256, num_thread=1, cache_dir=str(cache))


def send(process: subprocess.Popen[bytes], message: Message) -> None:
    stdin, _ = streams(process)
    stdin.write(encode_frame(message))
    stdin.flush()


def until(process: subprocess.Popen[bytes], kind: type[Message]) -> list[Message]:
    messages: list[Message] = []
    while not messages or not isinstance(messages[-1], kind):
        message = read_frame(streams(process)[1])
        assert message is not None, messages
        messages.append(message)
    return messages


def test_an_unknown_architecture_comes_before_its_unknown_tokenizer(tiny_models: ModuleType, tmp_path: Path) -> None:
    kvs = [("general.architecture", tiny_models.STRING, "foo"), ("tokenizer.ggml.model", tiny_models.STRING, "bar")]
    tiny_models.write_gguf(tmp_path / "m.gguf", kvs, [])
    with pytest.raises(UnsupportedModelError, match=r'unsupported architecture: "foo" \(supported: bert, '):
        load_model(load_request(tmp_path / "m.gguf", tmp_path), Outbox(io.BytesIO()))


def test_a_file_that_is_no_model(start: Any, tmp_path: Path) -> None:
    process, path = start(), tmp_path / "no.gguf"
    path.write_bytes(b"not a model")
    send(process, load_request(path, tmp_path))
    failed = until(process, Failed)[-1]
    assert isinstance(failed, Failed) and failed.kind == "GGUFError"
    assert process.wait(10) == 1


def test_interrupts_are_ignored_and_the_end_of_stdin_ends_it(start: Any, tmp_path: Path) -> None:
    process, path = start(), tmp_path / "no.gguf"
    send(process, Tokenize("1", "x"))
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    streams(process)[0].close()
    assert process.wait(10) == 0
    assert not path.exists()


def test_sigterm_ends_it(start: Any) -> None:
    process = start()
    time.sleep(0.2)
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM


@pytest.mark.integration
def test_a_real_model_from_load_to_answer(start: Any, tmp_path: Path, tiny_models: ModuleType) -> None:
    path = tmp_path / "script.gguf"
    tiny_models.script_model(path, ["ab", "cd", "ef"])
    process = start()
    send(process, load_request(path, tmp_path / "cache"))
    ready = until(process, Ready)[-1]
    assert isinstance(ready, Ready) and ready.n_ctx == 256 and ready.memory_bytes > 0
    send(process, request("1"))
    messages = until(process, Done)
    assert "".join(m.text for m in messages if isinstance(m, Chunk)) == "abcdef"
    send(process, request("2", "x" * 40 + "<|assistant|>"))
    assert "".join(m.text for m in until(process, Done) if isinstance(m, Chunk)) == "abcdef"
    send(process, Shutdown())
    assert process.wait(10) == 0
