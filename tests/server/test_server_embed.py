"""/api/embed, /api/embeddings and the helper of other dialects: shapes, order, what the runner is asked, errors."""

import base64
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localllm.errors import RequestError
from localllm.server.embed import embed
from localllm.server.errors import APIError

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

ROOT = Path(__file__).parents[2]
TENTH = 0.100000001


async def test_embed_keeps_the_order_of_its_inputs(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        body = {"model": "M:latest", "input": ["abc", "", "ab"], "dimensions": 7}
        answer = (await r.post("/api/embed", body)).json()
    assert answer["model"] == "M:latest"
    assert answer["embeddings"] == [[3, 0, 7, 1, TENTH], [0, 1, 7, 1, TENTH], [2, 2, 7, 1, TENTH]]
    assert answer["prompt_eval_count"] == 5
    assert answer["total_duration"] >= answer["load_duration"] > 0


async def test_embed_takes_one_text(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/api/embed", {"model": "m", "input": "abc"})
    assert response.json()["embeddings"] == [[3, 0, 0, 1, TENTH]]
    assert "0.100000001]" in response.text  # nine digits hold a float32


@pytest.mark.parametrize("given", [{}, {"input": None}, {"input": ""}, {"input": []}])
async def test_embed_of_nothing_loads(running: Running, add_model: Add, given: dict[str, Any]) -> None:
    add_model()
    async with running() as r:
        answer = (await r.post("/api/embed", {"model": "m", **given})).json()
        assert answer["embeddings"] == [] and answer["load_duration"] > 0
        assert [model["name"] for model in (await r.http.get("/api/ps")).json()["models"]] == ["m:latest"]
        await r.post("/api/embed", {"model": "m", "keep_alive": 0, **given})
        assert (await r.http.get("/api/ps")).json()["models"] == []


async def test_embeddings_is_not_normalised(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        answer = (await r.post("/api/embeddings", {"model": "m", "prompt": "abc"})).json()
        assert answer == {"embedding": [3, 0, 0, 0, TENTH]}
        assert (await r.post("/api/embeddings", {"model": "m"})).json() == {"embedding": []}


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/embed", {"model": "m", "input": 3}, 400, "invalid input type"),
        ("/api/embed", {"model": "m", "input": ["a", 3]}, 400, "invalid input type"),
        ("/api/embed", {"model": "m", "input": {"a": "b"}}, 400, "invalid input type"),
        ("/api/embed", {"model": "", "input": "a"}, 404, "model '' not found"),
        ("/api/embed", {"model": "none", "input": "a"}, 404, 'model "none" not found, try pulling it first'),
        ("/api/embeddings", {"model": "", "prompt": "a"}, 400, "model is required"),
        ("/api/embeddings", {"model": "none"}, 404, 'model "none" not found, try pulling it first'),
        ("/api/embed", {"model": "m", "input": "!error:RequestError"}, 400, "scripted error"),
        ("/api/embed", {"model": "m", "input": "!error:ContextLengthError"}, 400, "scripted error"),
        ("/api/embed", {"model": "m", "input": "!error:RunnerError"}, 500, "scripted error"),
        (
            "/api/embed",
            {"model": "m", "input": "a", "truncate": 1},
            400,
            "json: cannot unmarshal number into Go struct field EmbedRequest.truncate of type bool",
        ),
    ],
)
async def test_refusals(
    running: Running, add_model: Add, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    add_model()
    async with running() as r:
        response = await r.post(path, body)
    assert (response.status_code, response.json()["error"]) == (status, text)


async def test_the_helper_serves_other_dialects(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        result = await embed(r.daemon, "m", [[5, 6], [7]], dimensions=2)
        assert result.floats() == [[2, 0, 2, 1, TENTH], [1, 1, 2, 1, TENTH]] and result.n_tokens == [2, 1]
        assert struct.unpack("<5f", base64.b64decode(result.encoded[1]))[0] == 1
        with pytest.raises(APIError, match="try pulling it first"):
            await embed(r.daemon, "none", ["a"])
        with pytest.raises(RequestError, match="scripted error"):
            await embed(r.daemon, "m", ["!error:RequestError"])


async def test_rerank_puts_the_best_first(running: Running, add_model: Add) -> None:
    add_model()
    documents = ["ab", {"text": "abcd"}, "a", "bc"]
    async with running() as r:
        for path in ("/api/rerank", "/v1/rerank"):
            answer = (await r.post(path, {"model": "m", "query": "q", "documents": documents})).json()
            assert [item["index"] for item in answer["results"]] == [1, 0, 3, 2]
            assert answer["results"][0] == {"index": 1, "relevance_score": 4.0}
            assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9} and answer["object"] == "list"
            body = {"model": "m", "query": "q", "documents": documents, "top_n": 1, "return_documents": True}
            best = (await r.post(path, body)).json()["results"]
            assert best == [{"index": 1, "relevance_score": 4.0, "document": {"text": "abcd"}}]


async def test_rerank_of_texts_is_a_list(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        body = {"model": "m", "query": "q", "texts": ["a", "bc"], "return_text": True}
        answer = (await r.post("/v1/rerank", body)).json()
    assert answer == [{"index": 1, "score": 2.0, "text": "bc"}, {"index": 0, "score": 1.0, "text": "a"}]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"query": None}, '"query" must be a non-empty string'),
        ({"query": 3}, '"query" must be a non-empty string'),
        ({"documents": []}, '"documents" must be a non-empty array of strings or of objects with a "text"'),
        ({"documents": "a"}, '"documents" must be a non-empty array of strings or of objects with a "text"'),
        ({"documents": ["a", 3]}, '"documents[1]" must be a string or an object with a "text"'),
        ({"documents": [{"title": "a"}]}, '"documents[0]" must be a string or an object with a "text"'),
        ({"top_n": 0}, '"top_n" must be at least 1, not 0'),
        ({"query": "!error:RequestError"}, "scripted error"),
    ],
)
async def test_rerank_refusals(running: Running, add_model: Add, change: dict[str, Any], text: str) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/v1/rerank", {"model": "m", "query": "q", "documents": ["a"], **change})
        assert response.status_code == 400 and text in response.json()["error"]["message"]
        response = await r.post("/api/rerank", {"model": "m", "query": "q", "documents": ["a"], **change})
        assert response.status_code == 400 and text in response.json()["error"]


def test_the_command_prints_a_vector(start_live: Callable[..., Any], add_model: Add, tmp_path: Path) -> None:
    add_model("e", kind="bert")
    env = {**os.environ, "LOCALLLM_HOST": start_live().url.removeprefix("http://"), "LOCALLLM_STATE_DIR": str(tmp_path)}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "localllm", "run", "e", *arguments]
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, input="")

    assert json.loads(run("ab", "--dimensions", "7").stdout) == [2, 0, 7, 1, TENTH]
    without_text = run()
    assert without_text.returncode == 1
    assert without_text.stderr.startswith(
        'Error: embedding models require input text. Usage: localllm run e "your text'
    )
