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
) -> None:
    """List the models on this machine."""
    with connect() as client:
        print_models(client, prefix)


def print_models(client: Client, prefix: str = "") -> None:
    """Prints the models whose names start with `prefix`, whatever the letter case, newest first."""
    models = [model for model in client.tags() if str(model["name"]).lower().startswith(prefix.lower())]
    now = datetime.now(timezone.utc)
    print(format_columns([HEADER, *(_row(model, now) for model in models)]), end="")


def _row(model: dict[str, Any], now: datetime) -> tuple[str, str, str, str]:
    size = "-" if model.get("remote_model") else format_bytes(int(model.get("size") or 0))
    modified = format_time(parse_time(model.get("modified_at")), now)
    return str(model["name"]), str(model.get("digest", ""))[:12], size, modified
