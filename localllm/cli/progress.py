"""Shows the progress objects of pulls and loads on standard error; it knows nothing of where they come from.

A terminal gets bars and spinners, anything else one plain line per step.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from localllm.cli.human import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

WAIT_BEFORE_SPINNER_S = 0.3
# A count from here on is one of bytes: nothing else that is loaded or pulled comes in such numbers.
BYTES_FROM = 1_000_000
_EXPLAINED = {
    "compiling kernels": "compiling kernels for this processor (once)",
    "repacking weights": "repacking weights (once)",
}


def show_progress(updates: Iterable[dict[str, Any]], *, delay: bool = False, transient: bool = False) -> None:
    """Runs through `updates` (`status`, and where known `completed`, `total`, `digest`), showing them.

    `delay` shows nothing of what is over at once; `transient` removes what was shown at the end.
    Raises: whatever `updates` raises, after the display has been closed.
    """
    if not sys.stderr.isatty():
        _print_steps(updates)
        return
    updates = iter(updates)
    if delay:
        with waiting("loading"):
            first = next(updates, None)
        updates = _chain(first, updates)
    with _Bars(transient) as bars:
        for update in updates:
            bars.update(update)


@contextmanager
def waiting(text: str = "") -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal while the body runs, if that takes more than a moment; the body may change its text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    spinner = _LateSpinner(text)
    try:
        yield spinner.update
    finally:
        spinner.stop()


def _chain(first: dict[str, Any] | None, rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    if first is not None:
        yield first
        yield from rest


def _print_steps(updates: Iterable[dict[str, Any]]) -> None:
    shown = None
    for update in updates:
        status, total = str(update.get("status", "")), int(update.get("total") or 0)
        size = f" ({format_bytes(total)})" if total and update.get("digest") else ""
        if status and status != shown:
            print(status + size, file=sys.stderr, flush=True)
            shown = status


class _LateSpinner:
    """A spinner that appears only after a while, so that quick answers neither flicker nor pay for importing it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._stopped = False
        self._shown: Any = None
        self._timer = threading.Timer(WAIT_BEFORE_SPINNER_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        from rich.console import Console

        with self._lock:
            if not self._stopped:
                self._shown = Console(stderr=True).status(self._text, spinner="dots")
                self._shown.start()

    def update(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._shown is not None:
                self._shown.update(text)

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._shown is not None:
                self._shown.stop()


class _Bars:
    """One line per layer with a bar, one per other status with a spinner."""

    def __init__(self, transient: bool) -> None:
        self._progress = _new_progress(transient)
        self._tasks: dict[str, TaskID] = {}
        self._current: TaskID | None = None

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if kind is None:
            self._finish_current()
        self._progress.stop()

    def update(self, update: dict[str, Any]) -> None:
        status, total = str(update.get("status", "")), int(update.get("total") or 0)
        if not status:
            return
        key, sized = str(update.get("digest") or status), bool(update.get("digest")) or total >= BYTES_FROM
        if key not in self._tasks:
            self._finish_current()
            self._tasks[key] = self._progress.add_task(
                _EXPLAINED.get(status, status), total=total or None, sized=sized, counted=total > 0
            )
        task = self._tasks[key]
        self._current = task
        if total:
            completed = int(update.get("completed") or 0)
            self._progress.update(task, total=total, completed=completed, sized=sized, counted=True)

    def _finish_current(self) -> None:
        """A status without a count is over when the next begins."""
        if self._current is None:
            return
        task = next(task for task in self._progress.tasks if task.id == self._current)
        if not task.fields["counted"]:
            self._progress.update(task.id, total=1, completed=1)


def _new_progress(transient: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Counted(ProgressColumn):
        """Percent, amounts and speed of the steps that have a count; nothing for the others."""

        def render(self, task: Task) -> Text:
            if not task.fields["counted"] or task.total is None:
                return Text("")
            if not task.fields["sized"]:
                return Text(f"{task.completed:.0f}/{task.total:.0f}")
            total = format_bytes(int(task.total))
            if task.finished:
                return Text(f"{task.percentage:3.0f}% {total}")
            speed = f" {format_bytes(int(task.speed))}/s" if task.speed else ""
            return Text(f"{task.percentage:3.0f}% {format_bytes(int(task.completed))}/{total}{speed}")

    class CountedBar(BarColumn):
        def render(self, task: Task) -> Any:
            return super().render(task) if task.fields["counted"] else Text("")

    class CountedRemaining(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            return super().render(task) if task.fields["sized"] and not task.finished else Text("")

    return Progress(
        SpinnerColumn("dots", finished_text=" "),
        TextColumn("{task.description}", markup=False),
        CountedBar(bar_width=30),
        Counted(),
        CountedRemaining(compact=True),
        console=Console(stderr=True),
        transient=transient,
    )
