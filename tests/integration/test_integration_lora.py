"""LoRA adapters through the real daemon: per request, two at once, beside the base and in one process with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from registry.manifest import LAYER_MEDIA_TYPE_PREFIX
from registry.names import parse_name
from registry.store import Store

pytestmark = pytest.mark.integration
PROMPT = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. "
OPTIONS = {"seed": 3, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_predict": 60, "ignore_eos": True}


@pytest.fixture
def adapters(
    server: Any, model: Callable[[str], str], gguf: Callable[[str], Path], lora_files: ModuleType, tmp_path: Path
) -> list[str]:
    """Two models that are `random` with an adapter each."""
    model("random")
    store = Store(server.models)
    names = []
    for recipe in (lora_files.FIRST, lora_files.SECOND):
        content = lora_files.adapter_for(gguf("random"), tmp_path / f"{recipe.name}.gguf", recipe).read_bytes()
        digest, _ = store.blobs.put(content)
        manifest = json.loads(store.manifest(parse_name("random")).raw)
        kind = f"{LAYER_MEDIA_TYPE_PREFIX}adapter"
        manifest["layers"].append({"mediaType": kind, "digest": digest, "size": len(content)})
        names.append(f"random-{recipe.name}")
        store.write_manifest(parse_name(names[-1]), json.dumps(manifest).encode())
    return names


def said(server: Any, name: str = "random", **fields: Any) -> tuple[str, tuple[float, ...]]:
    """The text, and the log-probability of every token."""
    body = {"model": name, "prompt": PROMPT, "raw": True, "options": OPTIONS, "logprobs": True, **fields}
    whole = server.post("/api/generate", body)
    return whole["response"], tuple(item["logprob"] for item in whole["logprobs"])


def test_requests_with_different_adapters(server: Any, adapters: list[str]) -> None:
    """Each answers as it does alone, in one process, which the base was loaded into."""
    first, second = ([{"name": name, "scale": 1.5}] for name in adapters)
    alone = [said(server), said(server, lora=first), said(server, lora=second), said(server, lora=[*first, *second])]
    assert len(set(alone)) == 4
    pids = {server.runner_of("random").pid}
    asked = [{}, {"lora": first}, {"lora": second}, {"lora": [*second, *first]}]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda fields: said(server, **fields), asked * 4))
    assert together == alone * 4
    assert [said(server, **fields) for fields in asked] == alone, "with the prompt in the cache as well"
    assert {server.runner_of("random").pid} == pids


def test_a_models_own_adapter(server: Any, adapters: list[str]) -> None:
    """In force unless the request says otherwise; the base is not loaded again for it."""
    name, other = adapters
    base = said(server)
    pid = server.runner_of("random").pid
    own = said(server, name)
    assert own == said(server, lora=[{"name": name}]) != base
    assert said(server, name, lora=[]) == base
    assert said(server, name, lora=[{"name": other}]) == said(server, other)
    assert said(server, lora=[{"name": name, "scale": 0}]) == base
    assert server.runner_of("random").pid == pid and server.runner_of("random").is_running()


def test_own_adapters_from_the_first_request_on(server: Any, adapters: list[str]) -> None:
    expected = said(server, lora=[{"name": adapters[0]}])
    server.unload_all()
    assert said(server, adapters[0]) == expected


def test_other_dialects(server: Any, adapters: list[str]) -> None:
    body = {"model": "random", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    texts = [
        server.post("/v1/completions", {**body, **fields})["choices"][0]["text"]
        for fields in ({}, {"lora": [{"name": adapters[0], "scale": 2}]}, {"lora": []})
    ]
    assert texts[0] == texts[2] != texts[1]


def test_an_adapter_of_another_architecture(
    server: Any, adapters: list[str], lora_files: ModuleType, tmp_path: Path
) -> None:
    """Fails its request, whoever else runs."""
    store = Store(server.models)
    file = lora_files.write(tmp_path / "x.gguf", "qwen2", {"blk.0.attn_q.weight": ([[1.0]], [[1.0]])})
    digest, _ = store.blobs.put(file.read_bytes())
    manifest = json.loads(store.manifest(parse_name("random")).raw)
    layer = {"mediaType": f"{LAYER_MEDIA_TYPE_PREFIX}adapter", "digest": digest, "size": file.stat().st_size}
    manifest["layers"].append(layer)
    store.write_manifest(parse_name("random-wrong"), json.dumps(manifest).encode())
    base = said(server)
    error = server.refused("/api/generate", {"model": "random", "prompt": "x", "lora": [{"name": "random-wrong"}]}, 400)
    assert "it is for architecture 'qwen2', the model is of 'llama'" in error
    assert said(server) == base
