"""Go's texts of floating point numbers; it knows nothing of verbs, flags or widths."""

from __future__ import annotations

import math

# Powers of ten of which the shortest form needs no exponent: this and above, below that.
SMALLEST, TOO_LARGE = -4, 6


def shortest(value: float) -> str:
    """The fewest digits that give the value back, as `%v`: 0.1, 3, 1e+06."""
    return formatted_float(value, "g", None)


def formatted_float(value: float, verb: str, precision: int | None) -> str:
    """A number as `%f`, `%e` or `%g` (also upper case); precision None is the verb's own."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    lower = verb.lower()
    if lower == "g" and precision is None:
        text = _shortest(value)
    else:
        text = format(value, f".{6 if precision is None else precision}{lower}")
    return text.upper() if verb in "EG" else text


def _shortest(value: float) -> str:
    mantissa, _, exponent = repr(value).partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return sign + "0"
    power = int(exponent or 0) + len(whole) - 1 if whole != "0" else -len(fraction) + len(digits) - 1
    digits = digits.rstrip("0") or "0"
    if SMALLEST <= power < TOO_LARGE:
        return sign + _plain(digits, power)
    point = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{point}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _plain(digits: str, power: int) -> str:
    if power < 0:
        return "0." + "0" * (-power - 1) + digits
    whole = digits[: power + 1].ljust(power + 1, "0")
    return f"{whole}.{digits[power + 1 :]}" if len(digits) > power + 1 else whole
