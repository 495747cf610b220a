"""Requests to one registry: addresses, TLS, authentication, redirects, trying again; it knows no endpoint's meaning.

A header of ours that says who we are goes to the registry's own origin and to nobody else: a redirect to another
host is followed without it. Proxies and certificates are the system's, as httpx finds them.
"""

from __future__ import annotations

import contextlib
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import httpx

from registry.errors import InsecureProtocolError, RemoteError, UnreachableError
from registry.names import Name
from registry.progress import check_canceled
from registry.remote.challenge import parse_challenges
from registry.remote.credentials import HF_HOSTS, Credentials, find_credentials
from registry.remote.messages import error_of, unreachable
from registry.remote.patience import Patience
from registry.remote.sockets import Sockets
from registry.remote.tokens import Tokens

# Ollama's registry refuses a model to clients whose version of Ollama, told here, cannot run it.
_ARCHITECTURE = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
USER_AGENT = f"ollama/0.33.0 ({_ARCHITECTURE} {sys.platform}) localllm"

MAX_BODY_BYTES = 64 << 20

_MAX_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})
_QUICK_TRIES = 4
_MAX_ERROR_BYTES = 1 << 20

# A body that can be sent again is bytes, or makes its pieces anew at each call.
Content = bytes | Callable[[], Iterable[bytes]] | None


