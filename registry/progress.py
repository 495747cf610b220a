"""What long operations report as they go, in the words of Ollama's API; it knows nothing of who listens."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from registry.digests import short_digest
from registry.errors import PullCanceledError

_INTERVAL_S = 0.06


@dataclass(frozen=True)
class Progress:
    """One event. `digest` (`sha256:<hex>`) says which blob `total` and `completed` bytes are of; 0 is unknown."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The object of the API: what is empty or zero is left out."""
        fields = {"digest": self.digest, "total": self.total, "completed": self.completed}
        return {"status": self.status, **{key: value for key, value in fields.items() if value}}


PULLING_MANIFEST = Progress("pulling manifest")
VERIFYING = Progress("verifying sha256 digest")
WRITING_MANIFEST = Progress("writing manifest")
REMOVING_UNUSED = Progress("removing unused layers")
RETRIEVING_MANIFEST = Progress("retrieving manifest")
NO_MANIFEST = Progress("couldn't retrieve manifest")
PUSHING_MANIFEST = Progress("pushing manifest")
SUCCESS = Progress("success")


def pulling(digest: str, total: int, completed: int) -> Progress:
    """The event of one blob on its way."""
    return Progress(f"pulling {short_digest(digest)}", digest, total, completed)


def pushing(digest: str, total: int, completed: int) -> Progress:
    """The event of one blob on its way to a registry."""
    return Progress(f"pushing {short_digest(digest)}", digest, total, completed)


class Pace:
    """Says when the next event is due, so that a fast disk does not drown the listener."""

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0

    def is_due(self) -> bool:
        """True at the first call, then at most once an interval."""
        now = time.monotonic()
        if now < self._next_s:
            return False
        self._next_s = now + self._interval_s
        return True


class Cancellation(threading.Event):
    """A cancel event that also says why: `abandon` it where nobody will come back for what is half done."""

    is_abandoned = False

    def abandon(self) -> None:
        """Cancel, and leave what is half done to the next tidying."""
        self.is_abandoned = True
        self.set()


def check_canceled(cancel: threading.Event) -> None:
    """Raises PullCanceledError once the event is set."""
    if cancel.is_set():
        raise PullCanceledError
