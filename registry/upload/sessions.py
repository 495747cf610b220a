"""The endpoints by which a registry takes blobs; it knows nothing of when to ask again, or of what was asked before.

    HEAD  /v2/NAME/blobs/DIGEST                        is it there?
    POST  /v2/NAME/blobs/uploads/?mount=DIGEST&from=   201: taken over from another repository; 202: a session
    PATCH <session>   Content-Range: 0-99999999        202: so much is there now, and the session's next address;
                                                       307: this part is to be PUT elsewhere
    GET   <session>                                    204: so much is there
    PUT   <session>&digest=DIGEST                      201: it is a blob

After each answer the session has the address that the answer names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import httpx

from registry.errors import RegistryError, RemoteError, RemoteNotFoundError
from registry.remote import Remote

ACTIONS = "pull,push"

_OCTETS = {"Content-Type": "application/octet-stream"}
# The session has ended, or is not where we think it is.
_LOST = frozenset({400, 404, 410, 416})
_REDIRECTED = frozenset({301, 302, 307, 308})
_RANGE = re.compile(r"(?:bytes[= ])?[0-9]{1,18}-([0-9]{1,18})")


@dataclass(frozen=True)
class Session:
    """`url` takes what comes after the first `offset` bytes. `is_split`: its parts go elsewhere."""

    url: str
    offset: int = 0
    is_split: bool = False


@dataclass(frozen=True)
class Redirect:
    """Where a part is to be PUT, and the session that takes the next one."""

    url: str
    session: Session


class SessionLostError(Exception):
    """The registry does not go on with a session; `error` is what it said."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__(str(error))
        self.error = error


class Sessions:
    """The uploads of one repository. `patient` waits longer: a registry may read a whole blob before it answers."""

    def __init__(self, remote: Remote, patient: Remote) -> None:
        self._remote = remote
        self._patient = patient
        self._base = f"/v2/{remote.name.namespace}/{remote.name.model}/blobs"

    def has(self, digest: str) -> bool:
        """Whether the repository has a blob. Raises RemoteError, UnreachableError, PullCanceledError, as all here."""
        try:
            self._remote.send("HEAD", f"{self._base}/{digest}", actions=ACTIONS)
        except RemoteNotFoundError:
            return False
        return True

    def start(self, digest: str, mount_from: str | None) -> Session | None:
        """A new session; None: the blob has been taken over from the repository `mount_from`."""
        query = httpx.QueryParams({"mount": digest, "from": mount_from} if mount_from else {})
        path = f"{self._base}/uploads/{f'?{query}' if mount_from else ''}"
        response = self._remote.send("POST", path, actions=ACTIONS, headers={"Content-Length": "0"})
        return None if response.status_code == 201 else Session(self._next(response))

    def status(self, session: Session) -> Session:
        """The session as the registry has it. Raises SessionLostError."""
        response = self._ask(self._remote, "GET", session.url)
        stored = _stored_bytes(response)
        # "0-0" is said of nothing and of one byte. The second hardly ever happens, and ends in another session.
        offset = 0 if stored in (None, 1) else stored or 0
        return Session(self._next(response, session.url), offset)

    def send(self, session: Session, end: int, content: Callable[[], Iterable[bytes]]) -> Session | Redirect:
        """Send the part from the session's offset to `end`. Raises SessionLostError."""
        headers = {
            **_OCTETS,
            "Content-Length": str(end - session.offset),
            "Content-Range": f"{session.offset}-{end - 1}",
            "X-Redirect-Uploads": "1",
        }
        response = self._ask(self._remote, "PATCH", session.url, headers, content)
        if response.status_code in _REDIRECTED:
            target = self._protected(response, response.headers.get("Location"))
            url = self._protected(response, response.headers.get("Docker-Upload-Location") or session.url)
            return Redirect(target, Session(url, end, is_split=True))
        stored = _stored_bytes(response)
        offset = stored if stored and session.offset < stored <= end and stored > 1 else end
        return Session(self._next(response, session.url), offset)

    def put(self, url: str, n_bytes: int, content: Callable[[], Iterable[bytes]]) -> None:
        """Send a part to where the registry wants it."""
        headers = {**_OCTETS, "Content-Length": str(n_bytes)}
        self._remote.send("PUT", url, actions=ACTIONS, headers=headers, content=content)

    def commit(self, session: Session, digest: str, etag: str | None) -> None:
        """Make the blob of what was sent. Raises SessionLostError."""
        query = {"digest": digest, **({"etag": etag} if etag else {})}
        url = str(httpx.URL(session.url).copy_merge_params(query))
        self._ask(self._patient, "PUT", url, {**_OCTETS, "Content-Length": "0"}, b"")

    def abandon(self, session: Session) -> None:
        """Tell the registry that nothing more comes, if it wants to know."""
        with contextlib.suppress(RegistryError, SessionLostError):
            self._remote.send("DELETE", session.url, actions=ACTIONS, n_tries=1)

    def _ask(
        self,
        remote: Remote,
        method: str,
        url: str,
        headers: dict[str, str] | None = None,
        content: bytes | Callable[[], Iterable[bytes]] | None = None,
    ) -> httpx.Response:
        try:
            return remote.send(method, url, actions=ACTIONS, headers=headers, content=content, follow=False, n_tries=1)
        except RemoteError as error:
            if error.status in _LOST:
                raise SessionLostError(error) from error
            raise

    def _next(self, response: httpx.Response, otherwise: str | None = None) -> str:
        """The address that an answer names for the session. Raises RemoteError, as `_protected`."""
        location = response.headers.get("Docker-Upload-Location") or response.headers.get("Location") or otherwise
        return self._protected(response, location)

    def _protected(self, response: httpx.Response, location: str | None) -> str:
        """The whole address of a location. Raises RemoteError: there is none, or none as protected as the registry."""
        host = response.request.url.netloc.decode()
        if not location:
            raise RemoteError(host, response.status_code, "the registry takes an upload and does not say where")
        try:
            url = response.request.url.join(location)
        except httpx.InvalidURL as error:
            raise RemoteError(host, response.status_code, f"names an address that is none: {error}") from error
        if self._remote.origin.scheme == "https" and url.scheme != "https":
            # Registries behind a proxy that speaks TLS for them often do not know that it does.
            if url.host != self._remote.origin.host:
                raise RemoteError(host, response.status_code, f"wants an unprotected upload to {url.host}")
            url = url.copy_with(scheme="https", port=self._remote.origin.port)
        return str(url)


def _stored_bytes(response: httpx.Response) -> int | None:
    match = _RANGE.fullmatch(response.headers.get("Range", "").strip())
    return int(match[1]) + 1 if match else None