class Remote:
    """One registry host. May be used by several threads at once; leaving the `with` block closes its connections."""

    def __init__(
        self,
        name: Name,
        *,
        insecure: bool = False,
        credentials: Credentials | None = None,
        key: Path | None = None,
        cancel: threading.Event | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Raises InsecureProtocolError: the name says `http://` and `insecure` was not given."""
        if name.scheme == "http" and not insecure:
            raise InsecureProtocolError(name.host)
        self.name = name
        self.patience = patience or Patience()
        self.cancel = cancel or threading.Event()
        self.origin = httpx.URL(f"{name.scheme}://{name.host}")
        patient = self.patience
        timeout = httpx.Timeout(patient.stall_s, connect=patient.connect_s, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._http = httpx.Client(
            verify=not insecure, timeout=timeout, limits=limits, headers={"User-Agent": USER_AGENT}
        )
        self._sockets = Sockets()
        credentials = find_credentials(name.host, credentials, is_protected=name.scheme == "https")
        self._tokens = Tokens(self.origin, credentials, key, self._fetch)
        self._authorization: dict[str, str] = {}
        self._lock = threading.Lock()
        self._always = credentials.bearer if credentials and name.host.lower() in HF_HOSTS else None

    def send(
        self,
        method: str,
        path: str,
        *,
        actions: str = "pull",
        headers: Mapping[str, str] | None = None,
        content: Content = None,
        follow: bool = True,
        n_tries: int = _QUICK_TRIES,
    ) -> httpx.Response:
        """Ask for `path` (below the registry's origin, or a whole address); gives the answer with its body read.

        `actions` is what a token must allow (`pull` or `pull,push`). With `follow` off, a redirect is an answer.

        Raises:
            RemoteNotFoundError: status 404.
            RemoteError: any other status from 400 on, once patience with 429 and 5xx has ended.
            UnreachableError, PullCanceledError.
        """
        with self.stream(
            method, path, actions=actions, headers=headers, content=content, follow=follow, n_tries=n_tries
        ) as response:
            _read(response, MAX_BODY_BYTES)
            return response

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        actions: str = "pull",
        headers: Mapping[str, str] | None = None,
        content: Content = None,
        follow: bool = True,
        n_tries: int = 1,
    ) -> Iterator[httpx.Response]:
        """The same, with the body yet to be read. What breaks while it is read is UnreachableError too."""
        response = self._patiently(
            method, self.origin.join(path), actions, dict(headers or {}), content, follow, n_tries
        )
        try:
            yield response
        except httpx.TransportError as error:
            raise unreachable(response.request.url, error) from error
        finally:
            response.close()

    def abort(self) -> None:
        """Break off all connections, those yet to come too: threads that wait for an answer get UnreachableError."""
        self._sockets.shut()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- one request, again and again

    def _patiently(
        self,
        method: str,
        url: httpx.URL,
        actions: str,
        headers: dict[str, str],
        content: Content,
        follow: bool,
        n_tries: int,
    ) -> httpx.Response:
        attempt = 0
        while True:
            check_canceled(self.cancel)
            response = self._authorized(method, url, actions, headers, content, follow)
            if response.status_code < 400:
                return response
            error = _error(response)
            attempt += 1
            if response.status_code not in _TRY_AGAIN or attempt >= n_tries:
                raise error
            self.patience.wait(attempt - 1, self.cancel, response.headers.get("Retry-After"))

    def _authorized(
        self, method: str, url: httpx.URL, actions: str, headers: dict[str, str], content: Content, follow: bool
    ) -> httpx.Response:
        """Answer a challenge once, with what the registry then gets at every request for these actions."""
        sent = self._authorization.get(actions, self._always)
        response = self._followed(method, url, sent, headers, content, follow)
        if response.status_code != 401 or not _same_origin(response.request.url, self.origin):
            return response
        with self._lock:
            known = self._authorization.get(actions, self._always)
            if known == sent:
                _read(response, _MAX_ERROR_BYTES)
                challenges = parse_challenges(response.headers.get_list("WWW-Authenticate"))
                scope = f"repository:{self.name.namespace}/{self.name.model}:{actions}"
                answer = self._tokens.answer(challenges, scope)
                if answer is None or answer == sent:
                    return response
                self._authorization[actions] = known = answer
        response.close()
        return self._followed(method, url, known, headers, content, follow)

    def _followed(
        self,
        method: str,
        url: httpx.URL,
        authorization: str | None,
        headers: dict[str, str],
        content: Content,
        follow: bool,
    ) -> httpx.Response:
        for _ in range(_MAX_REDIRECTS):
            own = {**headers, "Authorization": authorization} if authorization else dict(headers)
            response = self._sent(method, url, own if _same_origin(url, self.origin) else headers, content)
            location = response.headers.get("Location")
            if not follow or response.status_code not in _REDIRECTS or not location:
                return response
            response.close()
            target = url.join(location)
            if url.scheme == "https" and target.scheme != "https":
                raise RemoteError(
                    url.host, response.status_code, f"redirects to an unprotected address on {target.host}"
                )
            if response.status_code == 303 and method not in ("GET", "HEAD"):
                method, content = "GET", None
            url = target
        raise RemoteError(url.host, response.status_code, "redirects too often")

    def _sent(self, method: str, url: httpx.URL, headers: Mapping[str, str], content: Content) -> httpx.Response:
        body = content() if callable(content) else content
        # Blobs are taken as they are: a length or a range is one of their own bytes.
        request = self._http.build_request(
            method,
            url,
            headers={"Accept-Encoding": "identity", **headers},
            content=body,
            extensions={"trace": self._sockets.note},
        )
        try:
            return self._http.send(request, stream=True)
        except httpx.TransportError as error:
            raise unreachable(url, error) from error

    def _fetch(self, request: httpx.Request) -> httpx.Response:
        response = self._sent(request.method, request.url, dict(request.headers), None)
        _read(response, _MAX_ERROR_BYTES)
        return response


def _same_origin(url: httpx.URL, origin: httpx.URL) -> bool:
    return (url.scheme, url.host, url.port) == (origin.scheme, origin.host, origin.port)


def _error(response: httpx.Response) -> RemoteError:
    try:
        _read(response, _MAX_ERROR_BYTES)
    except (UnreachableError, RemoteError):
        # The status counts, whatever is wrong with the words.
        response._content = b""
    return error_of(response)


def _read(response: httpx.Response, max_bytes: int) -> None:
    """Read the body, as `response.content`; a longer one is cut off and is an error.

    Raises:
        UnreachableError, RemoteError.
    """
    if response.is_closed and hasattr(response, "_content"):
        return
    host = response.request.url.host
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in response.iter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise RemoteError(host, response.status_code, f"its answer is longer than {max_bytes} bytes")
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise unreachable(response.request.url, error) from error
    finally:
        response.close()
    response._content = b"".join(pieces)
