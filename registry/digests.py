"""Digests as manifests, blob files and clients write them; it knows nothing of where blobs lie.

A digest is `sha256:<64 hex>`; as a file name the colon is a dash.
"""

from __future__ import annotations

import hashlib
import re

from registry.errors import InvalidDigestError

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


def parse_digest(text: str) -> str:
    """`sha256:<hex>` in lower case, from either spelling.

    Raises:
        InvalidDigestError: anything else, so that a digest is always safe as a file name.
    """
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise InvalidDigestError(text)
    return f"sha256:{match[1].lower()}"


def digest_of(content: bytes) -> str:
    """`sha256:<hex>` of some bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_file_name(digest: str) -> str:
    """`sha256-<hex>`: the name of the file that holds the blob. Raises InvalidDigestError."""
    return parse_digest(digest).replace(":", "-")


def short_digest(digest: str) -> str:
    """The first 12 hexadecimal digits, as shown to people."""
    return parse_digest(digest)[7:19]
