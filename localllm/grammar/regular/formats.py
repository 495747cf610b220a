"""The languages of JSON Schema's formats, and the names of formats that constrain nothing.

A language is exactly what the format's document says, or, where that is more than a regular language can say, less:
`RESTRICTIONS` tells what is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from localllm.grammar.regular import addresses, moments, resources
from localllm.grammar.regular.language import Language

RESTRICTIONS = {
    "hostname": "names with a label in Punycode (xn--…) are left out",
}
"""What is left out of formats whose language is smaller than the format, by name."""

UNCONSTRAINED = frozenset(
    [
        # OpenAPI's registry of formats, those that say how a number or a text is kept or shown
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double", "double-int"),
        *(
            "decimal",
            "decimal128",
            "number",
            "integer",
            "unixtime",
            "byte",
            "binary",
            "base64",
            "base64url",
            "password",
        ),
        *("html", "markdown", "commonmark", "text", "textarea", "string", "char"),
        # drafts 1 to 3, left out of the later ones
        *("color", "style", "phone", "utc-millisec"),
        # Kubernetes
        *("int-or-string", "quantity"),
    ]
)
"""Names that annotate a value and constrain no string, by whoever defined them."""


def language_of(name: str) -> Language | None:
    """The strings of a format; None for a name without one: unknown, without constraint, or not to be decided."""
    return _made(name) if name in _FORMATS else None


@functools.cache
def _made(name: str) -> Language:
    found = _FORMATS[name]
    return Language.of_regex(found, anchored=True) if isinstance(found, str) else found()


def _host_name() -> Language:
    names = Language.of_regex(addresses.HOST_NAME, anchored=True)
    return names - Language.of_regex(addresses.PUNYCODE)


def _email() -> Language:
    local = Language.of_regex(addresses.LOCAL_PART, anchored=True) & Language.of_length(1, 64)
    domain = Language.of_regex(f"@(?:{addresses.HOST_NAME}|{addresses.ADDRESS_LITERAL})", anchored=True)
    return local.concat(domain)


_FORMATS: dict[str, str | Callable[[], Language]] = {
    "date": moments.DATE,
    "time": moments.TIME,
    "date-time": f"{moments.DATE}[Tt]{moments.TIME}",
    "duration": moments.DURATION,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "email": _email,
    "hostname": _host_name,
    "ipv4": addresses.IPV4,
    "ipv6": addresses.IPV6,
    "uri": resources.URI,
    "uri-reference": resources.URI_REFERENCE,
    "iri": resources.IRI,
    "iri-reference": resources.IRI_REFERENCE,
    "uri-template": resources.URI_TEMPLATE,
    "json-pointer": resources.JSON_POINTER,
    "relative-json-pointer": resources.RELATIVE_JSON_POINTER,
}
