"""`localllm list [PREFIX]`: the models in the store."""

from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from localllm.cli.columns import format_columns
from localllm.cli.daemon import connect
from localllm.cli.human import format_bytes, format_time, parse_time
from localllm.client import Client

HEADER = ("NAME", "ID", "SIZE", "MODIFIED")

USAGE = "[PREFIX]"


def command(
    prefix: Annotated[str, typer.Argument(hidden=True)] = "",
    outdated: Annotated[
        bool, typer.Option("--outdated", help="Ask the registries which models they have newer ones of.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="With --outdated: ask without TLS too.")] = False,
) -> None:
    """List the models on this machine."""
    with connect() as client:
        if outdated:
            print_outdated(client, prefix, insecure)
        else:
            print_models(client, prefix)


def print_outdated(client: Client, prefix: str, insecure: bool) -> None:
    """Prints the models that are outdated, and those of which that cannot be told, with the reason."""
    # Only this option asks registries.
    from localllm.cli.outdated import compare_models
    from registry.outdated import State

    models = list(compare_models(client, insecure, prefix))
    rows = [
        (model.name.short, model.state.value, model.reason)
        for model in models
        if model.state in (State.OUTDATED, State.UNKNOWN)
    ]
    print(format_columns([("NAME", "STATE", "REASON"), *rows]), end="")


def print_models(client: Client, prefix: str = "") -> None:
    """Prints the models whose names start with `prefix`, whatever the letter case, newest first."""
    models = [model for model in client.tags() if str(model["name"]).lower().startswith(prefix.lower())]
    now = datetime.now(timezone.utc)
    print(format_columns([HEADER, *(_row(model, now) for model in models)]), end="")


def _row(model: dict[str, Any], now: datetime) -> tuple[str, str, str, str]:
    size = "-" if model.get("remote_model") else format_bytes(int(model.get("size") or 0))
    modified = format_time(parse_time(model.get("modified_at")), now)
    return str(model["name"]), str(model.get("digest", ""))[:12], size, modified
