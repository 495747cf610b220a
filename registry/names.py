"""Model names: their grammar, their parser, and their place under `manifests/`; it knows nothing of what exists.

    name      = [ scheme "://" ] [ host "/" ] [ namespace "/" ] model [ ":" tag ]
    scheme    = "https" | "http"                                   default "https"
    host      = first *349( alnum | "_" | "-" | "." | ":" )        default "registry.ollama.ai"
    namespace = first  *79( alnum | "_" | "-" )                    default "library"
    model     = first  *79( alnum | "_" | "-" | "." )
    tag       = first  *79( alnum | "_" | "-" | "." )              default "latest"
    first     = alnum | "_"
    alnum     = ASCII letter or digit

- One slash separates namespace and model, two slashes host, namespace and model; more are an error.
- A ":" after the last slash starts the tag; one before it belongs to the host (a port).
- Blanks around a name are ignored; inside they are an error.
- Names that differ in case alone are one model: the store finds it by `key` and keeps the case it has.
- No part can start with "." or hold a slash, so the path of a name never leaves its folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from registry.errors import InvalidNameError

DEFAULT_SCHEME = "https"
DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

SCHEMES = ("https", "http")
MAX_HOST_LENGTH = 350
MAX_PART_LENGTH = 80

# name of the part -> (allowed characters, the longest it may be)
_PARTS = {
    "host": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*"), MAX_HOST_LENGTH),
    "namespace": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*"), MAX_PART_LENGTH),
    "model": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*"), MAX_PART_LENGTH),
    "tag": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*"), MAX_PART_LENGTH),
}


@dataclass(frozen=True)
class Name:
    """A valid, complete model name. `scheme` says how to reach the host and is no part of the identity."""

    host: str
    namespace: str
    model: str
    tag: str
    scheme: str = field(default=DEFAULT_SCHEME, compare=False)

    def __post_init__(self) -> None:
        """Raises InvalidNameError: no Name exists that breaks the grammar, however it was made."""
        for part in _PARTS:
            _check_part(str(self), part, getattr(self, part))
        if self.scheme not in SCHEMES:
            raise InvalidNameError(str(self), f'unknown scheme "{self.scheme}" (expected {" or ".join(SCHEMES)})')

    def __str__(self) -> str:
        """The complete form; `parse_name` gives the same name back."""
        scheme = "" if self.scheme == DEFAULT_SCHEME else f"{self.scheme}://"
        return f"{scheme}{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """The form people read: default host and namespace left out, always with the tag."""
        if self.host.lower() != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"
        if self.namespace.lower() != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{self.model}:{self.tag}"
        return f"{self.model}:{self.tag}"

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Folder names and file name of the manifest, below `manifests/`."""
        return (self.host, self.namespace, self.model, self.tag)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What two names share when they differ in case alone."""
        return (self.host.lower(), self.namespace.lower(), self.model.lower(), self.tag.lower())


def parse_name(text: str) -> Name:
    """Read a name as people write it, filling in the defaults.

    Raises:
        InvalidNameError: `text` does not follow the grammar above.
    """
    rest = text.strip()
    tag = DEFAULT_TAG
    if rest.rfind(":") > rest.rfind("/"):
        rest, _, tag = rest.rpartition(":")
    scheme, separator, after = rest.partition("://")
    if separator:
        rest = after
    else:
        scheme = DEFAULT_SCHEME
    *outer, model = rest.split("/")
    if len(outer) > 2 or (separator and len(outer) < 2):
        raise InvalidNameError(text, "expected [host/][namespace/]model[:tag]")
    namespace = outer[-1] if outer else DEFAULT_NAMESPACE
    host = outer[0] if len(outer) == 2 else DEFAULT_HOST
    try:
        return Name(host, namespace, model, tag, scheme.lower())
    except InvalidNameError as error:
        raise InvalidNameError(text, error.reason) from None


def _check_part(name: str, part: str, value: str) -> None:
    allowed, max_length = _PARTS[part]
    if not value:
        raise InvalidNameError(name, f"the {part} is empty")
    if len(value) > max_length:
        raise InvalidNameError(name, f"the {part} has {len(value)} characters (at most {max_length})")
    if not allowed.fullmatch(value):
        raise InvalidNameError(name, f'the {part} "{value}" holds a character that is not allowed, or starts with one')
