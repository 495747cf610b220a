"""HTTP client of the daemon's native API, for the command line; it knows nothing of terminals or of starting daemons.

Bodies and answers are plain dicts in the API's own shape. Failures are exceptions:

    ClientError              carries `status` (None where there was no answer) and the server's text
    ├── NoServerError            nothing listens at the address
    └── EndpointMissingError     the server answers, but does not have this endpoint
"""

import json
import ssl
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO
from urllib.parse import quote

# Where click and rich are installed, httpx imports a command line of its own, which takes half of its import time;
# every command would pay for it. A module that is absent is a case that httpx provides for.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402

from localllm import __version__, env  # noqa: E402
from localllm.errors import LocalLLMError  # noqa: E402

CONNECT_TIMEOUT_S = 10.0
HEARTBEAT_TIMEOUT_S = 15.0
PIECE_BYTES = 1 << 18
# How the server is told of a file of this machine instead of being sent it (localllm/server/blobs.py).
FILE_HEADER = "X-Localllm-File"


class ClientError(LocalLLMError):
    """The server refused, failed or broke off. `status` is the HTTP status, None without an answer."""

    def __init__(self, message: str, *, status: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class NoServerError(ClientError):
    """Nothing accepts connections at the server's address."""


class EndpointMissingError(ClientError):
    """The server has no such endpoint: an older version, or another program with the same API."""


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine for certain (`localhost`, 127.0.0.0/8, ::1)."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _trusted() -> Any:
    """The system's certificates, and the one of a daemon on this machine. Raises: ClientError."""
    own = env.tls_cert()
    if own is None:
        return True
    context = httpx.create_ssl_context()
    try:
        context.load_verify_locations(own)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(f"LOCALLLM_TLS_CERT: {own} is not a certificate that can be read: {error}") from error
    return context


class Client:
    """One connection pool to the server at `url` (default: where LOCALLLM_HOST points). Use as a context manager."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or env.connect_url()
        self.is_local = is_loopback(httpx.URL(self.url).host)
        # A proxy from the environment must not see requests to this machine; reads may take as long as a model needs.
        key = env.api_key()
        self._http = httpx.Client(
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            trust_env=not self.is_local,
            verify=_trusted() if self.url.startswith("https:") else False,
            headers={"User-Agent": f"localllm/{__version__}", **({"Authorization": f"Bearer {key}"} if key else {})},
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections; running requests are cancelled by the server."""
        self._http.close()

    def is_alive(self) -> bool:
        """Whether a server answers at the address. Raises: ClientError where something else does."""
        try:
            self._request("HEAD", "/", timeout=HEARTBEAT_TIMEOUT_S)
        except NoServerError:
            return False
        except ClientError as error:
            raise ClientError(
                f"{self.url} does not answer as a localllm server does: {error}",
                hint="another program may hold the port; LOCALLLM_HOST=127.0.0.1:PORT chooses another one",
            ) from error
        return True

    def version(self) -> str:
        """The server's version; of a server that is not localllm, the version it calls its own."""
        answer = self._get("/api/version")
        return str(answer.get("localllm") or answer.get("version", ""))

    def tags(self) -> list[dict[str, Any]]:
        """The models in the store, newest first."""
        return list(self._get("/api/tags").get("models") or [])

    def ps(self) -> list[dict[str, Any]]:
        """The models in memory."""
        return list(self._get("/api/ps").get("models") or [])

    def show(self, model: str, *, verbose: bool = False) -> dict[str, Any]:
        """All that is known of one model; `verbose` includes long arrays."""
        return _object(self._post("/api/show", {"model": model, "verbose": verbose}))

    def copy(self, source: str, destination: str) -> None:
        """Gives `source` a second name."""
        self._post("/api/copy", {"source": source, "destination": destination})

    def delete(self, model: str) -> None:
        """Removes a name, and the blobs that no other name uses."""
        self._request("DELETE", "/api/delete", {"model": model})

    def unload(self, model: str) -> None:
        """Asks the server to drop the model from memory."""
        self._post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})

    def embed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Embeddings of `body["input"]`."""
        return _object(self._post("/api/embed", body))

    def pull(self, model: str, *, insecure: bool = False) -> Iterator[dict[str, Any]]:
        """Progress objects of a download: `status`, and for layers `digest`, `total`, `completed`."""
        return self._stream("/api/pull", {"model": model, "insecure": insecure, "stream": True})

    def push(self, model: str, *, insecure: bool = False) -> Iterator[dict[str, Any]]:
        """Progress objects of an upload to the registry of `model`, like those of `pull`."""
        return self._stream("/api/push", {"model": model, "insecure": insecure, "stream": True})

    @property
    def shares_files(self) -> bool:
        """Whether the server may take files by their names: it is localllm, and as far as one can tell here."""
        return self.is_local and bool(self._get("/api/version").get("localllm"))

    def has_blob(self, digest: str) -> bool:
        """Whether the server has a file with this digest (`sha256:<hex>`)."""
        try:
            self._request("HEAD", f"/api/blobs/{digest}")
        except ClientError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            return False
        return True

    def share_blob(self, digest: str, path: Path) -> Iterator[dict[str, Any]]:
        """Progress objects of the server taking a file of this machine. Raises: ClientError where it cannot."""
        return self._stream(f"/api/blobs/{digest}", None, {FILE_HEADER: quote(str(path))})

    def send_blob(self, digest: str, path: Path, sent: Callable[[int], None]) -> None:
        """Sends a file; `sent` is called in between with the bytes that are on their way."""
        size = path.stat().st_size
        try:
            with open(path, "rb") as file:
                response = self._http.post(
                    f"{self.url}/api/blobs/{digest}",
                    content=_pieces(file, sent),
                    headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
                )
        except httpx.HTTPError as error:
            raise self._failure(error) from error
        if response.is_error:
            raise _refusal(response)

    def create(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Progress objects of making the model `body["model"]`."""
        return self._stream("/api/create", body)

    def load(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Progress objects of loading `body["model"]` into memory.

        Raises: EndpointMissingError from a server without this endpoint (it is not part of Ollama's API).
        """
        return self._stream("/api/load", body)

    def generate(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a completion; the last one has `done: true`."""
        return _whole(self._stream("/api/generate", body))

    def chat(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a chat answer; the last one has `done: true`."""
        return _whole(self._stream("/api/chat", body))

    def _get(self, path: str) -> dict[str, Any]:
        return _object(self._request("GET", path))

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self._request("POST", path, body)

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float | None = None
    ) -> httpx.Response:
        """One whole answer; `timeout` seconds without any byte end it, None waits for ever."""
        try:
            response = self._http.request(
                method, self.url + path, timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT_S), **_payload(body)
            )
        except httpx.HTTPError as error:
            raise self._failure(error) from error
        if response.is_error:
            raise _refusal(response)
        return response

    def _stream(
        self, path: str, body: dict[str, Any] | None, headers: dict[str, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        request = _payload(body) | ({"headers": headers} if headers else {})
        try:
            with self._http.stream("POST", self.url + path, **request) as response:
                if response.is_error:
                    response.read()
                    raise _refusal(response)
                yield from map(_checked_line, _lines(response))
        except httpx.HTTPError as error:
            raise self._failure(error) from error

    def _failure(self, error: httpx.HTTPError) -> ClientError:
        tls = _tls_error(error)
        if tls is not None:
            return ClientError(
                f"no TLS connection to {self.url}: {getattr(tls, 'verify_message', '') or tls.reason or tls}",
                hint="LOCALLLM_TLS_CERT names a certificate to trust; LOCALLLM_HOST says https or http",
            )
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return NoServerError(
                f"could not connect to a localllm server at {self.url}",
                hint="`localllm serve` starts one here; LOCALLLM_HOST says where to look",
            )
        return ClientError(
            f"the connection to {self.url} broke off: {error}", hint="see the server's log for the cause"
        )


def _pieces(file: BinaryIO, sent: Callable[[int], None]) -> Iterator[bytes]:
    n_bytes = 0
    while piece := file.read(PIECE_BYTES):
        yield piece
        n_bytes += len(piece)
        sent(n_bytes)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The failure of TLS that led to an error, if one did."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _payload(body: dict[str, Any] | None) -> dict[str, Any]:
    if body is None:
        return {}
    # Half a surrogate pair, from an argument or a terminal that is not UTF-8, becomes a question mark.
    content = json.dumps(body, ensure_ascii=False).encode(errors="replace")
    return {"content": content, "headers": {"Content-Type": "application/json"}}


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """The lines of a body, split at line feeds alone: JSON texts may hold other line separators."""
    rest = b""
    for block in response.iter_bytes():
        *whole, rest = (rest + block).split(b"\n")
        yield from filter(None, map(bytes.strip, whole))
    if rest.strip():
        yield rest


def _checked_line(line: bytes) -> dict[str, Any]:
    """One line as an object. Raises: ClientError for the server's own `error` lines and for anything else."""
    try:
        chunk = json.loads(line)
    except ValueError as error:
        raise ClientError(f"the server sent a line that is not JSON: {line[:80]!r}") from error
    if not isinstance(chunk, dict):
        raise ClientError(f"the server sent a line that is not an object: {line[:80]!r}")
    if chunk.get("error"):
        raise ClientError(_error_text(chunk["error"]), status=200, hint=chunk.get("hint"))
    return chunk


def _whole(chunks: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        yield chunk
        if chunk.get("done"):
            return
    raise ClientError("the server closed the answer before it was complete", hint="see the server's log for the cause")


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError as error:
        raise ClientError(f"the server's answer is not JSON: {response.text[:80]!r}") from error
    if not isinstance(content, dict):
        raise ClientError(f"the server's answer is not an object: {response.text[:80]!r}")
    return content


def _refusal(response: httpx.Response) -> ClientError:
    """The exception for a response with an error status; a 404 or 405 without an error object is a missing endpoint."""
    try:
        content = response.json()
    except ValueError:
        content = None
    if response.status_code == httpx.codes.UNAUTHORIZED:
        text = _error_text(content["error"]) if isinstance(content, dict) and content.get("error") else "unauthorized"
        return ClientError(text, status=response.status_code, hint="set LOCALLLM_API_KEY to a key of this server")
    if isinstance(content, dict) and content.get("error"):
        return ClientError(_error_text(content["error"]), status=response.status_code, hint=content.get("hint"))
    text = response.text.strip() or f"{response.status_code} {response.reason_phrase}"
    if response.status_code not in (404, 405):
        return ClientError(text, status=response.status_code)
    request = response.request
    return EndpointMissingError(
        f"the server does not offer {request.method} {request.url.path} ({text})", status=response.status_code
    )


def _error_text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
