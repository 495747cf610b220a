"""The draft model of a request: what the runner is told, and what has another one loaded."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from registry.names import parse_name
from registry.store import Store

pytestmark = pytest.mark.anyio

Add = Callable[..., None]


@pytest.fixture
def models(store: Store, add_model: Add, gguf_of: Callable[[str, str], bytes]) -> str:
    """`small` and `other`; `big`, whose Modelfile names `small`; `plain`, that has none; `whole`, that came with one,
    whose digest this is."""
    digest, _ = store.blobs.put(gguf_of("script", "a draft"))
    add_model("small", jinja="small")
    add_model("other", jinja="other")
    add_model("plain", jinja="plain")
    add_model("big", jinja="big", params={"draft_model": "small"})
    add_model("lost", jinja="lost", params={"draft_model": "nowhere"})
    add_model("whole", jinja="whole", drafts=[digest])
    return digest.partition(":")[2]


async def test_the_runner_is_told(store: Store, running: Callable[..., Any], models: str) -> None:
    small, other = (store.resolve(parse_name(name)).model_digest for name in ("small", "other"))
    cases: list[tuple[str, dict[str, Any], str | None]] = [
        ("plain", {}, None),
        ("plain", {"draft_model": "other:latest"}, other),
        ("big", {}, small),
        ("big", {"draft_model": "other"}, other),
        ("big", {"draft_model": "other", "num_ctx": 512}, other),
        ("whole", {}, models),
        ("whole", {"draft_model": "small"}, small),
    ]
    async with running() as r:
        for model, options, wanted in cases:
            body = {"model": model, "prompt": "!load", "stream": False, "options": options}
            loaded = json.loads((await r.post("/api/generate", body)).json()["response"])
            assert (loaded["draft"] and loaded["draft"]["model_digest"]) == wanted, (model, options)
            assert wanted is None or all(wanted in path for path in loaded["draft"]["model_paths"])


async def test_a_model_is_not_loaded_again_to_do_without(running: Callable[..., Any], models: str) -> None:
    async with running() as r:
        for model, option, wanted in [
            ("big", {}, True),
            ("big", {"draft_num_predict": 0}, True),
            ("plain", {"draft_num_predict": 0, "draft_model": "small"}, False),
        ]:
            body = {"model": model, "prompt": "!load", "stream": False, "options": option}
            loaded = json.loads((await r.post("/api/generate", body)).json()["response"])
            assert bool(loaded["draft"]) == wanted


async def test_a_draft_that_is_not_there(running: Callable[..., Any], models: str) -> None:
    async with running() as r:
        response = await r.post("/api/generate", {"model": "lost", "prompt": "x"})
        assert response.status_code == 404
        assert response.json()["error"] == "draft model 'nowhere' of 'lost:latest': model 'nowhere' not found"


async def test_a_draft_that_does_not_fit_costs_nobody_anything(
    running: Callable[..., Any], models: str, add_model: Add
) -> None:
    """It is refused as often as it is asked for, and the model stays where it is."""
    add_model("vectors", kind="bert")
    async with running() as r:
        body = {"model": "plain", "prompt": "!pid", "stream": False}
        pid = (await r.post("/api/generate", body)).json()["response"]
        for _ in range(2):
            response = await r.post("/api/generate", {**body, "options": {"draft_model": "vectors"}})
            assert response.status_code == 400
            assert response.json()["error"].startswith('draft model "vectors:latest" does not fit "plain:latest": its')
            assert "draft_num_predict" in response.json()["hint"]
        assert (await r.post("/api/generate", body)).json()["response"] == pid
