"""Durations in Go's notation (`1h30m`, `1.5s`), counted in nanoseconds; it knows nothing of clocks or timers.

Grammar of Go's `time.ParseDuration`: `[+-]? (digits [. digits] unit)+`, or a bare `0`.
Units: `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`. The range is that of a signed 64-bit count of nanoseconds.
"""

import json
import math
import re
from decimal import Decimal
from typing import Any

NS_PER_S = 1_000_000_000
FOREVER_NS = 2**63 - 1

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek letter mu
    "ms": 1_000_000,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_TERM = re.compile(r"([0-9]*)(\.[0-9]*)?([^0-9.]*)")


class DurationError(ValueError):
    """A text or value that is not a duration; the message is the one Go gives."""


def parse_go_duration(text: str) -> int:
    """Nanoseconds of a duration such as `"1h30m"`, `"-1.5s"` or `"0"`; fractions of a nanosecond are dropped.

    Raises: DurationError with Go's wording (`time: missing unit in duration "300"`).
    """
    quoted = json.dumps(text, ensure_ascii=False)
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0
    if not body:
        raise DurationError(f"time: invalid duration {quoted}")
    total_ns, position = 0, 0
    while position < len(body):
        term = _TERM.match(body, position)
        assert term is not None  # the pattern matches the empty string too
        whole, fraction, unit = term.groups(default="")
        total_ns += _term_ns(whole, fraction, unit, quoted)
        position = term.end()
    negative = text[0] == "-"
    if total_ns > FOREVER_NS + negative:
        raise DurationError(f"time: invalid duration {quoted}")
    return -total_ns if negative else total_ns


def _term_ns(whole: str, fraction: str, unit: str, quoted: str) -> int:
    digits = fraction[1:]
    if not whole and not digits:
        raise DurationError(f"time: invalid duration {quoted}")
    if not unit:
        raise DurationError(f"time: missing unit in duration {quoted}")
    if unit not in _UNITS_NS:
        raise DurationError(f"time: unknown unit {json.dumps(unit, ensure_ascii=False)} in duration {quoted}")
    scale_ns = _UNITS_NS[unit]
    # More digits than the finest unit can show, or than int() accepts, are an overflow anyway.
    if len(whole.lstrip("0")) > 19:
        raise DurationError(f"time: invalid duration {quoted}")
    value_ns = int(whole or "0") * scale_ns
    return value_ns + int(digits[:18] or "0") * scale_ns // 10 ** len(digits[:18])


def format_go_duration(duration_ns: int) -> str:
    """Go's text of a duration: `0s`, `1.234567s`, `1m30s`, `150ms`, `2h0m0s`; exact for every nanosecond."""
    sign = "-" if duration_ns < 0 else ""
    magnitude_ns = abs(duration_ns)
    if magnitude_ns < NS_PER_S:
        return sign + _format_below_second(magnitude_ns)
    minutes, rest_ns = divmod(magnitude_ns, _UNITS_NS["m"])
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest_ns, NS_PER_S)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _format_below_second(magnitude_ns: int) -> str:
    if magnitude_ns == 0:
        return "0s"
    for unit in ("ms", "\u00b5s", "ns"):
        if magnitude_ns >= _UNITS_NS[unit]:
            return _decimal(magnitude_ns, _UNITS_NS[unit]) + unit
    raise AssertionError("unreachable: every positive count is at least 1 ns")


def _decimal(value: int, scale: int) -> str:
    whole, rest = divmod(value, scale)
    digits = str(rest).rjust(len(str(scale)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def parse_keep_alive(value: Any) -> int:
    """Nanoseconds a model stays loaded after its last request, from any JSON form of `keep_alive`.

    A number counts seconds (fractions allowed), a string is a Go duration; anything negative, or too
    long for 64 bits, is `FOREVER_NS`; 0 unloads at once.
    Raises: DurationError for other types and for strings that are no duration.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise DurationError(f"Unsupported type: {json.dumps(value, ensure_ascii=False)}")
    if isinstance(value, str):
        duration_ns = parse_go_duration(value)
        return FOREVER_NS if duration_ns < 0 else duration_ns
    if value < 0 or value > FOREVER_NS or math.isnan(value):
        return FOREVER_NS
    return min(int(Decimal(value) * NS_PER_S), FOREVER_NS)
