"""`localllm run MODEL [PROMPT...]`: one answer to arguments and standard input, or a chat on a terminal.

Standard input that is no terminal is text, whole and unchanged, and goes before the arguments.
"""

import json
import sys
from typing import Annotated, Any

import typer

from localllm.cli.answer import AnswerPrinter, notes_on_losses, print_answer, print_notes, print_timings
from localllm.cli.app import PlainCommand
from localllm.cli.arguments import UsageError, at_least_one, model_reference
from localllm.cli.daemon import connect
from localllm.cli.session import Session, begin_answer, load, parse_format, parse_think, with_model
from localllm.cli.terminal import quiet_terminal
from localllm.client import Client, ClientError
from localllm.durations import parse_go_duration
from localllm.errors import LocalLLMError

USAGE = "MODEL [PROMPT]..."
VARIABLES = ("HOST", "NOHISTORY", "EDITOR", "STATE_DIR")


class RunCommand(PlainCommand):
    """`--think` stands for `--think=true`: it never takes the word after it, which is part of the prompt."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, ["--think=true" if a == "--think" else a for a in args[:end]] + args[end:])


COMMAND_CLASS = RunCommand


def command(
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    keepalive: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the model stays in memory afterwards, such as 5m.")
    ] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="Print timings after each answer.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a registry without TLS.")] = False,
    nowordwrap: Annotated[bool, typer.Option("--nowordwrap", help="Do not wrap rows at words.")] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="Form of the answer: json, or a JSON Schema: its text, or a file."
        ),
    ] = "",
    think: Annotated[
        str, typer.Option(metavar="[=LEVEL]", help="Thinking: true, false, high, medium, low or max.")
    ] = "",
    hidethinking: Annotated[bool, typer.Option("--hidethinking", help="Do not show the thinking.")] = False,
    truncate: Annotated[
        bool | None, typer.Option("--truncate/--no-truncate", help="Cut a prompt that is too long.")
    ] = None,
    dimensions: Annotated[str, typer.Option(metavar="N", help="Embedding models: length of the vector.")] = "",
) -> None:
    """Run a model: answer a prompt, or chat."""
    model, *arguments = at_least_one(words)
    n_dimensions = _count(dimensions)
    session = Session(
        model_reference(model),
        insecure=insecure,
        word_wrap=not nowordwrap,
        verbose=verbose,
        hide_thinking=hidethinking,
        keep_alive=_keep_alive(keepalive),
        format=parse_format(format_),
        think=parse_think(think) if think else None,
    )
    if not arguments and sys.stdin.isatty() and sys.stdout.isatty():
        _chat(session)
        return
    prompt = _whole_prompt(arguments)
    with connect() as client:
        try:
            _answer(client, session, prompt, truncate)
        except KeyboardInterrupt:
            return
        except ClientError as error:
            if error.status != 400 or not _is_embedding_model(client, session.model):
                raise
            _print_embedding(client, session, prompt, truncate, n_dimensions)


def _chat(session: Session) -> None:
    from localllm.cli.repl import chat

    with quiet_terminal(), connect() as client:
        with_model(client, session, lambda: load(client, session))
        chat(client, session)


def _answer(client: Client, session: Session, prompt: str, truncate: bool | None) -> None:
    cutting = {} if truncate is None else {"truncate": truncate}

    def ask() -> Any:
        if sys.stderr.isatty():
            load(client, session)
        return begin_answer(client.generate, session.generate_body(prompt) | cutting)

    chunks = with_model(client, session, ask)
    printer = AnswerPrinter(sys.stdout, wrap=session.word_wrap, hide_thinking=session.hide_thinking)
    last_chunk = print_answer(chunks, printer)
    print_notes(notes_on_losses(last_chunk))
    if session.verbose:
        print_timings(last_chunk)


def _is_embedding_model(client: Client, model: str) -> bool:
    capabilities = client.show(model).get("capabilities") or []
    return "embedding" in capabilities and "completion" not in capabilities


def _print_embedding(client: Client, session: Session, text: str, truncate: bool | None, dimensions: int) -> None:
    if not text:
        usage = f'Usage: localllm run {session.model} "your text here"'
        raise LocalLLMError(f"embedding models require input text. {usage}")
    body = {"model": session.model, "input": text, "dimensions": dimensions, "keep_alive": session.keep_alive}
    if truncate is not None:
        body["truncate"] = truncate
    print(json.dumps(client.embed(body)["embeddings"][0], separators=(",", ":")))


def _whole_prompt(arguments: list[str]) -> str:
    """Standard input, unless it is a terminal, then the arguments, joined by blanks.

    Without arguments, the line end that closes the last line of the input is left out, so that
    `echo hello | localllm run m` asks what `localllm run m hello` does.
    """
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read().decode(errors="replace")
    if not arguments:
        return piped.removesuffix("\n").removesuffix("\r")
    return " ".join([piped, *arguments] if piped else arguments)


def _count(text: str) -> int:
    """A count, 0 for an empty text. Raises: UsageError for anything else."""
    if text and not text.isdecimal():
        raise UsageError(f'invalid value for --dimensions: "{text}" (must be a count)')
    return int(text or 0)


def _keep_alive(text: str) -> str | float | None:
    """A duration in Go's notation, or a number of seconds. Raises: LocalLLMError for anything else."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        parse_go_duration(text)
    except ValueError as error:
        raise LocalLLMError(str(error), hint="write `--keepalive 5m`, or `--keepalive -1` for ever") from error
    return text
