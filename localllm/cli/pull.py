"""`localllm pull MODEL`: downloads a model."""

from typing import Annotated

import typer

from localllm.cli.arguments import exactly, model_reference
from localllm.cli.daemon import connect
from localllm.cli.progress import show_progress

USAGE = "MODEL"


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a registry without TLS.")] = False,
) -> None:
    """Download a model."""
    (name,) = exactly(1, names)
    with connect() as client:
        show_progress(client.pull(model_reference(name), insecure=insecure))
