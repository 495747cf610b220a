"""`localllm push MODEL`: uploads a model."""

from typing import Annotated

import typer

from localllm.cli.arguments import exactly
from localllm.cli.daemon import connect
from localllm.cli.progress import show_progress
from registry.names import DEFAULT_HOST, parse_name

USAGE = "MODEL"
WEBSITE = "https://ollama.com"


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a registry without TLS.")] = False,
) -> None:
    """Upload a model to the registry that its name says: HOST/NAMESPACE/MODEL."""
    (name,) = exactly(1, names)
    with connect() as client:
        show_progress(client.push(name, insecure=insecure))
    print(f"\nYou can find your model at:\n\n\t{_address(name)}")


def _address(text: str) -> str:
    """Where people, or other machines, find it."""
    name = parse_name(text)
    if name.host.lower() != DEFAULT_HOST:
        return f"{name.scheme}://{name.host}/{name.namespace}/{name.model}:{name.tag}"
    return f"{WEBSITE}/{name.namespace}/{name.model}" + ("" if name.tag == "latest" else f":{name.tag}")
