"""How exceptions are logged: as kinds and places. Their texts may quote a request. It knows nothing of who logs."""

import logging
import traceback
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
