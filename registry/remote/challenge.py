"""What a server asks for with a 401 (RFC 9110, 11.6.1); it knows nothing of how to answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_SCHEME = re.compile(r"[\s,]*([A-Za-z0-9!#$%&'*+.^_`|~-]+)(?=[\s,]|$)\s*")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True)
class Challenge:
    """One way of authentication; `scheme` and the keys of `parameters` in lower case."""

    scheme: str
    parameters: dict[str, str] = field(default_factory=dict)


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """All challenges of some `WWW-Authenticate` headers; what cannot be read ends the header it is in."""
    return [challenge for header in headers for challenge in _parse(header)]


def _parse(header: str) -> list[Challenge]:
    found: list[Challenge] = []
    position = 0
    while position < len(header):
        parameter = _PARAMETER.match(header, position)
        if parameter and found:
            quoted, plain = parameter[2], parameter[3]
            found[-1].parameters[parameter[1].lower()] = re.sub(r"\\(.)", r"\1", quoted) if plain is None else plain
            position = parameter.end()
            continue
        scheme = _SCHEME.match(header, position)
        if scheme is None:
            break
        found.append(Challenge(scheme[1].lower()))
        position = scheme.end()
    return found
