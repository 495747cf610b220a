"""What the log says of exceptions and of requests."""

import asyncio
import gc
import io
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localllm.server.log import FORMAT, start_log, without_query
from localllm.tracebacks import PlacesOnly

ROOT = Path(__file__).parents[2]


def test_exceptions_are_kinds_and_places() -> None:
    try:
        try:
            raise KeyError("secretword")
        except KeyError as inner:
            raise ValueError("secretword") from inner
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    text = PlacesOnly().format(record)
    lines = text.splitlines()
    assert lines[0] == "failed" and lines[-1] == "builtins.ValueError" and "builtins.KeyError" in lines
    assert "test_door_log.py" in text


def test_queries_are_cut() -> None:
    args = ("1.2.3.4:5", "GET", "/x?key=secret", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 1, '%s - "%s %s HTTP/%s" %d', args, None)
    assert without_query(record) and record.getMessage() == '1.2.3.4:5 - "GET /x HTTP/1.1" 200'


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the daemon's log of asyncio says."""
    monkeypatch.setattr("localllm.server.log.QUIET", ())
    loggers = {name: logging.getLogger(name) for name in ("asyncio", "uvicorn.access")}
    for logger in loggers.values():
        monkeypatch.setattr(logger, "filters", [])
    for module, hook in ((threading, "excepthook"), (sys, "unraisablehook")):
        monkeypatch.setattr(module, hook, getattr(module, hook))
    start_log(debug=False)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(PlacesOnly(FORMAT))
    loggers["asyncio"].addHandler(handler)
    yield written
    loggers["asyncio"].removeHandler(handler)


def test_nobody_waited_for_an_exception(log: io.StringIO) -> None:
    async def failing(prompt: str) -> None:
        raise ValueError(prompt)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task, future = loop.create_task(failing("secretword")), loop.create_future()
        future.set_exception(KeyError("secretword"))
        loop.call_soon(int, "secretword")
        await asyncio.wait((task, future))

    asyncio.run(main())
    gc.collect()
    text = log.getvalue()
    assert "Task exception was never retrieved\n" in text and "Future exception was never retrieved\n" in text
    assert "Exception in callback int\n" in text
    assert text.count("builtins.ValueError") == 2 and "test_door_log.py" in text and "builtins.KeyError" in text
    assert "secretword" not in text


@pytest.mark.parametrize("start_log", ["localllm.server.log", "localllm.runner.__main__"])
def test_what_nobody_can_catch(start_log: str) -> None:
    script = (
        "import threading\n"
        f"from {start_log} import start_log\n"
        f"start_log({'False' if 'server' in start_log else ''})\n"
        "thread = threading.Thread(target=int, args=('secretword',))\n"
        "thread.start(); thread.join()\n"
        "class Secret:\n"
        "    def __repr__(self): return 'secretword'\n"
        "    def __del__(self): raise KeyError('secretword')\n"
        "Secret()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "thread Thread-1 (int) ended\n" in done.stderr and "exception ignored in Secret.__del__\n" in done.stderr
    assert "builtins.ValueError" in done.stderr and "builtins.KeyError" in done.stderr
    assert "secretword" not in done.stderr.replace("'secretword'", "")
