"""`localllm pull MODEL`: downloads a model; with `--all`, those of which the registries have newer ones."""

import sys
from typing import Annotated

import typer

from localllm.cli.arguments import exactly, model_reference
from localllm.cli.daemon import connect
from localllm.cli.progress import show_progress
from localllm.client import Client
from localllm.errors import LocalLLMError

USAGE = "MODEL"


def command(
    names: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow a registry without TLS, or one that nobody vouches for.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Update all models that are outdated.")] = False,
) -> None:
    """Download a model."""
    found = exactly(0 if every else 1, names)
    with connect() as client:
        if every:
            _update(client, insecure)
        else:
            show_progress(client.pull(model_reference(found[0]), insecure=insecure))


def _update(client: Client, insecure: bool) -> None:
    """Pull what is outdated. What cannot be told or pulled is said, and keeps no other model from being updated."""
    # Only this command asks registries by itself.
    from localllm.cli.outdated import compare_models
    from registry.outdated import State

    n_failed = 0
    for model in list(compare_models(client, insecure)):
        if model.state is State.UNKNOWN:
            print(f"{model.name.short}: {model.reason}", file=sys.stderr)
            n_failed += 1
        if model.state is not State.OUTDATED:
            continue
        print(model.name.short, file=sys.stderr)
        try:
            show_progress(client.pull(model.reference, insecure=insecure))
        except LocalLLMError as error:
            print(f"{model.name.short}: {error}", file=sys.stderr)
            n_failed += 1
    if n_failed:
        raise LocalLLMError(f"{n_failed} of the models could not be brought up to date")
