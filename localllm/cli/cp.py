"""`localllm cp SOURCE DESTINATION`: a second name for a model."""

from typing import Annotated

import typer

from localllm.cli.arguments import exactly
from localllm.cli.daemon import connect

USAGE = "SOURCE DESTINATION"


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Give a model a second name."""
    source, destination = exactly(2, names)
    with connect() as client:
        client.copy(source, destination)
    print(f"copied '{source}' to '{destination}'")
