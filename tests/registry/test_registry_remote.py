"""Talking to a registry: who we are, to whom that is told, what is tried again, and what is said when it fails."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from registry import PullCanceledError, parse_name
from registry.errors import InsecureProtocolError, RemoteError, RemoteNotFoundError, UnreachableError
from registry.remote import Credentials, Patience, Remote, key_path
from registry.remote.challenge import Challenge, parse_challenges
from registry.remote.credentials import find_credentials
from registry.remote.keys import KeyFileError, load_or_make

QUICK = Patience(stall_s=2, connect_s=2, backoff_s=0.01)
Connect = Callable[..., Remote]


@pytest.fixture(autouse=True)
def no_settings_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Docker's nor Hugging Face's."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def serve(registry_double: ModuleType) -> Iterator[Callable[..., Any]]:
    """Start a registry."""
    running = []

    def start(**options: Any) -> Any:
        server = registry_double.RegistryDouble(**options)
        server.add("me/m:latest", [(registry_double.MODEL, b"weights")])
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """A client for `me/m` on a server."""
    made = []

    def make(server: Any, **options: Any) -> Remote:
        options = {"insecure": True, "patience": QUICK, "key": tmp_path / "config" / "id_ed25519", **options}
        made.append(Remote(parse_name(f"http://{server.host}/me/m"), **options))
        return made[-1]

    yield make
    for remote in made:
        remote.close()


def manifest(remote: Remote) -> bytes:
    return remote.send("GET", "/v2/me/m/manifests/latest").content


@pytest.mark.parametrize(
    ("auth", "credentials"),
    [
        ("none", None),
        ("signed", None),
        ("token", None),
        ("token", Credentials("ann", "secret")),
        ("basic", Credentials("ann", "secret")),
        ("bearer", Credentials(password="the-token")),
    ],
)
def test_each_way_in(serve: Callable[..., Any], connect: Connect, auth: str, credentials: Credentials | None) -> None:
    server = serve(auth=auth)
    remote = connect(server, credentials=credentials)
    assert manifest(remote) == server.manifests["me/m:latest"]
    n_asked = len(server.log)
    manifest(remote)
    assert len(server.log) == n_asked + 1, "what let us in is used again"


@pytest.mark.parametrize(
    ("auth", "credentials"),
    [("basic", None), ("basic", Credentials("ann", "wrong")), ("token", Credentials("ann", "wrong")), ("bearer", None)],
)
def test_no_way_in(serve: Callable[..., Any], connect: Connect, auth: str, credentials: Credentials | None) -> None:
    server = serve(auth=auth)
    with pytest.raises(RemoteError, match=f"^401: .* \\({server.host}\\)$") as caught:
        manifest(connect(server, credentials=credentials))
    assert "secret" not in str(caught.value) and "wrong" not in str(caught.value)


def test_a_signature_goes_to_no_other_host(serve: Callable[..., Any], connect: Connect) -> None:
    server, elsewhere = serve(auth="token"), serve(auth="token")
    real = elsewhere.host

    def challenge(request: Any, path: str) -> None:
        header = f'Bearer realm="http://{real}/token",service="{real}",scope="repository:me/m:pull"'
        request.send_response(401)
        request.send_header("WWW-Authenticate", header)
        request.send_header("Content-Length", "0")
        request.end_headers()

    server._challenge = challenge
    assert manifest(connect(server))
    assert [authorization for *_, authorization in elsewhere.log] == [None]
    with pytest.raises(RemoteError, match="unprotected connection"):
        manifest(connect(server, credentials=Credentials("ann", "secret")))
    assert len(elsewhere.log) == 1


def test_who_we_are_is_not_told_where_a_redirect_leads(serve: Callable[..., Any], connect: Connect) -> None:
    server = serve(auth="signed", cdn=True)
    digest = json.loads(server.manifests["me/m:latest"])["layers"][0]["digest"]
    assert connect(server).send("GET", f"/v2/me/m/blobs/{digest}").content == b"weights"
    assert [authorization for *_, authorization in server.cdn.log] == [None]


def test_patience(serve: Callable[..., Any], connect: Connect) -> None:
    server = serve()
    server.refusals = [(429, {"Retry-After": "0"}), (503, {}), (500, {})]
    assert manifest(connect(server))
    server.refusals = [(503, {})] * 4
    with pytest.raises(RemoteError, match=f"^503: try later \\({server.host}\\)$") as caught:
        manifest(connect(server))
    assert (caught.value.status, caught.value.detail, server.refusals) == (503, "try later", [])
    server.refusals = [(403, {})] * 2
    with pytest.raises(RemoteError):
        manifest(connect(server))
    assert len(server.refusals) == 1, "not tried again"


def test_patience_ends_when_the_caller_gives_up(serve: Callable[..., Any], connect: Connect) -> None:
    server, cancel = serve(), threading.Event()
    server.refusals = [(429, {"Retry-After": "60"})]
    threading.Timer(0.1, cancel.set).start()
    with pytest.raises(PullCanceledError):
        manifest(connect(server, cancel=cancel))


def test_what_is_not_there(serve: Callable[..., Any], connect: Connect) -> None:
    remote = connect(serve())
    with pytest.raises(RemoteNotFoundError, match="404: manifest unknown"):
        remote.send("GET", "/v2/me/m/manifests/none")
    with pytest.raises(RemoteNotFoundError, match="404: Not Found"):
        remote.send("HEAD", "/v2/me/m/manifests/none")


def test_nobody_there() -> None:
    remote = Remote(parse_name("http://127.0.0.1:9/me/m"), insecure=True, patience=QUICK)
    with remote, pytest.raises(UnreachableError, match=r"^cannot reach 127\.0\.0\.1:9: "):
        manifest(remote)


def test_no_tls_where_it_was_expected(serve: Callable[..., Any]) -> None:
    host = serve().host
    with Remote(parse_name(f"{host}/me/m"), patience=QUICK) as remote, pytest.raises(UnreachableError) as caught:
        manifest(remote)
    assert caught.value.hint == f"a server that speaks no TLS is named http://{host}/…, with --insecure"


def test_http_must_be_allowed() -> None:
    with pytest.raises(InsecureProtocolError, match=r"^insecure protocol http$"):
        Remote(parse_name("http://h/n/m"))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Bearer realm="https://h/t",service="s",scope="repository:a/b:pull,push"',
         [Challenge("bearer", {"realm": "https://h/t", "service": "s", "scope": "repository:a/b:pull,push"})]),
        ("Basic realm=x", [Challenge("basic", {"realm": "x"})]),
        ('Basic realm="a, b", Bearer realm="c\\"d"', [Challenge("basic", {"realm": "a, b"}),
                                                      Challenge("bearer", {"realm": 'c"d'})]),
        ("Negotiate, Basic", [Challenge("negotiate"), Challenge("basic")]),
        ("", []),
        ('"', []),
    ],
)  # fmt: skip
def test_challenges(header: str, expected: list[Challenge]) -> None:
    assert parse_challenges([header]) == expected


# ---- whose credentials


def test_dockers_credentials_are_for_the_host_they_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = base64.b64encode(b"ann:se:cret").decode()
    auths = {
        "h:5000": {"auth": auth},
        "https://hub.example/v1/": {"username": "b", "password": "c"},
        "broken": {"auth": "?"},
    }
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    assert find_credentials("H:5000") == Credentials("ann", "se:cret")
    assert find_credentials("hub.example") == Credentials("b", "c")
    assert [find_credentials(host) for host in ("h", "h:5001", "evil-h:5000", "broken")] == [None] * 4
    assert find_credentials("h:5000", Credentials("me", "mine")) == Credentials("me", "mine")
    (tmp_path / "config.json").write_text("[]")
    assert find_credentials("h:5000") is None


def test_the_token_of_hugging_face_is_for_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", " hf_x ")
    assert find_credentials("HF.co") == find_credentials("huggingface.co") == Credentials(password="hf_x")
    assert find_credentials("hf.co.example") is None
    assert "hf_x" not in repr(Credentials(password="hf_x"))


# ---- the key


def test_a_key_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "id_ed25519"
    pair = load_or_make(path)
    assert path.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name("id_ed25519.pub").read_text() == f"ssh-ed25519 {pair.public}\n"
    assert load_or_make(path).public == pair.public
    assert sorted(file.name for file in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


def test_two_that_make_a_key_at_once_have_one(tmp_path: Path) -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(load_or_make(tmp_path / "k").public)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1 and len(made) == 8


def test_a_file_that_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("nonsense")
    with pytest.raises(KeyFileError, match=r'cannot use the key ".*id_ed25519"'):
        load_or_make(tmp_path / "id_ed25519")


def test_ollamas_own_key_is_used_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert key_path(tmp_path / "c") == tmp_path / "c" / "id_ed25519"
    (tmp_path / ".ollama").mkdir()
    (tmp_path / ".ollama" / "id_ed25519").touch()
    assert key_path(tmp_path / "c") == tmp_path / ".ollama" / "id_ed25519"
