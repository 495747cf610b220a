"""A draft model beside the model: loaded with it, refused where it does not fit; answers stay the same."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localllm import options as model_options
from localllm.engine import Engine
from localllm.errors import OptionError
from localllm.messages import Chunk, Done, GenerateRequest, LoadRequest, Message, ModelSpec
from localllm.runner.batch import Batch
from localllm.runner.model import Model, load_model
from localllm.runner.outbox import Outbox
from localllm.runner.service import Preparation


def load(path: Path, draft: Path) -> Model:
    request = LoadRequest(
        ModelSpec("big", "d", [str(path)], ""),
        num_ctx=256,
        num_thread=2,
        draft=ModelSpec("small", "e", [str(draft)], ""),
    )
    return load_model(request, Outbox(io.BytesIO()))


def answers(model: Model, requests: list[dict[str, Any]], **options: Any) -> tuple[list[Any], int]:
    """Texts and log-probabilities of requests that run together, and how many guessed tokens came."""
    sent: list[Message] = []
    assert model.draft is not None
    preparation = Preparation(model, sent.append)
    batch = Batch(model.engine, 4, sent.append, draft=model.draft.engine)
    for i, request in enumerate(requests):
        asked = model_options.resolve({}, {"num_predict": 60, "seed": 5, **request.get("options", {}), **options})
        fields = {**request, "options": asked}
        batch.submit(preparation.handle(GenerateRequest(str(i), "generate", raw=True, **fields)))  # type: ignore[arg-type]
    while batch._active or batch._waiting:
        batch.step()
    done = [m for m in sent if isinstance(m, Done)]
    assert len(done) == len(requests)
    told = [
        [(m.text, m.logprobs) for m in sent if isinstance(m, Chunk) and m.id == str(i)] for i in range(len(requests))
    ]
    return told, sum(m.stats.draft_accepted_count for m in done)


@pytest.mark.parametrize("seed", [0, 7])
def test_answers_are_those_without(tiny_models: ModuleType, tmp_path: Path, seed: int) -> None:
    """With a draft model that is the model itself, and with one that knows nothing of it."""
    tiny_models.random_model(tmp_path / "m.gguf")
    tiny_models.random_model(tmp_path / "d.gguf", seed=seed)
    model = load(tmp_path / "m.gguf", tmp_path / "d.gguf")
    assert model.draft is not None and isinstance(model.engine, Engine)
    assert model.ready.memory_bytes == model.engine.memory_bytes + model.draft.engine.memory_bytes
    requests: list[dict[str, Any]] = [
        {"prompt": "some text to begin with", "options": {"temperature": 0}},
        {"prompt": "some text " * 20, "options": {"temperature": 0.7}, "logprobs": True, "top_logprobs": 2},
        {"prompt": "other", "options": {"temperature": 0, "repeat_penalty": 1.3}},
    ]
    plain, n_guessed = answers(model, requests, draft_num_predict=0)
    assert n_guessed == 0
    guessed, n_guessed = answers(model, requests)
    assert guessed == plain
    assert n_guessed > 0 or seed
    model.draft.engine.close()
    model.engine.close()


def other_kind(models: ModuleType, path: Path) -> None:
    models.spm_model(path)


def other_token(models: ModuleType, path: Path) -> None:
    models.random_model(path)
    path.write_bytes(path.read_bytes().replace(b"<|user|>", b"<|User|>"))


def other_size(models: ModuleType, path: Path) -> None:
    models.script_model(path, [f"p{i}" for i in range(300)])


@pytest.mark.parametrize(
    "make, problem",
    [
        (other_kind, "its tokenizer is 'llama', not 'gpt2'"),
        (other_token, r"its token 259 is '<\|User\|>', not '<\|user\|>'"),
        (other_size, "it has 565 tokens, not 265"),
    ],
)
def test_a_draft_of_another_vocabulary_is_refused(
    tiny_models: ModuleType, tmp_path: Path, make: Callable[[ModuleType, Path], None], problem: str
) -> None:
    tiny_models.random_model(tmp_path / "m.gguf")
    make(tiny_models, tmp_path / "d.gguf")
    with pytest.raises(OptionError, match=f'draft model "small" does not fit "big": {problem}') as caught:
        load(tmp_path / "m.gguf", tmp_path / "d.gguf")
    assert "draft_num_predict" in str(caught.value.hint)
