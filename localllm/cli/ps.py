"""`localllm ps`: the models in memory."""

from datetime import datetime, timezone
from typing import Any

from localllm.cli.columns import format_columns
from localllm.cli.daemon import connect
from localllm.cli.human import format_bytes, format_time, parse_time

HEADER = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")


def command() -> None:
    """List the models in memory."""
    with connect() as client:
        models = client.ps()
    now = datetime.now(timezone.utc)
    print(format_columns([HEADER, *(_row(model, now) for model in models)]), end="")


def _row(model: dict[str, Any], now: datetime) -> tuple[str, ...]:
    return (
        str(model["name"]),
        str(model.get("digest", ""))[:12],
        format_bytes(int(model.get("size") or 0)),
        format_processor(int(model.get("size") or 0), int(model.get("size_vram") or 0)),
        str(model.get("context_length", "")),
        _until(parse_time(model.get("expires_at")), now),
    )


def format_processor(size_bytes: int, vram_bytes: int) -> str:
    """Where a model lies: `100% CPU`, or the shares when a server with a GPU answers."""
    if vram_bytes == 0:
        return "100% CPU"
    if vram_bytes == size_bytes:
        return "100% GPU"
    if vram_bytes > size_bytes:
        return "Unknown"
    cpu_percent = round((size_bytes - vram_bytes) / size_bytes * 100)
    return f"{cpu_percent}%/{100 - cpu_percent}% CPU/GPU"


def _until(expires: datetime | None, now: datetime) -> str:
    return "Stopping..." if expires is not None and expires < now else format_time(expires, now)
