"""How exceptions are logged: as kinds and places. Their texts may quote a request. It knows nothing of who logs."""

import logging
import sys
import threading
import traceback
from functools import partial
from types import TracebackType


class PlacesOnly(logging.Formatter):
    """Formats an exception as the kinds and places of its chain, without any text."""

    def formatException(self, ei: object) -> str:  # noqa: N802
        """The lines of the innermost cause first."""
        assert isinstance(ei, tuple)
        _, error, trace = ei
        return "".join(_lines(error, trace)).rstrip()


def _lines(error: BaseException | None, trace: TracebackType | None) -> list[str]:
    if error is None:
        return []
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = _lines(inner, inner.__traceback__) if inner is not None else []
    return [*before, *traceback.format_tb(trace), f"{type(error).__module__}.{type(error).__qualname__}\n"]


def log_unhandled(logger: logging.Logger) -> None:
    """Log from now on what ends a thread, or is raised where nobody can catch it; Python itself would print texts."""
    threading.excepthook = partial(_log_thread, logger)
    sys.unraisablehook = partial(_log_unraisable, logger)


def _log_thread(logger: logging.Logger, args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        error = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
        logger.critical("thread %s ended", args.thread and args.thread.name, exc_info=error)


def _log_unraisable(logger: logging.Logger, args: "sys.UnraisableHookArgs") -> None:
    # What an object shows of itself may be a text; its name is the code's.
    place = getattr(args.object, "__qualname__", type(args.object).__qualname__)
    error = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    logger.error("exception ignored in %s", place, exc_info=error)
