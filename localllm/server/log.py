"""The daemon's log: what goes there, and what never does. It knows nothing of who writes to it.

Neither prompts nor keys are logged. The text of an exception may quote a request, and so may the query of a URL: of
exceptions that nobody foresaw the log holds the kinds and the places, of requests the path.
"""

import logging
import re
import sys

from localllm.tracebacks import PlacesOnly, log_unhandled

QUIET = ("asyncio", "httpx", "httpcore", "uvicorn.error", "multipart", "python_multipart")
"""Libraries that would log each event of the loop, or say again what is said here."""
FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_VALUE = re.compile(r"[(<{\['\"\n]")


def start_log(debug: bool) -> None:
    """Write to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlacesOnly(FORMAT))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").addFilter(without_query)
    logging.getLogger("asyncio").addFilter(without_values)
    log_unhandled(logging.getLogger(__name__))


def without_query(record: logging.LogRecord) -> bool:
    """Cut the query from the path of a line of uvicorn's about a request (client, method, path, version, status)."""
    if isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, *rest = record.args
        record.args = (client, method, str(path).partition("?")[0], *rest)
    return True


def without_values(record: logging.LogRecord) -> bool:
    """Cut a message of asyncio's where the first value is shown: of a task that is its exception, text and all."""
    record.msg, record.args = _VALUE.split(record.getMessage(), 1)[0].rstrip(), None
    return True
