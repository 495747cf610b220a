"""Patterns of the names and addresses of hosts, as their RFCs define them; it makes no automata."""

from __future__ import annotations

# RFC 2673, section 3.2, and RFC 4291, section 2.2.
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9A-Fa-f]{1,4}"
IPV4 = f"(?:{_BYTE}\\.){{3}}{_BYTE}"
_TAIL = f"(?:{_GROUP}:{_GROUP}|{IPV4})"


def _some_groups(most: int) -> str:
    return f"(?:(?:{_GROUP}:){{0,{most - 1}}}{_GROUP})?" if most else ""


_SHORTENED = [f"{_some_groups(5 - n)}::(?:{_GROUP}:){{{n}}}{_TAIL}" for n in range(6)]
_SHORTENED += [f"{_some_groups(6)}::{_GROUP}", f"{_some_groups(7)}::"]
IPV6 = f"(?:(?:{_GROUP}:){{6}}{_TAIL}|{'|'.join(_SHORTENED)})"

# RFC 1123, section 2.1; of the length of whole names they know nothing.
LABEL = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
HOST_NAME = f"{LABEL}(?:\\.{LABEL})*"
