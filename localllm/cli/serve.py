"""`localllm serve`: the server in this terminal."""

from pathlib import Path
from typing import Annotated

import typer

from localllm import env

VARIABLES = tuple(variable.name for variable in env.VARIABLES)


def command(
    tls_cert: Annotated[str, typer.Option("--tls-cert", help="Certificate chain (PEM): speak HTTPS.")] = "",
    tls_key: Annotated[str, typer.Option("--tls-key", help="The certificate's key (PEM).")] = "",
) -> None:
    """Start the server in this terminal."""
    from localllm.server import serve

    serve(
        tls_cert=Path(tls_cert).absolute() if tls_cert else env.tls_cert(),
        tls_key=Path(tls_key).absolute() if tls_key else env.tls_key(),
    )
