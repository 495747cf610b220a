"""Patterns of dates, times and durations, as RFC 3339 defines them; it makes no automata."""

from __future__ import annotations

# Section 5.6. A year is a leap year if its last two digits, or those of a century its first two, are divisible by 4.
_DIVISIBLE = "(?:[02468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}(?:0[48]|[2468][048]|[13579][26])|{_DIVISIBLE}00)"
DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_OFFSET = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
TIME = f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?{_OFFSET}|23:59:60(?:\\.[0-9]+)?(?:[Zz]|[+-]00:00))"

# Appendix A: no unit may be left out between two others.
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
DURATION = f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)"
