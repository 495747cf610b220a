"""The HTTP client: streams line by line, and errors that carry status, text and hint."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localllm.client import Client, ClientError, EndpointMissingError, NoServerError, is_loopback

Server = Callable[..., str]


@pytest.fixture
def server() -> Iterator[Server]:
    """Starts a server that gives one fixed answer; returns its URL."""
    running: list[http.server.HTTPServer] = []

    def start(status: int, body: bytes) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *arguments: Any) -> None:
                pass

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.do_GET()

            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            do_DELETE = do_HEAD = do_POST  # noqa: N815

        running.append(http.server.HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=running[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_port}"

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


def lines(*objects: Any) -> bytes:
    return b"".join(json.dumps(item, ensure_ascii=False).encode() + b"\n" for item in objects)


def test_lines_end_at_line_feeds_alone(server: Server) -> None:
    chunks = [{"response": "a\u2028b\x85c\x0bd"}, {"response": "漢字" * 50_000}, {"response": "", "done": True}]
    with Client(server(200, lines(*chunks))) as client:
        assert list(client.generate({"model": "m"})) == chunks


def test_a_last_line_without_a_line_feed_counts(server: Server) -> None:
    with Client(server(200, b'\n{"status": "one"}\r\n{"status": "two"}')) as client:
        assert list(client.pull("m")) == [{"status": "one"}, {"status": "two"}]


@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (400, lines({"error": "bad", "hint": "better"}), "bad", "better"),
        (500, lines({"error": {"message": "nested"}}), "nested", None),
        (503, b"upstream\n", "upstream", None),
        (502, b"", "502 Bad Gateway", None),
        (404, lines({"error": "model 'm' not found"}), "model 'm' not found", None),
    ],
)
def test_refusals_carry_status_text_and_hint(
    server: Server, status: int, body: bytes, message: str, hint: str | None
) -> None:
    with Client(server(status, body)) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.show("m"),
            lambda: client.delete("m"),
            lambda: list(client.chat({})),
        ]
        for call in calls:
            with pytest.raises(ClientError) as caught:
                call()
            assert (str(caught.value), caught.value.hint, caught.value.status) == (message, hint, status)
            assert not isinstance(caught.value, EndpointMissingError)


@pytest.mark.parametrize("status", [404, 405])
def test_a_missing_endpoint_is_told_from_a_missing_model(server: Server, status: int) -> None:
    with (
        Client(server(status, b"page not found")) as client,
        pytest.raises(EndpointMissingError, match="POST /api/load"),
    ):
        list(client.load({"model": "m"}))


def test_an_error_line_ends_the_stream(server: Server) -> None:
    body = lines({"response": "x"}, {"error": "out of memory", "hint": "h"}, {"done": True})
    with Client(server(200, body)) as client:
        stream = client.generate({})
        assert next(stream) == {"response": "x"}
        with pytest.raises(ClientError, match="out of memory") as caught:
            next(stream)
        assert caught.value.hint == "h"


@pytest.mark.parametrize("body", [b"{oops\n", b"[1]\n", b'"text"\n'])
def test_what_is_not_an_object_is_an_error(server: Server, body: bytes) -> None:
    with Client(server(200, body)) as client:
        with pytest.raises(ClientError, match="not"):
            list(client.pull("m"))
        with pytest.raises(ClientError, match="not"):
            client.show("m")


def test_an_answer_must_end_with_done(server: Server) -> None:
    with Client(server(200, lines({"response": "x"}))) as client, pytest.raises(ClientError, match="before it was"):
        list(client.generate({}))


def test_nobody_listening_is_its_own_error() -> None:
    with Client("http://127.0.0.1:9") as client:
        assert not client.is_alive()
        with pytest.raises(NoServerError, match="could not connect"):
            client.tags()
        with pytest.raises(NoServerError):
            list(client.pull("m"))


def test_another_program_on_the_port_is_told_from_a_server(server: Server) -> None:
    with Client(server(200, b"")) as client:
        assert client.is_alive()
    with Client(server(404, b"")) as client, pytest.raises(ClientError, match=r"^http://.* does not answer as a"):
        client.is_alive()


def test_proxies_of_the_environment_do_not_see_local_requests(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with Client(server(200, lines({"models": [{"name": "m"}]}))) as client:
        assert client.tags() == [{"name": "m"}]


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALLLM_HOST", raising=False)
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:4567")
    with Client() as client:
        assert (client.url, client.is_local) == ("http://127.0.0.1:4567", True)


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("127.1.2.3", True), ("::1", True), ("192.168.0.1", False), ("example.org", False)],
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local
