"""What the log says of exceptions and of requests."""

import asyncio
import gc
import io
import logging
import sys
from collections.abc import Iterator

import pytest

from localllm.server.log import FORMAT, start_log, without_query
from localllm.tracebacks import PlacesOnly


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
