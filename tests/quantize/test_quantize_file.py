"""From file to file: types, bytes, metadata and parts; that threads change nothing, and failures leave nothing."""

from __future__ import annotations

import errno
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as gguf_package
import numpy as np
import pytest

from kernels_cpu.quantize import quantize_rows
from kernels_cpu.quants.reference import DEQUANTISERS, dequantise_rows
from localllm.errors import GGUFError
from localllm.gguf import GGMLType, GGUFFile, ValueType, open_gguf
from localllm.gguf.writer import TensorPlan, Typed, Writer
from localllm.quantize import PRESETS, QuantizeError, quantize, slices
from localllm.quantize.mix import choose_types
from localllm.quantize.traits import Traits

# Relative error that a type may have on these weights: what is beyond is no noise, the type does not do its job.
WORST = {"F32": 1e-7, "F16": 1e-7, "BF16": 1e-7, "Q8_0": 0.01, "Q6_K": 0.03, "Q5_K": 0.05, "Q4_K": 0.1}


def floats(gguf: GGUFFile, name: str) -> np.ndarray:
    """A tensor's values, float32, by other code than the engine's."""
    tensor = gguf.tensor(name)
    row_bytes = tensor.shape[0] // tensor.type.block_size * tensor.type.type_size
    rows = tensor.data.reshape(-1, row_bytes)
    if int(tensor.type) in DEQUANTISERS:
        return dequantise_rows(rows, int(tensor.type)).reshape(tensor.shape[::-1])
    kind = gguf_package.GGMLQuantizationType(int(tensor.type))
    return np.asarray(gguf_package.quants.dequantize(rows, kind)).reshape(tensor.shape[::-1])


