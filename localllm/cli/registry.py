"""`localllm registry serve`: offers the models of this machine to others."""

from pathlib import Path
from typing import Annotated

import typer

from localllm import env
from localllm.cli.arguments import UsageError, exactly

USAGE = "serve"
VARIABLES = ("MODELS", "STATE_DIR", "CLIENT_TIMEOUT", "MAX_CONNECTIONS", "DEBUG")
DEFAULT_PORT = "11435"
MAX_PORT = 65535


def command(
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[str, typer.Option("--port", help="Port to listen on.")] = DEFAULT_PORT,
    tls_cert: Annotated[str, typer.Option("--tls-cert", help="Certificate chain (PEM): speak HTTPS.")] = "",
    tls_key: Annotated[str, typer.Option("--tls-key", help="The certificate's key (PEM).")] = "",
    token_file: Annotated[
        str, typer.Option("--token-file", help="File of the token; made if missing (default: in LOCALLLM_STATE_DIR).")
    ] = "",
    no_token: Annotated[bool, typer.Option("--no-token", help="Ask for no token.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow --no-token for other machines.")] = False,
) -> None:
    """Offer the models of this machine to others, read-only, over the registry protocol.

    Another machine pulls from it with `localllm pull --insecure http://HOST:PORT/library/MODEL`, or with any client of
    OCI registries. Clients send the token as a password or as a Bearer token.
    """
    (action,) = exactly(1, words)
    if action != "serve":
        raise UsageError(f'unknown action "{action}"', hint="`localllm registry --help` shows the usage")
    if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise UsageError(f'invalid port "{port}": expected a number up to {MAX_PORT}')
    path = Path(token_file).expanduser().absolute() if token_file else env.state_dir() / "registry-token"
    from localllm.server.offering import Offer, serve_store

    serve_store(
        Offer(
            host=host,
            port=int(port),
            token_file=None if no_token else path,
            insecure=insecure,
            tls_cert=Path(tls_cert).absolute() if tls_cert else None,
            tls_key=Path(tls_key).absolute() if tls_key else None,
        )
    )
