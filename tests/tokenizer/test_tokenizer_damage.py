"""Vocabularies that were damaged: a tokenizer that works, or an error of ours, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.errors import LocalLLMError
from localllm.gguf import open_gguf
from localllm.gguf.header import Header
from localllm.tokenizer import load_tokenizer

TEXT = "hello a <|user|> é🦙\n\n 12"


@pytest.fixture(scope="module", params=["random_model", "spm_model", "bert_model"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType
) -> tuple[Path, bytes, int]:
    """A file to write damaged copies to, the undamaged bytes, and where the tensor data starts."""
    path = tmp_path_factory.mktemp("damage") / "m.gguf"
    writer: Callable[[Path], Any] = getattr(tiny_models, request.param)
    writer(path)
    with Header(path) as header:
        return path, path.read_bytes(), header.data_offset


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits(model: tuple[Path, bytes, int], data: st.DataObject) -> None:
    path, raw, start = model
    damaged = bytearray(raw)
    for bit in data.draw(st.lists(st.integers(0, 8 * start - 1), min_size=1, max_size=6)):
        damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    try:
        with open_gguf(path) as f:
            tokenizer = load_tokenizer(f)
    except LocalLLMError as error:
        assert str(path) in str(error)
        return
    ids = tokenizer.encode(TEXT)
    assert all(0 <= token < tokenizer.n_vocab for token in ids)
    tokenizer.decode(range(tokenizer.n_vocab), special=True)
