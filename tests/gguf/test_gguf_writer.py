"""What is written is what is read, by our reader and by the `gguf` package's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.gguf import GGMLType, ValueType, open_gguf
from localllm.gguf.header import ArrayValue, Header
from localllm.gguf.writer import MetadataValue, TensorPlan, Typed, Writer, typed_metadata

INTEGERS = {
    kind: st.integers(int(np.iinfo(kind.name.lower()).min), int(np.iinfo(kind.name.lower()).max))
    for kind in ValueType
    if "INT" in kind.name
}
ELEMENTS: dict[ValueType, st.SearchStrategy[Any]] = {
    **INTEGERS,
    ValueType.FLOAT32: st.floats(width=32, allow_nan=False),
    ValueType.FLOAT64: st.floats(allow_nan=False),
    ValueType.BOOL: st.booleans(),
    ValueType.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
}
TYPES = [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.I32, GGMLType.MXFP4]


def typed(kind: ValueType) -> st.SearchStrategy[Typed]:
    element = ELEMENTS[kind]
    return st.builds(Typed, st.just(kind), element | st.lists(element, max_size=5))


values = st.sampled_from(sorted(ELEMENTS)).flatmap(typed)
keys = st.text("abc.xyz_", min_size=1, max_size=20)
shapes = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def plans(draw: st.DrawFn) -> list[TensorPlan]:
    names = draw(st.lists(st.text("abcdef.0123", min_size=1, max_size=30), unique=True, max_size=6))
    made = []
    for name in names:
        kind = draw(st.sampled_from(TYPES))
        row = draw(st.integers(0, 3)) * kind.block_size
        made.append(TensorPlan(name, (*draw(shapes), row), kind))
    return made


def data_of(plan: TensorPlan) -> bytes:
    return np.random.default_rng(len(plan.name)).bytes(plan.nbytes)


def written(path: Path, metadata: dict[str, MetadataValue], planned: list[TensorPlan]) -> Path:
    path.unlink(missing_ok=True)
    with Writer(path, metadata, planned) as writer:
        for plan in planned:
            writer.write(data_of(plan))
        writer.finish()
    return path


@given(st.dictionaries(keys, values, max_size=6), plans(), st.sampled_from([None, 1, 32, 256]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_reader_gives_back_what_was_written(
    tmp_path: Path, metadata: dict[str, Any], planned: list[TensorPlan], alignment: int | None
) -> None:
    if alignment:
        metadata = {**metadata, "general.alignment": alignment}
    path = written(tmp_path / "a.gguf", metadata, planned)
    with open_gguf(path) as file:
        header = file.headers[0]
        for key, value in metadata.items():
            given_type, expected = (value.type, value.value) if isinstance(value, Typed) else (ValueType.UINT32, value)
            read = header.metadata[key]
            assert header.types[key] is given_type
            assert (read.tolist() if isinstance(read, ArrayValue) else read) == expected
        assert list(file.tensors) == [plan.name for plan in planned]
        for plan in planned:
            info = file.tensors[plan.name]
            assert (info.shape, info.type) == (plan.shape[::-1], plan.type)
            assert info.data.tobytes() == data_of(plan)
    again = tmp_path / "b.gguf"
    again.unlink(missing_ok=True)
    with Header(path) as header, Writer(again, typed_metadata(header), planned) as writer:
        for plan in planned:
            writer.write(data_of(plan))
        writer.finish()
    assert again.read_bytes() == path.read_bytes()


def test_the_file_is_that_of_the_gguf_package(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.standard_normal((3, 64)).astype(np.float32),
        "b.c": rng.standard_normal((2, 3, 5)).astype(np.float16),
    }
    quantised = gguf.quants.quantize(tensors["a"], gguf.GGMLQuantizationType.Q8_0)
    theirs = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    theirs.add_array("words", ["a", "ö", ""])
    theirs.add_array("numbers", [1, 2])
    theirs.add_float32("eps", 1e-6)
    theirs.add_uint32("n", 7)
    theirs.add_bool("flag", True)
    for name, tensor in tensors.items():
        theirs.add_tensor(name, tensor)
    theirs.add_tensor("q", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    theirs.write_header_to_file()
    theirs.write_kv_data_to_file()
    theirs.write_tensors_to_file()
    theirs.close()
    metadata: dict[str, MetadataValue] = {
        "general.architecture": "llama",
        "words": ["a", "ö", ""],
        "numbers": [1, 2],
        "eps": 1e-6,
        "n": 7,
        "flag": True,
    }
    planned = [
        TensorPlan("a", (3, 64), gguf.GGMLQuantizationType.F32),
        TensorPlan("b.c", (2, 3, 5), GGMLType.F16),
        TensorPlan("q", (3, 64), GGMLType.Q8_0),
    ]
    with Writer(tmp_path / "ours.gguf", metadata, planned) as writer:
        for data in (tensors["a"], tensors["b.c"], quantised):
            writer.write(data)
        writer.finish()
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
    reader = gguf.GGUFReader(tmp_path / "ours.gguf")
    assert [(t.name, t.shape.tolist()) for t in reader.tensors] == [("a", [64, 3]), ("b.c", [5, 3, 2]), ("q", [64, 3])]
    assert np.array_equal(reader.tensors[1].data, tensors["b.c"])


def test_a_tensor_may_come_in_pieces_and_transposed(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    plan = TensorPlan("x", (4, 3), GGMLType.F32)
    with Writer(tmp_path / "x.gguf", {}, [plan, TensorPlan("empty", (0, 3), GGMLType.F32)]) as writer:
        writer.write(x.T[:1])
        writer.write(memoryview(np.ascontiguousarray(x.T[1:])))
        writer.finish()
    with open_gguf(tmp_path / "x.gguf") as file:
        assert np.array_equal(file.tensors["x"].data.view(np.float32).reshape(4, 3), x.T)


class TestWhatIsNotWhole:
    PLANS = (TensorPlan("x", (2,), GGMLType.F32), TensorPlan("y", (3,), GGMLType.F32))

    def test_missing_bytes_are_named_and_the_file_goes(self, tmp_path: Path) -> None:
        with (
            pytest.raises(ValueError, match="'y': 4 bytes given, expected 12"),
            Writer(tmp_path / "m.gguf", {}, self.PLANS) as writer,
        ):
            writer.write(bytes(8))
            writer.write(bytes(4))
            writer.finish()
        assert list(tmp_path.iterdir()) == []

    def test_a_file_never_finished_goes(self, tmp_path: Path) -> None:
        with Writer(tmp_path / "m.gguf", {}, self.PLANS):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_bytes_beyond_a_tensor(self, tmp_path: Path) -> None:
        with Writer(tmp_path / "m.gguf", {}, self.PLANS) as writer:
            with pytest.raises(ValueError, match="'x': 9 bytes given, expected 8 of 8"):
                writer.write(bytes(9))
            writer.write(bytes(8))
            writer.write(bytes(12))
            with pytest.raises(ValueError, match="1 bytes more"):
                writer.write(b"x")

    def test_a_file_that_exists_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(b"mine")
        with pytest.raises(FileExistsError):
            Writer(path, {}, ())
        assert path.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("metadata", "planned", "message"),
    [
        ({"general.alignment": 48}, [], "general.alignment is 48"),
        ({"general.alignment": Typed(ValueType.INT32, 32)}, [], "int32"),
        ({"k": []}, [], "'k': \\[\\] has no type"),
        ({"k": [1, "a"]}, [], "'k': an array of int, str"),
        ({"k": 1 << 64}, [], "'k'.*64 bits"),
        ({"k": Typed(ValueType.UINT8, 256)}, [], "'k'.*expected uint8"),
        ({}, [TensorPlan("t", (1, 33), GGMLType.Q8_0)], "'t': rows of 33 elements, expected a multiple of 32"),
        ({}, [TensorPlan("t" * 64, (1,), GGMLType.F32)], "longer than 63"),
        ({}, [TensorPlan("t", (1,) * 5, GGMLType.F32)], "up to 4 sizes"),
        ({}, [TensorPlan("t", (1,), GGMLType.F32)] * 2, "planned twice"),
        ({}, [TensorPlan("t", (1,), 4)], "4"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(
    tmp_path: Path, metadata: dict[str, MetadataValue], planned: list[TensorPlan], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Writer(tmp_path / "m.gguf", metadata, planned)
    assert list(tmp_path.iterdir()) == []
