"""Checks of the number of arguments, in the wording users of Ollama know; it knows nothing of the commands."""

import os
from collections.abc import Sequence
from pathlib import Path

from localllm.errors import LocalLLMError


class UsageError(LocalLLMError):
    """The command line cannot be understood."""


def exactly(count: int, arguments: Sequence[str] | None) -> list[str]:
    """The arguments. Raises: UsageError unless there are `count` of them."""
    found = list(arguments or [])
    if len(found) != count:
        raise UsageError(f"accepts {count} arg(s), received {len(found)}")
    return found


def at_least_one(arguments: Sequence[str] | None) -> list[str]:
    """The arguments. Raises: UsageError when there is none."""
    found = list(arguments or [])
    if not found:
        raise UsageError("requires at least 1 arg(s), only received 0")
    return found


def model_reference(text: str) -> str:
    """A model's name as it is; the path of a GGUF file, with or without `file:`, as `file:` and the absolute path.

    The daemon runs in another folder, so that a relative path means nothing to it.
    """
    location = text.removeprefix("file:")
    is_path = location != text or os.sep in text or Path(text).is_file()
    if not is_path or not location.lower().endswith(".gguf") or "://" in text or location.startswith("//"):
        return text
    path = Path(location).expanduser()
    return f"file:{path.absolute()}" if location != text or path.is_file() else text
