"""The choice of types is llama.cpp's: twelve models of its own snapshots, and six made to ask for the rarer rules.

`tests/fixtures/quantize/mixes.json` holds, for each model, its traits, its matrices (name without layer, columns,
matrices of a stack, layers), and for each preset which of them get another type than the preset's base.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localllm.gguf import GGMLType
from localllm.gguf.header import TensorHeader
from localllm.quantize import PRESETS, parse_preset
from localllm.quantize.kept import keeps_type
from localllm.quantize.mix import choose_types
from localllm.quantize.traits import Traits

MODELS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "quantize" / "mixes.json").read_text())


def layers(text: str | None) -> list[int | None]:
    """`0-2,5` as numbers; what is in no layer is one None."""
    if text is None:
        return [None]
    spans = [span.split("-") for span in text.split(",")]
    return [i for span in spans for i in range(int(span[0]), int(span[-1]) + 1)]


def full_name(stem: str, layer: int | None) -> str:
    return stem if layer is None else f"blk.{layer}.{stem}"


def tensor(name: str, *shape: int, kind: GGMLType = GGMLType.F32) -> TensorHeader:
    return TensorHeader(name, shape, kind, 0, 0, 0)


def matrices(model: dict[str, Any]) -> list[TensorHeader]:
    return [
        tensor(full_name(stem, layer), columns, 64, n_matrices)
        for stem, columns, n_matrices, where in model["tensors"]
        for layer in layers(where)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_every_preset_gets_llamacpps_type(name: str) -> None:
    model = MODELS[name]
    traits = Traits(**model["traits"])
    for preset in PRESETS.values():
        want = {t.name: preset.base.name for t in matrices(model)}
        for kind, stems in model["types"][preset.name].items():
            want |= {full_name(stem, layer): kind for stem, where in stems.items() for layer in layers(where)}
        got = choose_types(matrices(model), preset, traits)
        assert {tensor: kind.name for tensor, kind in got.items()} == want, preset.name


def test_the_order_of_the_file_does_not_matter() -> None:
    model = MODELS["qwen3-14b"]
    traits, preset = Traits(**model["traits"]), PRESETS["Q4_K_M"]
    assert choose_types(matrices(model)[::-1], preset, traits) == choose_types(matrices(model), preset, traits)


@pytest.mark.parametrize(
    ("preset", "early", "late"), [("Q4_0", "Q4_1", "Q4_0"), ("Q5_0", "Q5_1", "Q5_0"), ("IQ4_XS", "IQ4_XS", "IQ4_XS")]
)
def test_an_importance_matrix_changes_the_first_ffn_down(preset: str, early: str, late: str) -> None:
    model = MODELS["qwen3-0.6b"]
    types = choose_types(matrices(model), PRESETS[preset], Traits(**model["traits"]), has_imatrix=True)
    assert [types[f"blk.{i}.ffn_down.weight"].name for i in (0, 2, 3, 27)] == [early, early, late, late]


def test_values_of_a_70b_get_more_bits_and_those_of_a_model_without_shared_heads_do_not() -> None:
    values = [tensor(f"blk.{i}.attn_v.weight", 256, 64) for i in range(80)]
    shared, own = Traits("llama", 80, 0, 8, is_70b=True), Traits("llama", 80, 0, 1)
    assert set(choose_types(values, PRESETS["Q3_K_S"], shared).values()) == {GGMLType.Q5_K}
    assert set(choose_types(values, PRESETS["Q3_K_S"], own).values()) == {GGMLType.Q3_K}


@pytest.mark.parametrize(
    ("columns", "want"), [(256, "Q4_K"), (512, "Q4_K"), (255, "F16"), (257, "F16"), (32, "Q5_0"), (288, "Q5_0")]
)
def test_rows_that_fill_no_block_fall_back(columns: int, want: str) -> None:
    name = "blk.0.attn_q.weight"
    assert choose_types([tensor(name, columns, 8)], PRESETS["Q4_K_M"], Traits("llama", 1))[name].name == want


@pytest.mark.parametrize(
    "name",
    [
        *("output_norm.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight", "position_embd.weight"),
        *("blk.3.ssm_conv1d.weight", "v.patch_embd.weight", "blk.0.time_mix_w1.weight", "blk.0.attn_sinks"),
    ],
)
def test_some_matrices_are_never_quantised(name: str) -> None:
    kept = tensor(name, 256, 64, kind=GGMLType.BF16)
    assert keeps_type(kept, "llama")
    assert choose_types([kept], PRESETS["Q4_K_M"], Traits("llama", 1)) == {name: GGMLType.BF16}


@pytest.mark.parametrize("shape", [(256,), (256, 1), (256, 1, 1, 1)])
def test_vectors_keep_their_type(shape: tuple[int, ...]) -> None:
    assert keeps_type(tensor("blk.0.attn_q.weight", *shape), "llama")
    assert not keeps_type(tensor("blk.0.attn_q.weight", 256, 2), "llama")


def test_an_architecture_may_keep_more() -> None:
    assert keeps_type(tensor("blk.0.attn_k_b.weight", 256, 8), "glm5-next")
    assert not keeps_type(tensor("blk.0.attn_k_b.weight", 256, 8), "deepseek2")
    types = choose_types([tensor("blk.0.attn_q_a.weight", 256, 8)], PRESETS["Q2_K"], Traits("glm5-next", 1))
    assert set(types.values()) == {GGMLType.Q8_0}


def test_mxfp4_is_for_experts() -> None:
    stack, flat = tensor("blk.0.ffn_up_exps.weight", 256, 8, 4), tensor("blk.0.attn_q.weight", 256, 8)
    types = choose_types([stack, flat], parse_preset("mxfp4"), Traits("gpt-oss", 1, 4))
    assert types == {stack.name: GGMLType.MXFP4, flat.name: GGMLType.Q8_0}
