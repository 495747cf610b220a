"""What was evaluated of a prompt survives its process: restarts, unloading, damage; and goes with its model."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration
PROMPT = "You are a careful assistant, who weighs every word before it is written down. " * 10
OPTIONS = {"seed": 5, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_predict": 20, "ignore_eos": True}


def answer(server: Any, prompt: str = PROMPT) -> dict[str, Any]:
    body = {"model": "random", "prompt": prompt, "raw": True, "options": OPTIONS, "logprobs": True}
    whole: dict[str, Any] = server.post("/api/generate", body)
    return whole


def said(whole: dict[str, Any]) -> tuple[str, list[float]]:
    return whole["response"], [item["logprob"] for item in whole["logprobs"]]


def n_restored(server: Any) -> int:
    found = re.search(
        r"^localllm_prompt_tokens_restored_total\{.*\} ([0-9.e+]+)$", server.http.get("/metrics").text, re.M
    )
    assert found is not None
    return int(float(found[1]))


def test_prompts_survive(
    start_server: Callable[..., Any], gguf: Callable[[str], Path], cache_dir: Path, wait_for: Callable[..., None]
) -> None:
    prefixes = cache_dir / "prefixes"
    first = start_server(kv_disk="1GB")
    first.add(gguf("random"))
    cold = answer(first)
    n_full = cold["prompt_eval_count"] // 32 * 32
    assert "prompt_eval_cached_count" not in cold and n_full > 640
    assert first.stop() == 0
    pages = list(prefixes.glob("*/*.kv"))
    assert len(pages) * 32 >= n_full
    assert {stat.S_IMODE(path.stat().st_mode) for path in pages} == {0o600}

    second = start_server(models=first.models, kv_disk="1GB")
    warm = answer(second)
    assert (warm["prompt_eval_cached_count"], said(warm)) == (n_full, said(cold))
    wait_for(lambda: n_restored(second) == n_full)

    second.unload_all()  # as when the keep-alive is over
    longer = PROMPT + "It is raining. " * 20
    assert answer(second, longer)["prompt_eval_cached_count"] >= n_full
    second.unload_all()
    assert answer(second, longer)["prompt_eval_cached_count"] > n_full + 32
    second.unload_all()
    for path in prefixes.glob("*/*.kv"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    damaged = answer(second)
    assert said(damaged) == said(cold) and damaged.get("prompt_eval_cached_count", 0) < n_full
    assert "damaged" in second.log and PROMPT[:20] not in second.log

    second.http.request("DELETE", "/api/delete", json={"model": "random"}).raise_for_status()
    assert list(prefixes.glob("*/*")) == []


def test_nothing_is_kept_where_it_is_turned_off(
    start_server: Callable[..., Any], gguf: Callable[[str], Path], cache_dir: Path
) -> None:
    server = start_server(kv_disk="0")
    server.add(gguf("random"))
    answer(server)
    server.unload_all()
    assert "prompt_eval_cached_count" not in answer(server)
    assert list((cache_dir / "prefixes").glob("*/*.kv")) == []
