"""Embeddings and ranking end to end, on a tiny BERT: every way to ask gives the same vectors, in the order asked."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

WORDS = ["hello", "world", "a", "b", "unable", "muller", "strasse", "中文"]
N_EMBD = 32


@pytest.fixture(scope="module")
def added(server: Any, tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """added(stem, **how): the name of a tiny BERT in the store."""
    folder = tmp_path_factory.mktemp("bert")

    def add(stem: str, **how: Any) -> str:
        path = folder / f"{stem}.gguf"
        if not path.exists():
            tiny_models.bert_model(path, **how)
            server.add(path)
        return stem

    return add


def texts() -> list[str]:
    made = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 12)) for i in range(70)]
    made[60] = made[3]
    return made


def test_every_way_to_ask_gives_the_same_vectors(server: Any, added: Callable[..., str]) -> None:
    model, asked = added("bert"), texts()
    whole = server.post("/api/embed", {"model": model, "input": asked})
    batch = np.array(whole["embeddings"])
    singles = [server.post("/api/embed", {"model": model, "input": text}) for text in asked]
    assert np.array_equal(batch, np.array([one["embeddings"][0] for one in singles]))
    assert whole["prompt_eval_count"] == sum(one["prompt_eval_count"] for one in singles)
    lists = [server.post("/api/embed", {"model": model, "input": [text]})["embeddings"][0] for text in asked[:5]]
    assert np.array_equal(batch[:5], np.array(lists)) and np.array_equal(batch[3], batch[60])
    distinct = batch[[i for i in range(70) if asked.index(asked[i]) == i]]
    assert ((distinct @ distinct.T).argmax(axis=1) == np.arange(len(distinct))).all()


def test_the_openai_dialect_keeps_the_order(server: Any, added: Callable[..., str]) -> None:
    model, asked = added("bert"), texts()
    want = np.array(server.post("/api/embed", {"model": model, "input": asked})["embeddings"])
    data = server.post("/v1/embeddings", {"model": model, "input": asked})["data"]
    assert [item["index"] for item in data] == list(range(70))
    assert np.array_equal(np.array([item["embedding"] for item in data]), want)
    ids = [server.post("/api/tokenize", {"model": model, "text": text})["tokens"] for text in asked[:3]]
    of_ids = server.post("/v1/embeddings", {"model": model, "input": ids})["data"]
    one = server.post("/v1/embeddings", {"model": model, "input": ids[0]})["data"]
    assert np.array_equal(np.array([item["embedding"] for item in of_ids]), want[:3])
    assert np.array_equal(np.array(one[0]["embedding"]), want[0])
    encoded = server.post("/v1/embeddings", {"model": model, "input": asked[0], "encoding_format": "base64"})
    vector = np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(vector, want[0].astype(np.float32))


def test_four_clients_at_once(server: Any, added: Callable[..., str]) -> None:
    model, asked = added("bert"), texts()
    want = server.post("/api/embed", {"model": model, "input": asked})["embeddings"]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: server.post("/api/embed", {"model": model, "input": asked}), range(8)))
    assert all(answer["embeddings"] == want for answer in answers)


def test_nothing_and_empty_texts(server: Any, added: Callable[..., str]) -> None:
    model = added("bert")
    assert server.post("/api/embed", {"model": model, "input": []})["embeddings"] == []
    assert server.post("/api/embed", {"model": model, "input": ""})["embeddings"] == []
    vectors = server.post("/api/embed", {"model": model, "input": ["", "hello"]})["embeddings"]
    assert [len(vector) for vector in vectors] == [N_EMBD, N_EMBD]
    assert server.post("/api/embed", {"model": model, "input": [""]})["embeddings"] == vectors[:1]


def test_length_and_dimensions(server: Any, added: Callable[..., str]) -> None:
    model = added("bert")
    unit = np.array(server.post("/api/embed", {"model": model, "input": "hello a"})["embeddings"][0])
    raw = np.array(server.post("/api/embeddings", {"model": model, "prompt": "hello a"})["embedding"])
    assert abs(np.linalg.norm(unit) - 1) < 1e-5 < abs(np.linalg.norm(raw) - 1)
    assert unit @ raw / np.linalg.norm(raw) > 0.99999
    short = {"model": model, "input": "hello a", "dimensions": 8}
    for vector in (
        server.post("/api/embed", short)["embeddings"][0],
        server.post("/v1/embeddings", short)["data"][0]["embedding"],
    ):
        np.testing.assert_allclose(vector, unit[:8] / np.linalg.norm(unit[:8]), atol=1e-6)
    for wrong in (33, -1):
        text = server.refused("/api/embed", {"model": model, "input": "a", "dimensions": wrong}, 400)
        assert text == f"dimensions must be in 0..32, not {wrong}"


def test_what_is_too_long(server: Any, added: Callable[..., str]) -> None:
    body = {"model": added("bert"), "input": "hello " * 30}
    assert server.post("/api/embed", body)["prompt_eval_count"] == 16
    text = server.refused("/api/embed", {**body, "truncate": False}, 400)
    assert text == "the input length exceeds the context length"


def test_nan_is_an_error_and_zeros_are_zeros(server: Any, added: Callable[..., str], tiny_models: ModuleType) -> None:
    def broken(rows: np.ndarray) -> np.ndarray:
        rows[tiny_models.WORD_PIECES.index("world")] = np.nan
        return rows

    model = added("nan-bert", change={"token_embd.weight": broken})
    text = server.refused("/api/embed", {"model": model, "input": ["hello", "hello world"]}, 400)
    assert text == "embedding contains NaN or Inf values"
    response = server.http.post("/api/embed", json={"model": model, "input": "hello"})
    json.loads(response.text, parse_constant=pytest.fail)
    assert response.status_code == 200
    zeros = added("zero-bert", change={"blk.0.layer_output_norm.weight": np.zeros_like})
    assert server.post("/api/embed", {"model": zeros, "input": "hello"})["embeddings"] == [[0.0] * N_EMBD]


def test_an_encoder_does_not_generate(server: Any, added: Callable[..., str]) -> None:
    model = added("bert")
    assert server.refused("/api/generate", {"model": model, "prompt": "a"}, 400) == '"bert" does not support generate'
    assert server.post("/api/show", {"model": model})["capabilities"] == ["embedding"]
    text = server.refused("/api/rerank", {"model": model, "query": "a", "documents": ["b"]}, 400)
    assert text.endswith("does not support reranking")


def test_ranking(server: Any, added: Callable[..., str], tiny_models: ModuleType) -> None:
    rng = np.random.default_rng(3)
    head = [("cls.output.weight", rng.normal(0, 1, (1, N_EMBD))), ("cls.output.bias", np.zeros(1))]
    model = added("ranker", over=[("bert.pooling_type", tiny_models.U32, 4)], more=head)
    body = {"model": model, "query": "hello", "documents": ["a", "world", "b a"]}
    answer = server.post("/v1/rerank", body)
    scores = [item["relevance_score"] for item in answer["results"]]
    assert scores == sorted(scores, reverse=True) and {item["index"] for item in answer["results"]} == {0, 1, 2}
    best = server.post("/api/rerank", {**body, "top_n": 1, "return_documents": True})["results"]
    assert best == [{**answer["results"][0], "document": {"text": body["documents"][answer["results"][0]["index"]]}}]


def test_a_chat_model_has_vectors_too(server: Any, tiny_models: ModuleType, tmp_path: Path) -> None:
    tiny_models.script_model(tmp_path / "talker.gguf", ["ok"])
    model = server.add(tmp_path / "talker.gguf")
    vectors = server.post("/api/embed", {"model": model, "input": ["one", "two", "one"]})["embeddings"]
    assert vectors[0] == vectors[2] and len(vectors) == 3
    assert server.post("/api/generate", {"model": model, "prompt": "go", "options": {"temperature": 0}})["response"]