@pytest.mark.parametrize("name", ["F32", "BF16", "Q8_0", "Q4_K_M"])
def test_types_order_and_error(
    name: str, f16_model: Path, small_weights: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    quantize([f16_model], tmp_path / "q.gguf", PRESETS[name])
    with open_gguf(f16_model) as source, open_gguf(tmp_path / "q.gguf") as made:
        want = choose_types(source.tensors.values(), PRESETS[name], Traits.of(source))
        assert {t.name: t.type for t in made.tensors.values()} == want
        assert list(made.tensors) == list(source.tensors)
        assert made.get("general.file_type", int) == PRESETS[name].file_type
        for tensor in made.tensors.values():
            exact = small_weights(tensor.name)
            error = np.sqrt(np.square(floats(made, tensor.name) - exact).mean() / np.square(exact).mean())
            assert error < WORST[tensor.type.name], tensor.name


def test_bytes_are_those_of_the_whole_tensor(
    f16_model: Path, small_weights: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q4_K_M"])
    with open_gguf(tmp_path / "q.gguf") as made:
        for name in ("output.weight", "blk.1.attn_q.weight", "blk.0.ffn_up_exps.weight"):
            rows = small_weights(name).reshape(-1, 256)
            np.testing.assert_array_equal(
                made.tensor(name).data, quantize_rows(made.tensor(name).type.name, rows).ravel()
            )


@pytest.mark.parametrize(("n_threads", "elements"), [(1, 1 << 20), (3, 4096), (8, 1)])
def test_threads_and_slices_change_nothing(
    n_threads: int, elements: int, f16_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize([f16_model], tmp_path / "a.gguf", PRESETS["Q4_0"], n_threads=2)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", elements)
    monkeypatch.setattr(slices, "COPY_BYTES", 100)
    quantize([f16_model], tmp_path / "b.gguf", PRESETS["Q4_0"], n_threads=n_threads)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_the_source_may_be_any_type_of_float(small_model: Callable[..., Path], tmp_path: Path) -> None:
    made = []
    for kind in (GGMLType.F32, GGMLType.F16, GGMLType.BF16):
        path = tmp_path / f"{kind.name}-q.gguf"
        quantize([small_model(tmp_path / f"{kind.name}.gguf", kind)], path, PRESETS["Q5_0"])
        with open_gguf(path) as gguf:
            quantised = {n: t.data.tobytes() for n, t in gguf.tensors.items() if t.type.block_size > 1}
        made.append(quantised)
    assert made[0] == made[1] == made[2] and len(made[0]) > 10


def test_metadata_keep_their_types(f16_model: Path, tmp_path: Path) -> None:
    quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q8_0"])
    with open_gguf(f16_model) as source, open_gguf(tmp_path / "q.gguf") as made:
        changed = {"general.file_type": ValueType.UINT32, "general.quantization_version": ValueType.UINT32}
        assert made.types == source.types | changed
        assert made.get("general.file_type", int) == 7 and made.get("general.quantization_version", int) == 2
        for key in set(source.metadata) - set(changed):
            assert np.array_equal(made.metadata[key], source.metadata[key]), key


def test_parts_become_one_file(small_model: Callable[..., Path], f16_model: Path, tmp_path: Path) -> None:
    with open_gguf(f16_model) as gguf:
        names = list(gguf.tensors)
    keys = {"split.count": 2, "split.tensors.count": Typed(ValueType.INT32, len(names))}
    source_keys = metadata_of(f16_model)
    first = small_model(tmp_path / "a", names=names[:9], metadata=source_keys | keys | {"split.no": 0})
    second = small_model(tmp_path / "b", names=names[9:], metadata=keys | {"split.no": 1})
    quantize([second, first], tmp_path / "merged.gguf", PRESETS["Q4_0"])
    quantize([f16_model], tmp_path / "whole.gguf", PRESETS["Q4_0"])
    assert (tmp_path / "merged.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def metadata_of(path: Path) -> dict[str, Any]:
    with open_gguf(path) as gguf:
        return {
            key: Typed(gguf.types[key], value.tolist() if isinstance(value, np.ndarray) else value)
            for key, value in gguf.metadata.items()
        }


def test_progress_counts_the_sources_bytes(f16_model: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q8_0"], progress=lambda done, total: told.append((done, total)))
    with open_gguf(f16_model) as gguf:
        total = sum(tensor.nbytes for tensor in gguf.tensors.values())
    assert told[0] == (0, total) and told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_what_is_quantised_is_not_quantised_again_unless_that_is_wanted(f16_model: Path, tmp_path: Path) -> None:
    quantize([f16_model], tmp_path / "q8.gguf", PRESETS["Q8_0"])
    with pytest.raises(QuantizeError) as caught:
        quantize([tmp_path / "q8.gguf"], tmp_path / "q4.gguf", PRESETS["Q4_0"])
    assert str(caught.value) == "quantization is only supported for F16, BF16 and F32 models"
    assert "'token_embd.weight' is Q8_0" in str(caught.value.hint)
    assert not (tmp_path / "q4.gguf").exists()
    quantize([tmp_path / "q8.gguf"], tmp_path / "q4.gguf", PRESETS["Q4_0"], allow_requantize=True)
    with open_gguf(tmp_path / "q8.gguf") as source, open_gguf(tmp_path / "q4.gguf") as made:
        rows = floats(source, "blk.0.attn_q.weight")
        np.testing.assert_array_equal(made.tensor("blk.0.attn_q.weight").data, quantize_rows("Q4_0", rows).ravel())


def test_a_type_that_needs_no_change_is_copied(f16_model: Path, tmp_path: Path) -> None:
    quantize([f16_model], tmp_path / "a.gguf", PRESETS["Q8_0"])
    quantize([tmp_path / "a.gguf"], tmp_path / "b.gguf", PRESETS["Q8_0"])
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_each_expert_has_its_own_importance(
    f16_model: Path,
    small_weights: Callable[..., np.ndarray],
    small_importance: Callable[[str], np.ndarray],
    small_imatrix: Callable[..., Path],
    tmp_path: Path,
) -> None:
    quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q4_K_S"], imatrix=small_imatrix(tmp_path / "m.dat"))
    with open_gguf(tmp_path / "q.gguf") as made:
        for name in ("blk.1.ffn_up_exps.weight", "blk.0.attn_q.weight"):
            stack = small_weights(name).reshape(len(small_importance(name)), -1, 256)
            want = [quantize_rows("Q4_K", rows, small_importance(name)[i]) for i, rows in enumerate(stack)]
            np.testing.assert_array_equal(made.tensor(name).data, np.concatenate(want).ravel())
        keys = {key: value for key, value in made.metadata.items() if key.startswith("quantize.")}
        assert keys == {
            "quantize.imatrix.file": "m.dat",
            "quantize.imatrix.dataset": "text",
            "quantize.imatrix.entries_count": 18,
            "quantize.imatrix.chunks_count": 42,
        }


def test_the_smallest_type_needs_an_importance_matrix(
    f16_model: Path, small_imatrix: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(QuantizeError, match=r"Q2_K_S needs an importance matrix, .* tensor 'blk.0.attn_q.weight'"):
        quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q2_K_S"])
    small_imatrix(tmp_path / "part.dat", skip="blk.1.attn_k")
    with pytest.raises(QuantizeError, match=r"there is none for tensor 'blk.1.attn_k.weight'"):
        quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q2_K_S"], imatrix=tmp_path / "part.dat")
    assert not (tmp_path / "q.gguf").exists()


def broken(f16_model: Path, path: Path, name: str, value: float) -> Path:
    """A copy of the model with one bad number in a tensor."""
    shutil.copyfile(f16_model, path)
    with open_gguf(path) as gguf:
        tensor = gguf.tensor(name)
    with path.open("r+b") as file:
        file.seek(tensor.offset + tensor.nbytes - 4)
        file.write(
            np.array([value, 0], np.float16).tobytes() if tensor.type.type_size == 2 else struct.pack("<f", value)
        )
    return path


@pytest.mark.parametrize("name", ["blk.0.attn_v.weight", "blk.1.attn_norm.weight", "blk.1.ffn_gate_inp.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_bad_numbers_are_refused_and_leave_nothing(name: str, value: float, f16_model: Path, tmp_path: Path) -> None:
    source = broken(f16_model, tmp_path / "bad.gguf", name, value)
    with pytest.raises(QuantizeError, match=rf"bad.gguf: tensor '{name}' .*NaN or infinity"):
        quantize([source], tmp_path / "q.gguf", PRESETS["Q4_K_M"])
    assert not (tmp_path / "q.gguf").exists()


def test_a_source_that_shrinks_while_it_is_read(f16_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "s.gguf"
    shutil.copyfile(f16_model, source)

    def shrink(done: int, total: int) -> None:
        source.write_bytes(source.read_bytes()[: -total // 2])

    with pytest.raises(QuantizeError, match=r"s.gguf: tensor '.*': the file became shorter while it was read"):
        quantize([source], tmp_path / "q.gguf", PRESETS["Q8_0"], progress=shrink)
    assert not (tmp_path / "q.gguf").exists()


def test_a_source_that_goes_away(f16_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "s.gguf"
    shutil.copyfile(f16_model, source)
    with pytest.raises(QuantizeError, match=r"s.gguf: cannot be read: No such file or directory"):
        quantize([source], tmp_path / "q.gguf", PRESETS["Q8_0"], progress=lambda done, total: source.unlink(True))
    assert not (tmp_path / "q.gguf").exists()


def test_a_disk_that_is_full_from_the_start(f16_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 100_000))  # type: ignore[attr-defined]
    with pytest.raises(QuantizeError, match=r"q.gguf: no space left for a model of 0.0 GB \(0.0 GB are free\)"):
        quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q8_0"])
    assert not (tmp_path / "q.gguf").exists()


def test_a_disk_that_fills_up(f16_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = Writer.write, []

    def write_until_full(writer: Writer, data: Any) -> None:
        calls.append(len(data))
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writer, data)

    monkeypatch.setattr(Writer, "write", write_until_full)
    with pytest.raises(QuantizeError, match=r"q.gguf: no space left for a model of .* \(No space left on device\)"):
        quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q8_0"])
    assert not (tmp_path / "q.gguf").exists() and len(calls) == 5


def test_what_stops_it_half_way_leaves_nothing(f16_model: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q8_0"], progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(f16_model: Path, tmp_path: Path) -> None:
    (tmp_path / "q.gguf").write_bytes(b"precious")
    with pytest.raises(QuantizeError, match=r"q.gguf: cannot be written: File exists"):
        quantize([f16_model], tmp_path / "q.gguf", PRESETS["Q8_0"])
    assert (tmp_path / "q.gguf").read_bytes() == b"precious"
    with pytest.raises(QuantizeError, match=r"cannot be written: No such file or directory"):
        quantize([f16_model], tmp_path / "none" / "q.gguf", PRESETS["Q8_0"])


def test_a_source_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "s.gguf").write_bytes(b"no model")
    with pytest.raises(GGUFError, match="not a GGUF file"):
        quantize([tmp_path / "s.gguf"], tmp_path / "q.gguf", PRESETS["Q8_0"])


def test_memory_depends_on_slices_and_not_on_the_tensor(tmp_path: Path) -> None:
    plan = TensorPlan("blk.0.ffn_up_exps.weight", (8, 4096, 1024), GGMLType.F16)
    with Writer(tmp_path / "s.gguf", {"general.architecture": "llama"}, [plan]) as writer:
        for _ in range(8):
            writer.write(np.ones((4096, 1024), np.float16))
        writer.finish()
    tracemalloc.start()
    try:
        quantize([tmp_path / "s.gguf"], tmp_path / "q.gguf", PRESETS["BF16"], n_threads=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < plan.nbytes / 2


def test_empty_tensors_and_scalars_pass(tmp_path: Path) -> None:
    plans = [
        TensorPlan("empty.weight", (0, 256), GGMLType.F16),
        TensorPlan("scalar", (), GGMLType.F32),
        TensorPlan("table", (2, 3), GGMLType.I32),
    ]
    with Writer(tmp_path / "s.gguf", {"general.architecture": "llama"}, plans) as writer:
        writer.write(np.float32([1.5]))
        writer.write(np.arange(6, dtype=np.int32))
        writer.finish()
    quantize([tmp_path / "s.gguf"], tmp_path / "q.gguf", PRESETS["Q4_0"])
    with open_gguf(tmp_path / "q.gguf") as made:
        assert made.tensor("scalar").data.view(np.float32)[0] == 1.5
        np.testing.assert_array_equal(made.tensor("table").data.view(np.int32), np.arange(6))
