"""Adapters of the engine: what files are refused, and that sequences with different ones share steps exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from kernels_cpu.adapted import AdaptedLowering
from kernels_cpu.adapters import MAX_PER_ROW, PLACES, AdapterTable
from kernels_cpu.ops import OWN_ROWS
from kernels_cpu.tape import Lowering, TapeSizes
from localllm.engine import Engine, Entry, NoPlaceError
from localllm.errors import AdapterError
from localllm.gguf import GGUFFile, open_gguf
from localllm.models import build

Types = gguf.GGMLQuantizationType
N_CTX = 96


@pytest.fixture(scope="module")
def path(parity_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = parity_models.make("llama-dense", tmp_path_factory.mktemp("adapters") / "model.gguf")
    return made


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[GGUFFile]:
    with open_gguf(path) as file:
        yield file


@pytest.fixture(scope="module")
def engine(model: GGUFFile) -> Iterator[Engine]:
    engine = Engine.load(model, n_ctx=N_CTX, n_batch=48, n_slots=4, n_threads=2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def places(engine: Engine, path: Path, lora_files: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    folder = tmp_path_factory.mktemp("loaded")
    recipes = (lora_files.FIRST, lora_files.SECOND)
    return [engine.load_adapter(lora_files.adapter_for(path, folder / f"{r.name}.gguf", r))[0] for r in recipes]


def ids(n: int, seed: int = 0) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, 128, n)]


def alone(engine: Engine, tokens: list[int], adapters: Any) -> np.ndarray:
    seq = engine.open_sequence()
    results = []
    for first in range(0, len(tokens), 7):
        (logits,) = engine.step([Entry(seq, tokens[first : first + 7], "all", adapters)])
        assert logits is not None
        results.append(logits.copy())
    seq.close()
    return np.concatenate(results)


def test_a_step_of_several_sequences_gives_each_what_it_gets_alone(engine: Engine, places: list[int]) -> None:
    """One without adapters among them, which gets what the plain tape gives."""
    first, second = places
    sets = [(), ((first, 1.0),), ((second, 0.5),), ((first, -0.5), (second, 2.0))]
    texts = [ids(n, seed) for seed, n in enumerate((20, 13, 31, 9))]
    expected = [alone(engine, text, adapters) for text, adapters in zip(texts, sets, strict=True)]
    assert not np.array_equal(expected[0][0], alone(engine, texts[0], sets[1])[0])
    seqs = [engine.open_sequence() for _ in sets]
    got: list[list[np.ndarray]] = [[] for _ in sets]
    for size in (1, 5, 11, 12, 2):
        entries = []
        for seq, text, adapters in zip(seqs, texts, sets, strict=True):
            part = text[len(seq) : len(seq) + size]
            entries += [Entry(seq, part, "all", adapters)] if part else []
        for entry, logits in zip(entries, engine.step(entries), strict=True):
            assert logits is not None
            got[seqs.index(entry.seq)].append(logits.copy())
    for seq, rows, wanted in zip(seqs, got, expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(rows), wanted)
        seq.close()


def test_only_the_last_logits(engine: Engine, places: list[int]) -> None:
    """Rows of the output have their own list of what is applied."""
    adapters = ((places[0], 1.0),)
    text = ids(30)
    whole = alone(engine, text, adapters)
    plain, adapted = engine.open_sequence(), engine.open_sequence()
    results = engine.step([Entry(plain, ids(5, 3), "none"), Entry(adapted, text, "last", adapters)])
    assert results[0] is None and results[1] is not None
    np.testing.assert_array_equal(results[1][0], whole[-1])
    for seq in (plain, adapted):
        seq.close()


def test_too_many_adapters_for_a_row(engine: Engine, places: list[int]) -> None:
    seq = engine.open_sequence()
    with pytest.raises(ValueError, match=f"at most {MAX_PER_ROW} adapters"):
        engine.step([Entry(seq, [1], "last", ((places[0], 1.0),) * (MAX_PER_ROW + 1))])
    seq.close()


def test_places_are_used_again(engine: Engine, path: Path, lora_files: ModuleType, tmp_path: Path) -> None:
    small = replace(lora_files.SECOND, stems=("blk.0.attn_q.",))
    adapter = lora_files.adapter_for(path, tmp_path / "small.gguf", small)
    taken = []
    with pytest.raises(NoPlaceError, match=f"all {PLACES} places"):
        for _ in range(PLACES + 1):
            taken.append(engine.load_adapter(adapter)[0])
    for place in taken:
        engine.drop_adapter(place)
    place, n_bytes = engine.load_adapter(adapter)
    assert place == taken[-1] and n_bytes > 0
    engine.drop_adapter(place)


@pytest.mark.parametrize("kind", [Types.F32, Types.F16, Types.BF16, Types.Q8_0])
def test_types_of_adapters(kind: Any, engine: Engine, path: Path, lora_files: ModuleType, tmp_path: Path) -> None:
    """Whatever the type, the result is close to that of F32."""
    recipe = replace(lora_files.FIRST, rank=32, stems=("attn_q.", "ffn_down."))
    results = []
    for one in (Types.F32, kind):
        adapter = lora_files.adapter_for(path, tmp_path / f"{one.name}.gguf", replace(recipe, type=one))
        place, _ = engine.load_adapter(adapter)
        results.append(alone(engine, ids(8), ((place, 1.0),)))
        engine.drop_adapter(place)
    plain = alone(engine, ids(8), ())
    exact = kind in (Types.F32, Types.F16)
    assert np.abs(results[1] - results[0]).max() <= (0.0 if exact else 0.1 * np.abs(plain - results[0]).max())


def test_norms_in_an_adapter_are_left_out(
    engine: Engine, path: Path, lora_files: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = {"blk.0.attn_q.weight": (np.ones((2, 256), np.float32), np.ones((256, 2), np.float32))}
    file = tmp_path / "norm.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(256, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    place, _ = engine.load_adapter(file)
    engine.drop_adapter(place)
    assert "attn_norm" in caplog.text


class TestRefusals:
    GOOD = (np.ones((2, 256), np.float32), np.ones((256, 2), np.float32))
    Q = "blk.0.attn_q.weight"

    @pytest.mark.parametrize(
        ("extra", "architecture", "text"),
        [
            ({"general.type": "model"}, "llama", "adapter x.gguf: expected general.type \"adapter\", got 'model'"),
            ({"adapter.type": "dora"}, "llama", "expected adapter.type \"lora\", got 'dora'"),
            ({"adapter.alora.invocation_tokens": [1, 2]}, "llama", r"activated LoRA \(aLoRA\) is not supported"),
            ({}, "qwen2", "architecture 'qwen2', the model is of 'llama'"),
            ({}, "controlvector", "control vectors are not supported"),
        ],
    )
    def test_other_kinds(
        self, extra: Any, architecture: str, text: str, engine: Engine, lora_files: ModuleType, tmp_path: Path
    ) -> None:
        recipe = replace(lora_files.FIRST, extra=extra)
        file = lora_files.write(tmp_path / "x.gguf", architecture, {self.Q: self.GOOD}, recipe)
        with pytest.raises(AdapterError, match=text):
            engine.load_adapter(file)

    @pytest.mark.parametrize(
        ("pairs", "text"),
        [
            ({}, "no pairs"),
            ({Q: (GOOD[0], None)}, "`blk.0.attn_q.weight.lora_b` is missing"),
            ({Q: (None, GOOD[1])}, "`blk.0.attn_q.weight.lora_a` is missing"),
            ({"blk.9.attn_q.weight": GOOD}, "`blk.9.attn_q.weight`: the model has no such matrix"),
            ({"blk.0.ffn_up_exps.weight": GOOD}, "adapters of experts are not supported"),
            (
                {Q: (np.ones((2, 128), np.float32), GOOD[1])},
                r"`blk.0.attn_q.weight.lora_a`: expected shape \[256, 2\], got \[128, 2\]",
            ),
            ({Q: (np.ones((3, 256), np.float32), GOOD[1])}, r"lora_a`: expected shape \[256, 2\], got \[256, 3\]"),
            (
                {Q: (GOOD[0], np.ones((255, 2), np.float32))},
                r"`blk.0.attn_q.weight.lora_b`: expected shape \[2, 256\], got \[2, 255\]",
            ),
            ({Q: (np.ones((600, 256), np.float32), np.ones((256, 600), np.float32))}, "rank in 1..512, got 600"),
            ({Q: (GOOD[0], np.full((256, 2), np.nan, np.float32))}, "lora_b` holds a NaN or an infinity"),
            ({"token_embd.weight": GOOD}, r"`token_embd.weight.lora_a`: expected shape \[2, 128\], got \[256, 2\]"),
        ],
    )
    def test_tensors(self, pairs: Any, text: str, engine: Engine, lora_files: ModuleType, tmp_path: Path) -> None:
        file = lora_files.write(tmp_path / "x.gguf", "llama", pairs)
        free = len(engine._free_places)
        with pytest.raises(AdapterError, match=text):
            engine.load_adapter(file)
        assert len(engine._free_places) == free

    def test_what_is_no_gguf(self, engine: Engine, tmp_path: Path) -> None:
        (tmp_path / "x.gguf").write_bytes(b"ggla" + bytes(100))
        for file in (tmp_path / "x.gguf", tmp_path / "missing.gguf"):
            with pytest.raises(AdapterError, match="cannot be read"):
                engine.load_adapter(file)

    def test_a_truncated_file(self, engine: Engine, lora_files: ModuleType, tmp_path: Path) -> None:
        file = lora_files.write(tmp_path / "x.gguf", "llama", {self.Q: self.GOOD})
        whole = file.read_bytes()
        for n in range(0, len(whole), 97):
            file.write_bytes(whole[:n])
            with pytest.raises(AdapterError):
                engine.load_adapter(file)


@pytest.mark.parametrize(("name", "n_layer"), [("llama-dense", 2), ("llama-dense.q8_0", 2), ("gemma3-dense", 2)])
def test_barriers_of_a_layer_with_adapters(name: str, n_layer: int, parity_models: ModuleType, tmp_path: Path) -> None:
    """One more for each group of products: queries, keys and values; after attention; gate and up; down; and the
    head."""

    class NoWeights:
        nbytes = 0

        def address(self, name: str) -> int:
            return 0

    with open_gguf(parity_models.make(name, tmp_path / "model.gguf")) as file:
        graph = build(file).graph
        plain = Lowering(graph, NoWeights(), TapeSizes(128, 96, 1, 8), 2)  # type: ignore[arg-type]
        plain.run()
        adapted = AdaptedLowering(plain, AdapterTable(graph, 8))
        adapted.run()
    more = 4 * n_layer + 1
    assert adapted.writer.n_barriers(OWN_ROWS) == plain.writer.n_barriers(OWN_ROWS) + more
    assert adapted.writer.n_barriers(OWN_ROWS + 1) <= plain.writer.n_barriers(OWN_ROWS + 1) + more
