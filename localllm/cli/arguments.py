"""Checks of the number of arguments, in the wording users of Ollama know; it knows nothing of the commands."""

from collections.abc import Sequence

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
