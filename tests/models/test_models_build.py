"""What the builders accept and refuse, and the texts of their errors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_cpu.graph import StepInputs, Weight
from kernels_cpu.twin import Twin, dequantise
from localllm.errors import GGUFError, UnsupportedModelError
from localllm.gguf import GGUFFile, open_gguf
from localllm.gguf.types import GGMLType
from localllm.models import ARCHITECTURES, build
from localllm.models.hparams import read_rope
from localllm.models.keys import Keys
from localllm.models.windows import read_windows

OpenModel = Callable[..., GGUFFile]


@pytest.fixture
def open_model(parity_models: ModuleType, tmp_path: Path) -> Iterator[OpenModel]:
    """Makes and opens a tiny model, with metadata changed."""
    files = []

    def open_changed(name: str = "llama-dense", **changes: Any) -> GGUFFile:
        arch = name.split("-")[0]
        full = {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
        files.append(open_gguf(parity_models.make(name, tmp_path / f"{len(files)}.gguf", full)))
        return files[-1]

    yield open_changed
    for file in files:
        file.close()


def test_hparams_are_those_of_the_file(open_model: OpenModel) -> None:
    hp = build(open_model("qwen3-dense")).hparams
    assert (hp.arch, hp.n_layer, hp.n_embd, hp.n_vocab, hp.n_ctx_train) == ("qwen3", 2, 256, 128, 256)
    assert (hp.n_head, hp.n_head_kv, hp.n_ff, hp.head_dim, hp.n_rot) == ((4, 4), (1, 1), (384, 384), 64, 64)


def test_per_layer_arrays_are_read(tiny_models: ModuleType, tmp_path: Path) -> None:
    tiny_models.random_model(tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as file:
        keys = Keys(file, "llama")
        assert keys.integer_per_layer("attention.head_count", 3) == (keys.integer("attention.head_count"),) * 3


def test_an_unknown_architecture_names_the_known_ones(open_model: OpenModel) -> None:
    file = open_model()
    file.metadata._values["general.architecture"] = "foo"
    with pytest.raises(UnsupportedModelError) as caught:
        build(file)
    assert str(caught.value) == f'unsupported architecture: "foo" (supported: {", ".join(sorted(ARCHITECTURES))})'
    assert caught.value.hint is not None
    file.metadata._values["general.architecture"] = "\x1b[31m" + "a" * 1000
    with pytest.raises(UnsupportedModelError, match=r'^unsupported architecture: "\\u001b\[31ma{59}" \(') as caught:
        build(file)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"block_count": 0}, "metadata key `llama.block_count`: expected an integer in 1..512, got 0"),
        ({"block_count": 513}, "metadata key `llama.block_count`: expected an integer in 1..512, got 513"),
        ({"block_count": 3}, "missing tensor `blk.2.attn_q.weight`"),
        ({"attention__head_count": 0}, "metadata key `llama.attention.head_count`: expected an integer in"),
        ({"attention__head_count_kv": 3}, "expected a divisor of layer 0's 2 heads, got 3"),
        (
            {"attention__head_count": 3, "attention__head_count_kv": 1, "attention__key_length": 0},
            "expected a divisor of embedding_length = 256, got 3",
        ),
        ({"embedding_length": 512}, "tensor `token_embd.weight`: expected shape [512, 128], got [256, 128]"),
        ({"feed_forward_length": 385}, "tensor `blk.0.ffn_gate.weight`: expected shape [256, 385], got [256, 384]"),
        ({"rope__dimension_count": 127}, "`llama.rope.dimension_count`: expected an even number, got 127"),
        ({"rope__freq_base": float("nan")}, "`llama.rope.freq_base`: expected a number in 1.01..1e+09, got nan"),
        ({"attention__layer_norm_rms_epsilon": -1.0}, "epsilon`: expected a number in 0..1e+09, got -1.0"),
        (
            {"rope__scaling__factor": float("inf")},
            "`llama.rope.scaling.factor`: expected a number in 0..1e+09, got inf",
        ),
    ],
)
def test_metadata_that_do_not_fit_are_named(open_model: OpenModel, change: dict[str, Any], text: str) -> None:
    with pytest.raises(GGUFError) as caught:
        build(open_model(**change))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"expert_count": 8}, "unsupported model: `llama` with 8 experts (supported: dense)"),
        ({"attention__clamp_kqv": 8.0}, "unsupported model: `llama` with attention.clamp_kqv"),
        ({"attention__value_length": 64}, "unsupported head sizes: keys of 128 and values of 64 elements"),
        ({"rope__scaling__type": "longrope"}, "unsupported rope scaling: `longrope` (supported: linear, none, yarn)"),
        ({"rope__dimension_count": 64}, "unsupported rope.dimension_count: 64 with heads of 128"),
        ({"block_count": 1}, "unexpected tensors: `blk.1.attn_norm.weight`, `blk.1.attn_q.weight`"),
    ],
)
def test_what_is_not_supported_is_said(open_model: OpenModel, change: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        build(open_model(**change))
    assert text in str(caught.value)


def test_a_missing_key_is_named(open_model: OpenModel) -> None:
    file = open_model()
    del file.metadata._values["llama.attention.layer_norm_rms_epsilon"]
    with pytest.raises(GGUFError, match=r"llama\.attention\.layer_norm_rms_epsilon"):
        build(file)


def test_a_vector_of_a_matrix_type_is_refused(open_model: OpenModel) -> None:
    file = open_model()
    name = "output_norm.weight"
    file.tensors[name] = dataclasses.replace(file.tensors[name], type=GGMLType.Q8_0)
    with pytest.raises(UnsupportedModelError, match=r"`output_norm\.weight`: expected type F32 or F16, got Q8_0"):
        build(file)


def test_a_tied_output_is_the_embedding_itself(open_model: OpenModel) -> None:
    nodes = build(open_model("llama-dense+plain")).graph.nodes
    assert nodes[-1].attrs["weight"] is nodes[0].attrs["weight"]


def test_only_output_rows_pass_through_the_last_feed_forward(open_model: OpenModel) -> None:
    nodes = build(open_model()).graph.nodes
    rows = [node.output.rows for node in nodes if node.op == "swiglu"]
    assert rows == ["n", "n_out"]


def test_fused_qkv_is_split_by_rows(open_model: OpenModel) -> None:
    separate, fused = open_model("qwen2-dense"), open_model("qwen2-dense")
    for layer in range(2):
        for suffix in ("weight", "bias"):
            parts = [fused.tensors.pop(f"blk.{layer}.attn_{x}.{suffix}") for x in "qkv"]
            fused.tensors[f"blk.{layer}.attn_qkv.{suffix}"] = _Joined(parts)  # type: ignore[assignment]
    del fused.tensors["blk.0.attn_q.scale"], fused.tensors["blk.0.attn_k.scale"], fused.tensors["blk.0.attn_v.scale"]
    del fused.tensors["blk.1.attn_q.scale"], fused.tensors["blk.1.attn_k.scale"], fused.tensors["blk.1.attn_v.scale"]
    for layer in range(2):
        for x in "qkv":
            del fused.tensors[f"blk.{layer}.attn_{x}.input_scale"]
    assert np.array_equal(_logits(separate), _logits(fused))


class _Joined:
    """Tensors one below the other, as a tensor."""

    def __init__(self, parts: list[Any]) -> None:
        self.type = parts[0].type
        self.shape = (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
        self.data = np.concatenate([part.data for part in parts])


def test_a_factor_on_a_matrix_is_applied_before_its_bias(open_model: OpenModel) -> None:
    file, scaled = open_model(), open_model()
    stem = "blk.0.ffn_down"
    factor = np.array([2.0], np.float32)
    half = np.ascontiguousarray(scaled.tensors[f"{stem}.weight"].data.view(np.float32) / 2)
    scaled.tensors[f"{stem}.weight"] = _Bytes(scaled.tensors[f"{stem}.weight"], half)  # type: ignore[assignment]
    scaled.tensors[f"{stem}.scale"] = _Bytes(scaled.tensors[f"{stem}.scale"], factor)  # type: ignore[assignment]
    np.testing.assert_allclose(_logits(file), _logits(scaled), atol=1e-4)


class _Bytes:
    """A tensor with other content."""

    def __init__(self, info: Any, content: np.ndarray) -> None:
        self.type, self.shape, self.data = info.type, info.shape, content.view(np.uint8)


def _logits(file: GGUFFile) -> np.ndarray:
    ids = np.arange(8, dtype=np.int32)
    return Twin(build(file).graph, 8).run(StepInputs(ids, ids, 0 * ids, np.zeros((1, 1), np.int32), ids))


def test_weights_are_views_of_the_file(open_model: OpenModel) -> None:
    file = open_model("llama-dense.q8_0")
    weight = next(w for w in build(file).graph.weights() if w.name == "blk.0.ffn_up.weight")
    assert isinstance(weight, Weight) and (weight.n_rows, weight.n_cols) == (384, 256)
    assert np.shares_memory(weight.data, file.tensors[weight.name].data)
    assert dequantise(weight).shape == (384, 256)


@pytest.fixture(scope="module")
def hostile_file(parity_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = parity_models.make("gemma3-dense", tmp_path_factory.mktemp("hostile") / "model.gguf")
    with open_gguf(path) as file:
        yield file


NUMBERS = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2, 3, 64, 128, 256])
FLOATS = st.floats(width=32) | st.sampled_from([0.0, 1.0, 1.01, 1e-30, 3e38])


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_metadata_of_any_value_build_or_raise_gguf_errors(hostile_file: GGUFFile, data: st.DataObject) -> None:
    """A model that builds has finite rotary angles."""
    values = hostile_file.metadata._values
    read = [key for key in values if re.match(r"gemma3\.(attention|rope|block|embed|feed|context|final)", key)]
    scalars = [key for key in read if type(values[key]) in (int, float)]
    before = {key: values[key] for key in data.draw(st.lists(st.sampled_from(scalars), min_size=1, max_size=3))}
    values.update({key: data.draw(NUMBERS if type(old) is int else FLOATS) for key, old in before.items()})
    try:
        nodes = build(hostile_file).graph.nodes
        tables = [node.attrs["freqs"].tables(node.attrs["n_rot"], 4) for node in nodes if node.op == "rope"]
        assert np.isfinite(tables).all()
    except GGUFError:
        pass
    finally:
        values.update(before)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_frequency_factors_must_be_positive(open_model: OpenModel, factor: float) -> None:
    file = open_model()
    info = file.tensors["rope_freqs.weight"]
    file.tensors["rope_freqs.weight"] = _Bytes(info, np.full(64, factor, np.float32))  # type: ignore[assignment]
    with pytest.raises(GGUFError, match=r"tensor `rope_freqs\.weight`: expected factors >= 0\.001, got"):
        build(file)


class TestWindows:
    def test_the_last_of_a_period_sees_everything(self, open_model: OpenModel) -> None:
        keys = Keys(open_model("llama-dense"), "llama")
        assert read_windows(keys, 8, 512, period=4) == (512, 512, 512, 0, 512, 512, 512, 0)

    def test_flags_go_before_the_period(self, open_model: OpenModel) -> None:
        keys = Keys(open_model("gemma3-dense"), "gemma3")
        assert read_windows(keys, 2, 32, period=6) == (32, 0)
        with pytest.raises(GGUFError, match="expected 3 values, one for each layer, got 2"):
            read_windows(keys, 3, 32, period=6)


class TestRope:
    def test_a_linear_factor_scales_positions(self, open_model: OpenModel) -> None:
        rope = read_rope(Keys(open_model(rope__scaling__factor=8.0), "llama"), 256)
        assert (rope.freq_scale, rope.ext_factor, rope.attn_factor) == (0.125, 0.0, 1.0)

    def test_type_none_ignores_the_factor(self, open_model: OpenModel) -> None:
        file = open_model(rope__scaling__factor=8.0, rope__scaling__type="none")
        assert read_rope(Keys(file, "llama"), 256).freq_scale == 1.0

    def test_yarn_grows_the_magnitude(self, open_model: OpenModel) -> None:
        file = open_model(rope__scaling__factor=4.0, rope__scaling__type="yarn")
        rope = read_rope(Keys(file, "llama"), 256)
        assert (rope.ext_factor, rope.n_ctx_orig) == (1.0, 256)
        assert rope.magnitude() == pytest.approx(1 + 0.1 * np.log(4))

    def test_a_log_multiplier_of_one_takes_the_magnitude_back(self, open_model: OpenModel) -> None:
        change = {
            "rope__scaling__factor": 4.0,
            "rope__scaling__type": "yarn",
            "rope__scaling__yarn_log_multiplier": 1.0,
        }
        assert read_rope(Keys(open_model(**change), "llama"), 256).magnitude() == pytest.approx(1.0)

    def test_yarn_that_shrinks_keeps_the_magnitude(self, open_model: OpenModel) -> None:
        file = open_model(rope__scaling__factor=0.5, rope__scaling__type="yarn")
        assert read_rope(Keys(file, "llama"), 256).magnitude() == pytest.approx(1.0)
