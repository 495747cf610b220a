"""`http[s]://host/path/model.gguf#sha256:<hex>`: a GGUF at an address; it knows nothing of registries.

The digest after `#` is what the bytes must have. Only with `--insecure` may it be missing: then what the server sends
is taken for right, and nothing of an interrupted download is kept. `http://` needs `--insecure` too.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Generator, Iterator
from urllib.parse import unquote

import httpx

from registry.digests import parse_digest
from registry.download import Wants
from registry.errors import InvalidDigestError, InvalidNameError, SourceError
from registry.names import DEFAULT_NAMESPACE, Name
from registry.progress import PULLING_MANIFEST, VERIFYING, Pace, Progress, check_canceled
from registry.remote import Remote, iter_body
from registry.sources.base import Source, Wanted, finish_pull, inspect_blobs
from registry.sources.file import name_of_file
from registry.sources.oci import bring_blobs
from registry.staging import Staging
from registry.store import Store

_REFERENCE = re.compile(r"https?://[^#?]+\.gguf(\?[^#]*)?(#.*)?", re.IGNORECASE)


def is_address(reference: str) -> bool:
    """Whether a reference is the address of a GGUF, and no name that begins with a scheme."""
    return _REFERENCE.fullmatch(reference.strip()) is not None


class HTTPSource(Source):
    """A GGUF by its address; a location is the whole reference."""

    def local_name(self, location: str) -> Name:
        """As that of a file of this name."""
        return name_of_file(unquote(_url_of(location)[0].path))

    def pull(self, wanted: Wanted, store: Store, cancel: threading.Event) -> Iterator[Progress]:
        """See Source.pull. Without a digest, events carry none."""
        url, digest = _url_of(wanted.location)
        if not digest and not wanted.access.insecure:
            raise SourceError(
                f'"{wanted.location}" says no digest to verify the file by',
                hint=f"{url}#sha256:<64 hexadecimal digits>, or --insecure to take whatever comes",
            )
        with wanted.access.remote(_host_name(url), cancel) as remote:
            yield PULLING_MANIFEST
            with store.staging(secrets.token_hex(16)) as staging:
                if digest:
                    yield from _bring(wanted, store, staging, remote, url, digest, cancel)
                else:
                    digest = yield from _take(store, staging, remote, url, cancel)
                facts = inspect_blobs(wanted, store, staging, [digest])
                yield VERIFYING
                check_canceled(cancel)
                yield from finish_pull(wanted, store, staging, [digest], facts, [])


def _url_of(location: str) -> tuple[httpx.URL, str]:
    """The address and the digest, "" for none. Raises SourceError."""
    address, _, fragment = location.strip().partition("#")
    try:
        url = httpx.URL(address)
        digest = parse_digest(fragment) if fragment else ""
    except httpx.InvalidURL as error:
        raise SourceError(f'"{address}" is not an address: {error}') from error
    except InvalidDigestError as error:
        raise SourceError(f'"{fragment}" is not a digest', hint="#sha256:<64 hexadecimal digits>") from error
    if url.userinfo:
        raise SourceError("an address may not hold a password", hint="user name and password are options of a pull")
    return url, digest


def _host_name(url: httpx.URL) -> Name:
    try:
        return Name(url.netloc.decode(), DEFAULT_NAMESPACE, "model", "gguf", url.scheme)
    except InvalidNameError as error:
        raise SourceError(f'cannot pull from "{url.host}": {error.reason}') from error


def _bring(
    wanted: Wanted, store: Store, staging: Staging, remote: Remote, url: httpx.URL, digest: str, cancel: threading.Event
) -> Iterator[Progress]:
    store.pin(staging, [digest])
    size = store.blobs.size(digest)
    if size is None:
        size = _size_at(remote, url)
    want = Wants(digest, size, lambda headers: remote.stream("GET", str(url), headers=headers))
    yield from bring_blobs(wanted, store, [want], cancel)


def _size_at(remote: Remote, url: httpx.URL) -> int:
    """Bytes of what is at an address. Raises SourceError: the server does not say."""
    length = remote.send("HEAD", str(url)).headers.get("Content-Length", "")
    if not length.isdigit():
        raise SourceError(f"{url.host} does not say how long {url.path} is")
    return int(length)


def _take(
    store: Store, staging: Staging, remote: Remote, url: httpx.URL, cancel: threading.Event
) -> Generator[Progress, None, str]:
    """Store whatever comes; gives its digest."""
    pace = Pace()
    with remote.stream("GET", str(url), n_tries=remote.patience.n_tries) as response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else 0
        status = f"pulling {unquote(url.path).rpartition('/')[2]}"
        with store.blobs.writer(staging, total) as writer:
            for piece in iter_body(response, remote.patience.stall_s):
                check_canceled(cancel)
                writer.write(piece)
                if pace.is_due():
                    yield Progress(status, total=total, completed=writer.size)
            yield Progress(status, total=total or writer.size, completed=writer.size)
            store.pin(staging, [writer.digest])
            return writer.commit()
