"""Points in time as Go prints them in JSON: RFC 3339 with up to nine fraction digits; it knows no clock's meaning."""

import time
from datetime import datetime, timezone

from localllm.durations import NS_PER_S


def now_utc() -> str:
    """The present, in UTC with a `Z`."""
    return format_utc(time.time_ns())


def format_utc(unix_ns: int) -> str:
    """A point in Unix nanoseconds, in UTC with a `Z`."""
    moment = datetime.fromtimestamp(unix_ns // NS_PER_S, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}{_fraction(unix_ns)}Z"


def format_local(unix_ns: int) -> str:
    """A point in Unix nanoseconds, with the offset of this machine's time zone."""
    moment = datetime.fromtimestamp(unix_ns // NS_PER_S, timezone.utc).astimezone()
    offset = f"{moment:%z}"
    zone = "Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:5]}"
    return f"{moment:%Y-%m-%dT%H:%M:%S}{_fraction(unix_ns)}{zone}"


def _fraction(unix_ns: int) -> str:
    digits = f"{unix_ns % NS_PER_S:09d}".rstrip("0")
    return f".{digits}" if digits else ""
