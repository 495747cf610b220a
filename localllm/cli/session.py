"""What a run or a chat has been told so far, and the request bodies that follow from it; it knows no terminal."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from localllm.cli.progress import show_progress, waiting
from localllm.client import Client, ClientError, EndpointMissingError
from localllm.errors import LocalLLMError

T = TypeVar("T")
Chunks = Iterator[dict[str, Any]]

THINK_LEVELS = ("high", "medium", "low", "max")
FORMAT_HINT = "give `json`, a JSON Schema object, or a file of one"


@dataclass
class Session:
    """The model, the settings of the session and, for a chat, its messages, and how many of them the last prompt left
    out."""

    model: str
    insecure: bool = False
    word_wrap: bool = True
    verbose: bool = False
    hide_thinking: bool = False
    keep_alive: str | float | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    n_left_out: int = 0
    shortened_ctx: int = 0

    def common_body(self) -> dict[str, Any]:
        """The fields that every request of the session carries; unset ones are left out."""
        optional = {"format": self.format, "think": self.think, "keep_alive": self.keep_alive}
        body = {"model": self.model, "options": self.options}
        return body | {name: value for name, value in optional.items() if value is not None}

    def generate_body(self, prompt: str) -> dict[str, Any]:
        """The body of a single completion."""
        return {**self.common_body(), "prompt": prompt}

    def chat_body(self) -> dict[str, Any]:
        """The body of the next turn of the chat."""
        return {**self.common_body(), "messages": self.messages}

    def load_body(self) -> dict[str, Any]:
        """The body that loads the model with the session's options."""
        body = self.common_body()
        return {name: body[name] for name in ("model", "options", "keep_alive") if name in body}


def parse_format(text: str) -> str | dict[str, Any] | None:
    """`json` or another plain word as it is, a JSON Schema, or a file of one, as an object, None for an empty text.

    Raises: LocalLLMError for a text, or a file, that should be an object and is none.
    """
    text = text.strip()
    is_file = text != "json" and not text.startswith("{") and os.path.isfile(text)
    if not is_file and not text.startswith("{"):
        return text or None
    where = f" in {text}" if is_file else ""
    try:
        schema = json.loads(Path(text).read_bytes() if is_file else text)
    except (ValueError, OSError) as error:
        raise LocalLLMError(f"invalid format{where}: {error}", hint=FORMAT_HINT) from error
    if not isinstance(schema, dict):
        raise LocalLLMError(f"invalid format{where}: expected an object", hint=FORMAT_HINT)
    return schema


def parse_think(text: str) -> bool | str:
    """The value of `--think`. Raises: LocalLLMError for anything but a truth value or a level."""
    if text in ("true", "false"):
        return text == "true"
    if text in THINK_LEVELS:
        return text
    raise LocalLLMError(f'invalid value for --think: "{text}" (must be true, false, high, medium, low, or max)')


def with_model(client: Client, session: Session, action: Callable[[], T]) -> T:
    """What `action` returns; if the server lacks the session's model, pulls it and runs `action` once more."""
    try:
        return action()
    except ClientError as error:
        if error.status != 404 or isinstance(error, EndpointMissingError):
            raise
    show_progress(client.pull(session.model, insecure=session.insecure))
    return action()


def load(client: Client, session: Session) -> None:
    """Brings the model into memory, showing what takes time. Raises: ClientError, with status 404 if it is missing."""
    try:
        show_progress(client.load(session.load_body()), delay=True, transient=True)
    except EndpointMissingError:
        # Not our server: an empty prompt loads the model there, without progress.
        with waiting():
            for _ in client.generate(session.load_body() | {"prompt": ""}):
                pass


def begin_answer(ask: Callable[[dict[str, Any]], Chunks], body: dict[str, Any]) -> Chunks:
    """The chunks of the answer that `ask` gets for `body`, once the first of them is there.

    Until then a terminal shows a spinner, and how much of a long prompt has been read.
    """
    chunks = ask(body | {"progress": True} if sys.stderr.isatty() else body)
    with waiting() as show:
        while progress := (first := next(chunks)).get("progress"):
            show(f"reading the prompt: {progress['processed']}/{progress['total']} tokens")
    return chain([first], chunks)
