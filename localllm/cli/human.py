"""Sizes, counts and moments in the words of the listings (`4.7 GB`, `2 days ago`); it knows nothing of models."""

from datetime import datetime, timezone

_BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
_HOURS_PER_YEAR = 24 * 365


def format_bytes(n_bytes: int) -> str:
    """Decimal units: whole from ten upwards, else one decimal: `815 B`, `4.7 GB`, `42 GB`."""
    for size, unit in _BYTE_UNITS:
        if n_bytes >= size:
            value = n_bytes / size
            whole = value >= 10 or value == int(value)
            return f"{int(value)} {unit}" if whole else f"{value:.1f} {unit}"
    return f"{n_bytes} B"


def format_count(count: int) -> str:
    """A parameter count: `8.0B`-like figures from billions, `134.52M` from millions, `12K`, `7`."""
    if count >= 10**9:
        return f"{count / 10**9:.{0 if count % 10**9 == 0 else 1}f}B"
    if count >= 10**6:
        return f"{count / 10**6:.{0 if count % 10**6 == 0 else 2}f}M"
    return f"{count / 10**3:.0f}K" if count >= 10**3 else str(count)


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time with up to nine fraction digits; None for an absent, unreadable or zero one."""
    if not text:
        return None
    head, dot, tail = text.partition(".")
    if dot:
        digits = len(tail) - len(tail.lstrip("0123456789"))
        text = f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
    if text[-1:] in ("Z", "z"):
        text = text[:-1] + "+00:00"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.year <= 1:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def format_time(moment: datetime | None, now: datetime) -> str:
    """`5 hours ago`, `4 minutes from now`; `Never` for None, `Forever` for more than twenty years ahead."""
    if moment is None:
        return "Never"
    seconds = (now - moment).total_seconds()
    if seconds < 0:
        ahead = _span(-seconds)
        return "Forever" if -seconds / 3600 / _HOURS_PER_YEAR > 20 else f"{ahead} from now"
    return f"{_span(seconds)} ago"


def _span(seconds: float) -> str:
    hours, minutes = round(seconds / 3600), int(seconds / 60)
    steps = (
        (seconds < 1, "Less than a second"),
        (seconds < 2, "1 second"),
        (seconds < 60, f"{int(seconds)} seconds"),
        (minutes == 1, "About a minute"),
        (minutes < 60, f"{minutes} minutes"),
        (hours == 1, "About an hour"),
        (hours < 48, f"{hours} hours"),
        (hours < 24 * 14, f"{hours // 24} days"),
        (hours < 24 * 60, f"{hours // 24 // 7} weeks"),
        (hours < _HOURS_PER_YEAR * 2, f"{hours // 24 // 30} months"),
    )
    return next((text for applies, text in steps if applies), f"{hours // _HOURS_PER_YEAR} years")
