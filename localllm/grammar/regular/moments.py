"""Patterns of dates, times and durations, as RFC 3339 defines them; it makes no automata."""

from __future__ import annotations

# Section 5.6. A year is a leap year if its last two digits, or those of a century its first two, are divisible by 4.
_DIVISIBLE = "(?:[02468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}(?:0[48]|[2468][048]|[13579][26])|{_DIVISIBLE}00)"
DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
# A second 60 is the one before midnight in UTC. It is known where the offset is a multiple of a quarter of an hour, as
# all have been since there are leap seconds; with all offsets the automaton would be twelve times as large.
_DAY, _LAST_MINUTE, _QUARTER = 24 * 60, 23 * 60 + 59, 15
_FRACTION = "(?:\\.[0-9]+)?"


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _leap_second(offset: int) -> str:
    """The times of the leap second where local time is so many minutes ahead of UTC, or behind by the rest of a day."""
    z = "[Zz]|" if offset == 0 else ""
    zones = f"(?:{z}\\+{_clock(offset)}|-{_clock(-offset % _DAY)})"
    return f"{_clock((_LAST_MINUTE + offset) % _DAY)}:60{_FRACTION}{zones}"


_ZONE = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LEAP_SECONDS = "|".join(map(_leap_second, range(0, _DAY, _QUARTER)))
TIME = f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}{_ZONE}|{_LEAP_SECONDS})"
# Every time that RFC 3339 might permit.
LARGEST_TIME = f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60){_FRACTION}{_ZONE}"

# Appendix A: no unit may be left out between two others.
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
DURATION = f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)"
