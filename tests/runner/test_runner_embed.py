"""Vectors and scores: what the model is given, pooling in any number of steps, order, limits, refusals."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm import options as model_options
from localllm.engine import Engine
from localllm.gguf import open_gguf
from localllm.messages import Embed, Embeddings, Error, GenerateRequest, Message, Rank, Ready, Scores
from localllm.runner.batch import Batch
from localllm.runner.embed import VectorModel, rank_job
from localllm.runner.model import Model
from localllm.runner.service import Preparation
from localllm.runner.templates import Templates
from localllm.runner.vectors import Reading, VectorJob
from localllm.tokenizer import load_tokenizer

WORDS = ["hello", "world", "a", "the", "cat", "dog", "un", "known", "!", ","]


class Vectors:
    """A tiny model behind the preparation and the batch, in this thread; `sent` are the messages to the daemon."""

    def __init__(self, path: Path, n_ctx: int = 16, capabilities: list[str] | None = None, **sizes: Any) -> None:
        self.file = open_gguf([str(path)])
        self.engine = Engine.load(self.file, n_ctx=n_ctx, n_threads=2, **sizes)
        self.tokenizer = load_tokenizer(self.file)
        self.sent: list[Message] = []
        templates = Templates(self.file.metadata, None, "", "")
        ready = Ready(n_ctx, capabilities=capabilities or ["embedding"])
        model = Model("m", self.engine, self.tokenizer, templates, 1, ready)
        self.preparation = Preparation(model, self.sent.append)
        self.batch = Batch(self.engine, 1, self.sent.append)

    def ask(self, message: Message) -> Message:
        work = self.preparation.handle(message)
        if isinstance(work, VectorJob):
            self.batch.submit_job(work)
            while self.batch._jobs:
                self.batch.step()
        return self.sent[-1]

    def embed(self, inputs: list[Any], **fields: Any) -> np.ndarray:
        answer = self.ask(embed_of(inputs, **fields))
        assert isinstance(answer, Embeddings), answer
        self.n_tokens = answer.n_tokens
        return np.stack([np.frombuffer(base64.b64decode(text), "<f4") for text in answer.vectors])

    def refusal(self, message: Message) -> Error:
        answer = self.ask(message)
        assert isinstance(answer, Error), answer
        return answer


def embed_of(inputs: list[Any], **fields: Any) -> Embed:
    given = fields.pop("options", {})
    return Embed("1", inputs, options=model_options.resolve({}, given), **fields)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType) -> Iterator[Vectors]:
    path = tmp_path_factory.mktemp("bert") / "bert.gguf"
    tiny_models.bert_model(path)
    yield Vectors(path)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_a_batch_is_its_singles_in_order(bert: Vectors) -> None:
    texts = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 9)) for i in range(40)]
    texts[3] = texts[30] = "hello world"
    batch, counts = bert.embed(texts), bert.n_tokens
    singles = [bert.embed([text])[0] for text in texts]
    assert np.array_equal(batch, np.stack(singles)) and np.array_equal(batch[3], batch[30])
    assert counts == [min(16, len(bert.tokenizer.encode(text))) for text in texts]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=12), min_size=1, max_size=8), st.randoms())
def test_bits_do_not_depend_on_the_company(bert: Vectors, texts: list[list[str]], random: Any) -> None:
    whole = [" ".join(words) for words in texts]
    order = random.sample(range(len(whole)), len(whole))
    assert np.array_equal(bert.embed(whole)[order], bert.embed([whole[i] for i in order]))


def test_nothing_is_kept_of_a_text(tmp_path: Path, tiny_models: ModuleType) -> None:
    """Its keys and values may be those of adapters, and pages that chats begin with must not give way to it."""
    tiny_models.random_model(tmp_path / "m.gguf")
    chat = Vectors(tmp_path / "m.gguf", n_ctx=96)
    tokens = list(range(80))
    chat.embed([tokens])
    assert len(chat.engine.open_sequence([*tokens, 0])) == 0


def test_length_and_dimensions(bert: Vectors) -> None:
    raw, unit = bert.embed(["hello a"], normalise=False)[0], bert.embed(["hello a"])[0]
    short = bert.embed(["hello a"], dimensions=8)[0]
    assert abs(np.linalg.norm(unit) - 1) < 1e-6 and abs(np.linalg.norm(raw) - 1) > 1e-3
    assert cosine(raw, unit) > 0.999999
    assert short.shape == (8,) and abs(np.linalg.norm(short) - 1) < 1e-6 and cosine(short, raw[:8]) > 0.999999
    for wrong in (33, -1):
        assert bert.refusal(embed_of(["a"], dimensions=wrong)).error == f"dimensions must be in 0..32, not {wrong}"


def test_ids_are_as_good_as_texts(bert: Vectors) -> None:
    text = "hello the cat"
    assert np.array_equal(bert.embed([bert.tokenizer.encode(text)]), bert.embed([text]))
    assert "token ids must be in" in bert.refusal(embed_of([[1, 10_000]])).error
    assert "must not be empty" in bert.refusal(embed_of([[]])).error


def test_an_empty_text_has_a_vector(bert: Vectors) -> None:
    assert np.array_equal(bert.embed(["", "hello"])[0], bert.embed([""])[0]) and bert.n_tokens == [2]
    assert bert.ask(embed_of([])) == Embeddings("1", [], [], bert.sent[-1].stats)


def test_a_text_too_long_loses_its_end_or_is_refused(bert: Vectors) -> None:
    cut = bert.embed(["hello " * 30])
    assert bert.n_tokens == [16] and np.array_equal(cut, bert.embed(["hello " * 14]))
    assert bert.embed(["hello " * 30], options={"num_ctx": 8}) is not None and bert.n_tokens == [8]
    error = bert.refusal(embed_of(["hello " * 30], truncate=False))
    assert error.error == "the input length exceeds the context length" and error.kind == "ContextLengthError"
    assert f"{error.fields['n_prompt']} tokens are more than the context of {error.fields['n_ctx']};" in str(error.hint)
    assert error.fields == {"n_prompt": 32, "n_ctx": 16}
    assert bert.embed(["hello " * 14], truncate=False).shape == (1, 32)


def test_nan_is_told_and_ends_one_request_alone(tmp_path: Path, tiny_models: ModuleType) -> None:
    def broken(embeddings: np.ndarray) -> np.ndarray:
        embeddings[tiny_models.WORD_PIECES.index("world"), 3] = np.nan
        return embeddings

    tiny_models.bert_model(tmp_path / "bert.gguf", change={"token_embd.weight": broken})
    vectors = Vectors(tmp_path / "bert.gguf")
    assert vectors.refusal(embed_of(["hello world"])).error == "embedding contains NaN or Inf values"
    assert np.isfinite(vectors.embed(["hello"])).all()


def test_zeros_stay_zeros(tmp_path: Path, tiny_models: ModuleType) -> None:
    tiny_models.bert_model(tmp_path / "bert.gguf", change={"blk.0.layer_output_norm.weight": np.zeros_like})
    assert not Vectors(tmp_path / "bert.gguf").embed(["hello"]).any()


def test_an_encoder_generates_no_text_and_does_not_rank(bert: Vectors) -> None:
    request = GenerateRequest("1", "generate", prompt="a", options=model_options.resolve({}, {}))
    assert bert.refusal(request).error == '"m" does not support generate'
    assert bert.refusal(Rank("1", "q", ["a"])).error == '"m" does not support reranking'


def test_a_canceled_job_ends_without_a_word(bert: Vectors) -> None:
    job = bert.preparation.handle(embed_of(["hello"]))
    assert isinstance(job, VectorJob)
    n_sent, n_free = len(bert.sent), bert.engine.n_pages_free
    bert.batch.submit_job(job)
    bert.batch.cancel("1")
    bert.batch.step()
    assert not bert.batch._jobs and len(bert.sent) == n_sent and bert.engine.n_pages_free == n_free


@pytest.fixture
def ranker(tmp_path: Path, tiny_models: ModuleType) -> Callable[..., Vectors]:
    """A cross-encoder: `ranker(bias)` adds `bias` to its scores."""

    def make(bias: float = 0.0) -> Vectors:
        path = tmp_path / "ranker.gguf"
        rng = np.random.default_rng(5)
        head = [("cls.weight", rng.normal(0, 0.3, (32, 32))), ("cls.bias", rng.normal(0, 0.3, 32))]
        head += [("cls.output.weight", rng.normal(0, 1, (1, 32))), ("cls.output.bias", np.full(1, bias))]
        over = [("bert.pooling_type", tiny_models.U32, 4)]
        tiny_models.bert_model(path, over=over, more=head)
        return Vectors(path, capabilities=["rerank"])

    return make


def test_ranking_reads_query_and_document(ranker: Callable[..., Vectors]) -> None:
    vectors = ranker()
    documents = ["the cat", "hello", "", "the cat"]
    answer = vectors.ask(Rank("1", "a dog", documents, options=model_options.resolve({}, {})))
    assert isinstance(answer, Scores) and answer.scores[0] == answer.scores[3] != answer.scores[1]
    encode, sep = vectors.tokenizer.encode, vectors.tokenizer.last
    want = [len(encode("a dog")) + len(encode(text, add_special=False)) + 1 for text in documents]
    assert answer.n_tokens == want and sep is not None
    shifted = ranker(2.5).ask(Rank("1", "a dog", documents))
    assert isinstance(shifted, Scores)
    assert np.allclose(np.array(shifted.scores) - np.array(answer.scores), 2.5, atol=1e-5)


def test_ranking_cuts_the_document(ranker: Callable[..., Vectors]) -> None:
    vectors = ranker()
    answer = vectors.ask(Rank("1", "a dog", ["the cat " * 20]))
    assert isinstance(answer, Scores) and answer.n_tokens[0] <= 16
    assert vectors.refusal(Rank("1", "a dog", ["the cat " * 20], truncate=False)).kind == "ContextLengthError"
    assert vectors.refusal(Rank("1", "a dog " * 20, ["cat"])).kind == "ContextLengthError"
    assert vectors.refusal(embed_of(["a"])).error == '"m" does not support embeddings'


class Bytes:
    """A tokenizer whose tokens are bytes."""

    special, last = SimpleNamespace(sep=None), None

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("limit", range(3, 12))
def test_cutting_a_document_inside_a_character_ends(limit: int) -> None:
    tokenizer: Any = Bytes()
    engine = SimpleNamespace(pooling="rank", is_bidirectional=True, step=None)
    model = VectorModel("m", tokenizer, engine, limit)
    sent: list[Any] = []
    job = rank_job(model, Rank("1", "q", ["a🦙🦙é"]), sent.append)
    assert job is not None
    job._finish([np.zeros(1, np.float32)])
    assert sent[0].n_tokens[0] <= limit


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_does_not_depend_on_the_steps(pooling: str) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    rows[3] *= 1e6

    def pooled(chunk: int) -> np.ndarray:
        reading = Reading(list(range(40)), pooling)
        while n := min(chunk, reading.n_left):
            part = rows[reading.n_done :][:n]
            reading.advance(n, {"all": part, "last": part[-1:], "none": None}[reading.wanted(n)])
        assert reading.row is not None
        return reading.row

    want = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
    np.testing.assert_allclose(pooled(40), want, rtol=1e-5)
    for chunk in (1, 7, 33):
        assert np.array_equal(pooled(chunk), pooled(40))
