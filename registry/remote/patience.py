"""How long to wait for a server and how often to ask again; it knows nothing of what is asked."""

from __future__ import annotations

import email.utils
import threading
import time
from dataclasses import dataclass

from registry.progress import check_canceled

_MAX_RETRY_AFTER_S = 120.0


@dataclass(frozen=True)
class Patience:
    """`stall_s` without data ends a connection; before try n + 1 (at most `n_tries`) pass `backoff_s` 2^n seconds."""

    stall_s: float = 30.0
    connect_s: float = 20.0
    n_tries: int = 6
    backoff_s: float = 1.0

    def wait(self, attempt: int, cancel: threading.Event, retry_after: str | None = None) -> None:
        """Let the time before the next try pass; `retry_after` is the server's own header.

        Raises:
            PullCanceledError: meanwhile the caller gave up.
        """
        asked_s = _seconds(retry_after)
        cancel.wait(self.backoff_s * 2**attempt if asked_s is None else asked_s)
        check_canceled(cancel)


def _seconds(retry_after: str | None) -> float | None:
    """What a Retry-After header asks for (RFC 9110, 10.2.3), within reason; None for none."""
    if not retry_after:
        return None
    if retry_after.strip().isdecimal():
        return min(float(retry_after), _MAX_RETRY_AFTER_S)
    try:
        left_s = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(left_s, 0.0), _MAX_RETRY_AFTER_S)
