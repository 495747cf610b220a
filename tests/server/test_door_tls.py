"""TLS: a daemon and its clients over https, and files that cannot be used."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from localllm.client import Client, ClientError
from localllm.errors import SettingError
from localllm.server.tls import check_certificate

ROOT = Path(__file__).parents[2]
TLS = ROOT / "tests/fixtures/tls"
CERTIFICATE, KEY = TLS / "localhost.crt", TLS / "localhost.key"


def test_a_certificate_and_its_key() -> None:
    assert check_certificate(CERTIFICATE, KEY)
    assert not check_certificate(None, None)


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        (CERTIFICATE, None, "--tls-key"),
        (None, KEY, "--tls-cert"),
        (TLS / "none.crt", KEY, "none.crt cannot be read"),
        (CERTIFICATE, TLS, "tls cannot be read"),
        (CERTIFICATE, TLS / "other.key", "other.key does not belong to"),
        (KEY, KEY, "not a certificate"),
        (CERTIFICATE, Path(__file__), "not a certificate and its key"),
        (CERTIFICATE, TLS / "encrypted.key", "is encrypted"),
    ],
)
def test_files_that_cannot_be_used(certificate: Path | None, key: Path | None, text: str) -> None:
    with pytest.raises(SettingError, match=text):
        check_certificate(certificate, key)


def test_https(start_live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = start_live(LOCALLLM_TLS_CERT=str(CERTIFICATE), LOCALLLM_TLS_KEY=str(KEY))
    url = daemon.url
    monkeypatch.setenv("LOCALLLM_TLS_CERT", str(CERTIFICATE))
    with Client(url) as client:
        assert client.is_alive() and client.tags() == []
    monkeypatch.delenv("LOCALLLM_TLS_CERT")
    with Client(url) as client, pytest.raises(ClientError, match="no TLS connection"):
        client.tags()
    monkeypatch.setenv("LOCALLLM_TLS_CERT", str(KEY))
    with pytest.raises(ClientError, match="LOCALLLM_TLS_CERT"):
        Client(url)
    with pytest.raises(httpx.HTTPError):
        httpx.get(url.replace("https:", "http:"), trust_env=False)


def serve(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "LOCALLLM_"))}
    command = [sys.executable, "-m", "localllm", "serve", *arguments]
    env = {**clean, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_serve_says_what_is_wrong(tmp_path: Path) -> None:
    state = {"LOCALLLM_STATE_DIR": str(tmp_path), "LOCALLLM_HOST": "127.0.0.1:1"}
    ended = serve("--tls-cert", str(CERTIFICATE), "--tls-key", str(TLS / "other.key"), **state)
    assert ended.returncode == 1 and "does not belong to" in ended.stderr
    ended = serve(**{**state, "LOCALLLM_HOST": "https://127.0.0.1:1"})
    assert ended.returncode == 1 and "there is no certificate" in ended.stderr and "--tls-cert" in ended.stderr
    ended = serve(**state, LOCALLLM_API_KEYS=f"@{tmp_path}/none")
    assert ended.returncode == 1 and "localllm keys add" in ended.stderr
