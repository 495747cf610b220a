"""Messages on their way to the daemon, written by a thread of its own; it does not know what they mean."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import BinaryIO

from localllm.frames import encode_frame
from localllm.messages import Message

logger = logging.getLogger(__name__)


class Outbox:
    """Sends messages in order without ever making the sender wait for the reader of the pipe."""

    def __init__(self, stream: BinaryIO, exit_process: Callable[[int], None] = os._exit) -> None:
        self._stream = stream
        self._exit_process = exit_process
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="outbox", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue a message; may be called from any thread."""
        self._queue.put(message)

    def close(self) -> None:
        """Write what is queued, and stop."""
        self._queue.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                self._stream.write(encode_frame(message))
                if self._queue.empty():
                    self._stream.flush()
            self._stream.flush()
        except OSError:
            self._exit_process(0)  # nobody reads any more: the daemon is gone
        except Exception:
            # A message that cannot be written would leave its request, and all after it, without an answer.
            logger.critical("a message cannot be written", exc_info=True)
            self._exit_process(1)
