"""`localllm stop MODEL`: drops a model from memory."""

from typing import Annotated

import typer

from localllm.cli.arguments import exactly
from localllm.cli.daemon import connect
from localllm.client import ClientError
from localllm.errors import LocalLLMError

USAGE = "MODEL"


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Drop a model from memory."""
    (name,) = exactly(1, names)
    with connect() as client:
        try:
            client.unload(name)
        except ClientError as error:
            if error.status != 404:
                raise
            raise LocalLLMError(
                f'couldn\'t find model "{name}" to stop', hint="`localllm ps` lists the models in memory"
            ) from error
