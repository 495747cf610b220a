"""The languages of JSON Schema's formats, and the names of formats that constrain nothing.

A language is exactly what the format's document says, or, where that is more than a regular language can say, less:
`RESTRICTIONS` tells what is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from localllm.grammar.regular import addresses, moments, resources
from localllm.grammar.regular.host_names import host_names
from localllm.grammar.regular.language import Language
from localllm.grammar.regular.mail import email, idn_email
from localllm.grammar.regular.pattern_texts import PATTERN_TEXT

_LEAP_SECONDS = "the leap second is left out for offsets from UTC that are no multiple of 15 minutes"

RESTRICTIONS = {
    "hostname": "names with a label in Punycode (xn--…) are left out, and some of more than 30 labels",
    "time": _LEAP_SECONDS,
    "date-time": _LEAP_SECONDS,
    "idn-email": "labels beyond ASCII have at most 8 characters, of Latin, Greek, Cyrillic, kana, Han or Hangul",
    "regex": "groups are nested at most 3 deep; back-references and names of groups are left out",
}
"""What is left out of formats whose language is smaller than the format, by name; complements leave it out, too."""


def language_of(name: str) -> Language | None:
    """The strings of a format; None for a name without one: unknown, without constraint, or not to be decided."""
    return _made(name) if name in _FORMATS else None


@functools.cache
def _made(name: str) -> Language:
    found = _FORMATS[name]
    language = Language.of_regex(found, anchored=True) if isinstance(found, str) else found()
    return Language.between(language, _LARGEST[name]()) if name in _LARGEST else language


_FORMATS: dict[str, str | Callable[[], Language]] = {
    "date": moments.DATE,
    "time": moments.TIME,
    "date-time": f"{moments.DATE}[Tt]{moments.TIME}",
    "duration": moments.DURATION,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "email": email,
    "idn-email": idn_email,
    "hostname": lambda: Language(host_names()),
    "ipv4": addresses.IPV4,
    "ipv6": addresses.IPV6,
    "uri": resources.URI,
    "uri-reference": resources.URI_REFERENCE,
    "iri": resources.IRI,
    "iri-reference": resources.IRI_REFERENCE,
    "uri-template": resources.URI_TEMPLATE,
    "regex": PATTERN_TEXT,
    "json-pointer": resources.JSON_POINTER,
    "relative-json-pointer": resources.RELATIVE_JSON_POINTER,
}

# Languages that hold all strings of the formats that are restricted.
_LARGEST: dict[str, Callable[[], Language]] = {
    "hostname": lambda: Language.of_regex(addresses.HOST_NAME, anchored=True),
    "time": lambda: Language.of_regex(moments.LARGEST_TIME, anchored=True),
    "date-time": lambda: Language.of_regex(f"{moments.DATE}[Tt]{moments.LARGEST_TIME}", anchored=True),
    "idn-email": Language.any,
    "regex": Language.any,
}
