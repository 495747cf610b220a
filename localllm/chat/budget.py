"""What one rendering may cost; it knows nothing of templates.

Templates come with downloaded models, and a runner has one process: a template that loops for ever, or that
builds a string of gigabytes, must end as an error of its own request. Whatever can repeat or grow is charged here.
"""

from __future__ import annotations

import time
from typing import Any

from localllm.errors import TemplateError

MAX_STEPS = 1_000_000
MAX_CHARS = 64 * 1024 * 1024
MAX_SECONDS = 5.0
# What an element of a list costs beside its text, in characters.
ELEMENT_CHARS = 256


class LimitError(TemplateError):
    """The template costs too much; there is no point in trying it again."""


class Budget:
    """Counts steps (loop rounds, macro calls), characters produced and time; spending too much raises LimitError."""

    def __init__(
        self, max_steps: int = MAX_STEPS, max_chars: int = MAX_CHARS, max_seconds: float = MAX_SECONDS
    ) -> None:
        self._limits = (max_steps, max_chars, max_seconds)
        self.restart()

    def restart(self) -> None:
        self._steps, self._chars, seconds = self._limits
        self._deadline = time.monotonic() + seconds

    def step(self, n_chars: int = 0) -> bool:
        """One more round, which writes `n_chars` of constant text. Always True, so that it can stand in a condition."""
        self._steps -= 1
        if self._steps < 0:
            raise LimitError(f"the chat template ran more than {self._limits[0]} loop rounds")
        if time.monotonic() > self._deadline:
            raise LimitError(f"the chat template ran longer than {self._limits[2]:g} seconds")
        self.spend(n_chars)
        return True

    def spend(self, n_chars: int) -> None:
        """Characters that are about to be produced."""
        self._chars -= max(n_chars, 0)
        if self._chars < 0:
            raise LimitError(f"the chat template produced more than {self._limits[1]} characters")

    def spend_value(self, value: Any) -> None:
        """The text of a value that is about to be printed; shared parts count each time they occur."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, dict):
            for key, item in value.items():
                self._spend_element(key)
                self._spend_element(item)
        elif isinstance(value, list | tuple | set | frozenset):
            for item in value:
                self._spend_element(item)

    def _spend_element(self, value: Any) -> None:
        self.spend(ELEMENT_CHARS)
        self.spend_value(value)
