"""`localllm help [COMMAND]`: the same text as `--help`."""

from typing import Annotated

import typer

USAGE = "[COMMAND]"
VARIABLES = ()


def command(
    ctx: typer.Context,
    name: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Help about a command."""
    from localllm.cli.app import run

    raise typer.Exit(run([*(name or [])[:1], "--help"]))
