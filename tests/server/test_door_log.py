"""What the log says of exceptions and of requests."""

import logging
import sys

from localllm.server.log import without_query
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
