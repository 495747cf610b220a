"""The environment variables: twins, forms of values, what is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localllm import env
from localllm.durations import FOREVER_NS
from localllm.errors import SettingError

S = 10**9
Set = Callable[..., None]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith((env.PREFIX, env.TWIN_PREFIX)):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("", ("http", "127.0.0.1", 11434, ""), "http://127.0.0.1:11434"),
        ("box", ("http", "box", 11434, ""), "http://box:11434"),
        ("box:80", ("http", "box", 80, ""), "http://box:80"),
        (":1234", ("http", "127.0.0.1", 1234, ""), "http://127.0.0.1:1234"),
        ("0.0.0.0", ("http", "0.0.0.0", 11434, ""), "http://127.0.0.1:11434"),
        ("http://box", ("http", "box", 80, ""), "http://box:80"),
        ("https://box", ("https", "box", 443, ""), "https://box:443"),
        ("HTTPS://box:1/a/b/", ("https", "box", 1, "/a/b"), "https://box:1/a/b"),
        ("[::1]", ("http", "::1", 11434, ""), "http://[::1]:11434"),
        ("[::1]:99", ("http", "::1", 99, ""), "http://[::1]:99"),
        ("::1", ("http", "::1", 11434, ""), "http://[::1]:11434"),
        ("[::]:99", ("http", "::", 99, ""), "http://[::1]:99"),
        (' "box:5" ', ("http", "box", 5, ""), "http://box:5"),
    ],
)
def test_host(monkeypatch: pytest.MonkeyPatch, text: str, address: Any, url: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", text)
    assert env.host() == address and env.connect_url() == url


@pytest.mark.parametrize("text", ["box:99999", "box:port", "ftp://box", "[::1", "a:b:c"])
def test_bad_hosts(monkeypatch: pytest.MonkeyPatch, text: str, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OLLAMA_HOST", text)
    assert env.host().port == 11434 and "OLLAMA_HOST" in caplog.text
    monkeypatch.setenv("LOCALLLM_HOST", text)
    with pytest.raises(SettingError, match="LOCALLLM_HOST"):
        env.host()


def test_the_target_between_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALLLM_TBT_TARGET_MS", raising=False)
    assert env.tbt_target_ms() == 100
    monkeypatch.setenv("LOCALLLM_TBT_TARGET_MS", "0")
    assert env.tbt_target_ms() == 0
    monkeypatch.setenv("LOCALLLM_TBT_TARGET_MS", "-1")
    with pytest.raises(SettingError, match="LOCALLLM_TBT_TARGET_MS='-1'"):
        env.tbt_target_ms()


def test_ours_counts_before_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MAX_QUEUE", "7")
    assert env.max_queue() == 7
    monkeypatch.setenv("LOCALLLM_MAX_QUEUE", "9")
    assert env.max_queue() == 9
    monkeypatch.setenv("LOCALLLM_MAX_QUEUE", "  ")
    assert env.max_queue() == 7


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("", 300 * S),
        ("-1", FOREVER_NS),
        ("-1s", FOREVER_NS),
        ("0", 0),
        ("30", 30 * S),
        ("2s", 2 * S),
        ("1h30m", 5400 * S),
    ],
)
def test_keep_alive(monkeypatch: pytest.MonkeyPatch, text: str, duration_ns: int) -> None:
    monkeypatch.setenv("LOCALLLM_KEEP_ALIVE", text)
    assert env.keep_alive_ns() == duration_ns


@pytest.mark.parametrize(("text", "timeout_s"), [("", 300.0), ("0", None), ("-1", None), ("10", 10.0), ("1m", 60.0)])
def test_load_timeout(monkeypatch: pytest.MonkeyPatch, text: str, timeout_s: float | None) -> None:
    monkeypatch.setenv("LOCALLLM_LOAD_TIMEOUT", text)
    assert env.load_timeout_s() == timeout_s


@pytest.mark.parametrize(
    ("text", "claim"), [("", False), ("0", False), ("false", False), ("F", False), ("1", True), ("no", True)]
)
def test_booleans(monkeypatch: pytest.MonkeyPatch, text: str, claim: bool) -> None:
    monkeypatch.setenv("LOCALLLM_NOPRUNE", text)
    assert env.noprune() is claim


def test_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert env.models_dir() == tmp_path / ".localllm/models"
    monkeypatch.setenv("LOCALLLM_STATE_DIR", str(tmp_path / "state"))
    assert env.models_dir() == tmp_path / "state/models" and env.state_dir() == tmp_path / "state"
    monkeypatch.setenv("OLLAMA_MODELS", "~/shared")
    assert env.models_dir() == tmp_path / "shared"
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "cache"))
    assert env.cache_dir() == tmp_path / "cache"


def test_lists_and_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_ORIGINS", " https://a , https://b,, ")
    monkeypatch.setenv("OLLAMA_KV_CACHE_TYPE", "Q8_0")
    monkeypatch.setenv("LOCALLLM_NUM_PARALLEL", "0")
    assert env.origins() == ["https://a", "https://b"] and env.kv_cache_type() == "q8_0" and env.num_parallel() == 16
    monkeypatch.setenv("OLLAMA_KV_CACHE_TYPE", "q5_1")
    assert env.kv_cache_type() == "f16"


def test_check_finds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.check() == []
    monkeypatch.setenv("LOCALLLM_MAX_QUEUE", "many")
    monkeypatch.setenv("LOCALLLM_KV_CACHE_TYPE", "q3")
    monkeypatch.setenv("LOCALLLM_NUM_THREAD", "2")
    monkeypatch.setenv("OLLAMA_UNKNOWN", "1")
    problems = [(str(problem), problem.hint) for problem in env.check()]
    assert [text.partition(" cannot")[0] for text, _ in problems] == [
        "LOCALLLM_MAX_QUEUE='many'",
        "LOCALLLM_KV_CACHE_TYPE='q3'",
        "unknown environment variable: LOCALLLM_NUM_THREAD",
    ]
    assert problems[-1][1] == "did you mean `LOCALLLM_NUM_THREADS`?"


def test_every_function_has_a_row() -> None:
    names = {variable.name.lower() for variable in env.VARIABLES}
    functions = {
        "keep_alive": "keep_alive_ns",
        "load_timeout": "load_timeout_s",
        "models": "models_dir",
        "client_timeout": "client_timeout_s",
    }
    for name in names - {"cpu"}:
        assert callable(getattr(env, functions.get(name, name)))


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("0", 0), ("123", 123), ("20GB", 20 * 10**9), ("1.5 tb", 15 * 10**11), ("7k", 7000), ("500 MB", 5 * 10**8)],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, n_bytes: int) -> None:
    monkeypatch.setenv("LOCALLLM_WEIGHT_CACHE_MAX", text)
    assert env.weight_cache_max() == n_bytes


def test_shares_of_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=1000))
    monkeypatch.delenv("LOCALLLM_WEIGHT_CACHE_MAX", raising=False)
    assert env.weight_cache_max() == 200
    monkeypatch.setenv("LOCALLLM_WEIGHT_CACHE_MAX", "7.5 %")
    assert env.weight_cache_max() == 75


@pytest.mark.parametrize("text", ["much", "-1", "GB", "nan", "inf", "5%%", "-3%", "1", "99b"])
def test_sizes_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCALLLM_WEIGHT_CACHE_MAX", text)
    with pytest.raises(SettingError, match="share of the disk"):
        env.weight_cache_max()


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("", 900), ("50%", 500), ("12.5%", 125), ("600", 600), ("0.3KB", 300), ("8GB", 1000)]
)
def test_what_models_may_take(monkeypatch: pytest.MonkeyPatch, text: str, n_bytes: int) -> None:
    monkeypatch.setenv("LOCALLLM_MAX_MEMORY", text)
    assert env.max_memory(1000) == n_bytes


@pytest.mark.parametrize("text", ["0", "0%", "-1GB", "half", "nan", "50 percent", "8"])
def test_what_models_may_take_must_be_something(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCALLLM_MAX_MEMORY", text)
    (problem,) = env.check()
    assert "LOCALLLM_MAX_MEMORY" in str(problem) and "8GB" in str(problem)
