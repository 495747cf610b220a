"""The terminal itself: its width, and what it does with keys; it knows nothing of what is read or printed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_FALLBACK_COLUMNS = 80


def terminal_columns(stream: TextIO) -> int:
    """The width of the terminal behind `stream` at this moment."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _FALLBACK_COLUMNS
    except (OSError, ValueError):
        return _FALLBACK_COLUMNS


@contextmanager
def quiet_terminal() -> Iterator[None]:
    """While the body runs, keys typed between two input lines are not echoed and reach the next line as they are.

    Without it, the terminal itself would turn an Enter typed during an answer into the code of Ctrl-J.
    Ctrl-C stays a signal.
    """
    saved = _silence()
    try:
        yield
    finally:
        if saved is not None:
            _restore(saved)


if sys.platform == "win32":

    def _silence() -> None:
        return None

    def _restore(saved: Any) -> None:
        pass

else:
    import termios

    def _silence() -> list[Any] | None:
        """The terminal's attributes before, None where standard input is no terminal."""
        try:
            saved = termios.tcgetattr(sys.stdin)
        except (termios.error, ValueError):
            return None
        input_flags, local_flags = saved[0] & ~termios.ICRNL, saved[3] & ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(sys.stdin, termios.TCSANOW, [input_flags, *saved[1:3], local_flags, *saved[4:]])
        return saved

    def _restore(saved: list[Any]) -> None:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, saved)
