"""The adapters that requests name, in every dialect: what the runner is told, and what is refused."""

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from localllm.server.anthropic import request as anthropic_request
from localllm.server.openai import chat as openai_chat
from localllm.server.openai import completions
from localllm.server.openai.responses import endpoint as responses_endpoint
from registry.manifest import LAYER_MEDIA_TYPE_PREFIX
from registry.names import parse_name
from registry.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
def add_adapter(store: Store) -> Callable[..., str]:
    """add_adapter(name, content, keeps_model=True): gives a model an adapter layer; the adapter's digest."""

    def add(name: str, content: bytes, keeps_model: bool = True) -> str:
        parsed = parse_name(name)
        manifest = json.loads(store.manifest(parsed).raw)
        digest, size = store.blobs.put(content), len(content)
        digest = digest[0] if isinstance(digest, tuple) else digest
        layer = {"mediaType": f"{LAYER_MEDIA_TYPE_PREFIX}adapter", "digest": digest, "size": size}
        kept = [x for x in manifest["layers"] if keeps_model or not x["mediaType"].endswith("model")]
        manifest["layers"] = [*kept, layer]
        store.write_manifest(parsed, json.dumps(manifest).encode())
        return hashlib.sha256(content).hexdigest()

    return add


@pytest.fixture
def models(add_model: Callable[..., None], add_adapter: Callable[..., str]) -> dict[str, str]:
    """`base`; `one` and `two`, which are base with an adapter; `loose`, an adapter alone; `other`, of another base."""
    for name in ("base", "one", "two", "loose"):
        add_model(name)
    add_model("other", jinja="{{ messages[0].content }}")
    contents = {"one": b"first", "two": b"second", "other": b"third"}
    digests = {name: add_adapter(name, content) for name, content in contents.items()}
    return {**digests, "loose": add_adapter("loose", b"fourth", keeps_model=False)}


def asked(answer: str) -> list[tuple[str, float]] | None:
    """Digests and scales in the runner's request, which the fake one tells."""
    lora = json.loads(answer)["lora"]
    assert lora is not None and all(item["path"].endswith(item["digest"]) for item in lora)
    return [(item["digest"], item["scale"]) for item in lora]


DIALECTS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[dict[str, Any]], str]]] = {
    "/api/generate": (lambda text: {"prompt": text, "stream": False}, lambda got: got["response"]),
    "/api/chat": (
        lambda text: {"messages": [{"role": "user", "content": text}], "stream": False},
        lambda got: got["message"]["content"],
    ),
    "/v1/completions": (lambda text: {"prompt": text}, lambda got: got["choices"][0]["text"]),
    "/v1/chat/completions": (
        lambda text: {"messages": [{"role": "user", "content": text}]},
        lambda got: got["choices"][0]["message"]["content"],
    ),
    "/v1/responses": (lambda text: {"input": text}, lambda got: got["output"][0]["content"][0]["text"]),
    "/v1/messages": (
        lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 9},
        lambda got: got["content"][0]["text"],
    ),
}


@pytest.mark.parametrize("path", DIALECTS)
async def test_what_the_runner_is_told(path: str, running: Callable[..., Any], models: dict[str, str]) -> None:
    body, answer = DIALECTS[path]
    cases = [
        ("base", {}, []),
        ("one", {}, [(models["one"], 1.0)]),
        ("one", {"lora": None}, [(models["one"], 1.0)]),
        ("one", {"lora": []}, []),
        ("base", {"lora": [{"name": "one"}]}, [(models["one"], 1.0)]),
        ("one", {"lora": [{"name": "two:latest", "scale": 0.5}]}, [(models["two"], 0.5)]),
        ("base", {"lora": [{"name": "loose", "scale": 2}]}, [(models["loose"], 2.0)]),
        # Of another file, say another quantisation: whether it fits is the runner's to see.
        ("base", {"lora": [{"name": "other"}]}, [(models["other"], 1.0)]),
        (
            "base",
            {"lora": [{"name": "one", "scale": -1}, {"name": "two", "scale": 0}]},
            [(models["one"], -1.0), (models["two"], 0.0)],
        ),
    ]
    async with running() as r:
        for model, fields, wanted in cases:
            response = await r.post(path, {"model": model, **body("!request"), **fields})
            assert response.status_code == 200, response.text
            assert asked(answer(response.json())) == wanted


