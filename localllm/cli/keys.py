"""`localllm keys`: the API keys that a server accepts. It asks no server: they share a file."""

import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from localllm import env
from localllm.cli.arguments import UsageError, exactly
from localllm.cli.columns import format_columns
from localllm.cli.human import format_time
from localllm.errors import LocalLLMError
from localllm.keys import StoredKey, add_key, read_keys, remove_key

HEADER = ("NAME", "CREATED")

USAGE = "add NAME | list | rm NAME"
VARIABLES = ("API_KEYS", "API_KEY", "STATE_DIR")


def command(
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    file: Annotated[str, typer.Option("--file", help="The keys file (default: the server's own).")] = "",
) -> None:
    """Make a key that a server accepts, list the names of all, remove one.

    A server asks for keys once there are any. Only their hashes are kept: a key is shown once, when it is made.
    """
    action, *names = words or ["list"]
    path = Path(file).expanduser().absolute() if file else env.keys_path()
    actions: dict[str, Callable[..., None]] = {"add": _add, "list": _list, "rm": _remove}
    if action not in actions:
        raise UsageError(f'unknown action "{action}"', hint="`localllm keys --help` shows the usage")
    exactly(0 if action == "list" else 1, names)
    try:
        actions[action](path, *names)
    except OSError as error:
        raise LocalLLMError(f"the keys file {path} cannot be written: {error.strerror}") from error


def _add(path: Path, name: str) -> None:
    print(add_key(path, name))
    print("Keep it: only its hash is stored. A server of this user asks for it from now on;", file=sys.stderr)
    print("commands send what LOCALLLM_API_KEY says.", file=sys.stderr)


def _list(path: Path) -> None:
    now = datetime.now(timezone.utc)
    print(format_columns([HEADER, *(_row(key, now) for key in read_keys(path))]), end="")


def _row(key: StoredKey, now: datetime) -> tuple[str, str]:
    return key.name, format_time(datetime.fromisoformat(key.created), now)


def _remove(path: Path, name: str) -> None:
    left = remove_key(path, name)
    print(f"removed '{name}'")
    if not left:
        print("No key is left. A server that runs refuses everybody; a new one asks for none.", file=sys.stderr)
