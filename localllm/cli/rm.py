"""`localllm rm MODEL...`: removes models from memory and disk."""

from contextlib import suppress
from typing import Annotated

import typer

from localllm.cli.arguments import at_least_one
from localllm.cli.daemon import connect
from localllm.client import ClientError

USAGE = "MODEL..."


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Remove models."""
    wanted = at_least_one(names)
    with connect() as client:
        for name in wanted:
            # A model that cannot be unloaded (say, an embedding model) is removed all the same.
            with suppress(ClientError):
                client.unload(name)
            client.delete(name)
            print(f"deleted '{name}'")