REFUSALS = [
    ([{"name": "missing"}], 404, "model 'missing' not found"),
    ([{"name": "base"}], 400, "lora: model 'base' has no adapter"),
    ([{"name": "one"}] * 65, 400, "lora: at most 64 entries, not 65"),
    ([{"name": "one", "scale": 10**400}], 400, "expected a number"),
    ([{"scale": 1}], 400, 'each entry needs the \\"name\\"'),
    ([None], 400, 'each entry needs the \\"name\\"'),
    ([{"name": "one", "scale": "much"}], 400, "expected a number in -1e+06..1e+06, not much"),
    ([{"name": "one", "scale": True}], 400, "expected a number"),
    ([{"name": "one", "scale": 1e9}], 400, "expected a number"),
    ("one", 400, "cannot unmarshal string"),
    ([{"name": "../x"}], 400, "invalid model name"),
]


@pytest.mark.parametrize("path", DIALECTS)
async def test_refusals(path: str, running: Callable[..., Any], models: dict[str, str]) -> None:
    body, _ = DIALECTS[path]
    async with running() as r:
        for lora, status, text in REFUSALS:
            response = await r.post(path, {"model": "base", **body("hello"), "lora": lora})
            assert response.status_code == status, response.text
            assert text in response.text


async def test_scales_that_are_no_numbers(running: Callable[..., Any], models: dict[str, str]) -> None:
    async with running() as r:
        for number in ("NaN", "Infinity", "1e999", "-1e999"):
            text = f'{{"model": "base", "prompt": "x", "lora": [{{"name": "one", "scale": {number}}}]}}'
            response = await r.post("/api/generate", text)
            assert response.status_code == 400, response.text


@pytest.mark.parametrize("path", [path for path in DIALECTS if path.startswith("/v1/")])
async def test_a_dialect_is_translated_outside_of_the_event_loop(
    path: str, running: Callable[..., Any], models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, _ = DIALECTS[path]
    threads: list[int] = []
    for module, name in (
        (anthropic_request, "native_messages"),
        (openai_chat, "native_messages"),
        (responses_endpoint, "native_messages"),
        (completions, "prompts_of"),
    ):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, real=real: threads.append(threading.get_ident()) or real(*a))
    async with running() as r:
        assert (await r.post(path, {"model": "base", **body("hello")})).status_code == 200
    assert threads and threading.get_ident() not in threads


async def test_a_model_with_an_adapter_shares_the_process_of_its_base(
    running: Callable[..., Any], models: dict[str, str]
) -> None:
    async with running() as r:
        pids = [
            (await r.post("/api/generate", {"model": name, "prompt": "!pid", "stream": False})).json()["response"]
            for name in ("base", "one", "two", "base")
        ]
    assert len(set(pids)) == 1


async def test_embeddings_take_the_models_own(
    running: Callable[..., Any], add_model: Callable[..., None], add_adapter: Callable[..., str], monkeypatch: Any
) -> None:
    from localllm.scheduler.scheduler import Lease

    add_model("vectors")
    digest = add_adapter("vectors", b"fifth")
    seen = []
    embed = Lease.embed

    async def spied(self: Any, request: Any) -> Any:
        seen.append(request.lora)
        return await embed(self, request)

    monkeypatch.setattr(Lease, "embed", spied)
    async with running() as r:
        response = await r.post("/api/embed", {"model": "vectors", "input": "x"})
    assert response.status_code == 200, response.text
    assert [(one["digest"], one["scale"]) for one in seen[0]] == [(digest, 1.0)]
