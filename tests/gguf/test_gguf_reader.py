"""Each rule of the format, once kept and once broken, and what a caller sees of it."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from localllm.errors import GGUFError
from localllm.gguf import GGMLType, ValueType, open_gguf
from localllm.gguf.header import ArrayValue, Header, read_metadata

Write = Callable[..., Path]
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
ALIGN = "general.alignment"


def refused(path: Path, *words: str) -> GGUFError:
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    for word in words:
        assert word in text, text
    return caught.value


class TestPreamble:
    @pytest.mark.parametrize("version", [2, 3])
    def test_nothing_but_a_preamble_is_a_file(self, write: Write, version: int) -> None:
        with open_gguf(write(version=version)) as f:
            assert len(f.metadata) == 0 and f.tensors == {} and f.headers[0].version == version

    def test_bad_magic(self, write: Write) -> None:
        refused(write(magic=b"FUGG"), "not a GGUF file", "'FUGG")

    @pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
    def test_unsupported_version(self, write: Write, version: int) -> None:
        refused(write(version=version), f"version {version}", "2, 3")

    def test_other_byte_order(self, write: Write) -> None:
        refused(write(version=3 << 24), "big-endian")

    @pytest.mark.parametrize("count", [-1, 1, 2**31, 2**62, -(2**63)])
    def test_counts_that_cannot_be(self, write: Write, count: int) -> None:
        refused(write(n_tensors=count), "n_tensors", str(count))
        refused(write(n_kv=count), "n_kv", str(count))

    @pytest.mark.parametrize("n_bytes", range(1, 24))
    def test_cut_preamble(self, write: Write, n_bytes: int) -> None:
        path = write()
        path.write_bytes(path.read_bytes()[:n_bytes])
        refused(path, "truncated")


class TestNotAFile:
    @pytest.mark.parametrize(
        ("content", "shown", "hint"),
        [
            (b"", "empty", "download"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "version https://git-lfs", "git lfs pull"),
            (b"<!DOCTYPE html><html><body>sign in</body></html>", "<!DOCTYPE html>", "web page"),
            (b"\n<html lang=en>", "<html lang=en>", "web page"),
            (b"PK\x03\x04rest", "PK", "zip"),
            (b"\x80\x02}q\x00pickle", "pickle", None),
        ],
    )
    def test_shows_how_the_file_starts(self, tmp_path: Path, content: bytes, shown: str, hint: str | None) -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        error = refused(path, "not a GGUF file", shown)
        assert hint is None or (error.hint is not None and hint in error.hint)

    def test_directory(self, tmp_path: Path) -> None:
        refused(tmp_path, "directory")

    def test_missing(self, tmp_path: Path) -> None:
        refused(tmp_path / "none.gguf", "No such file")

    def test_no_permission(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write()

        def deny(*args: Any, **kwargs: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", deny)
        error = refused(path, "permission denied")
        assert error.hint is not None and "chmod" in error.hint

    @pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs there")
    def test_fifo_does_not_block(self, tmp_path: Path) -> None:
        import os

        path = tmp_path / "m.gguf"
        os.mkfifo(path)
        refused(path, "not a regular file")


SCALARS: list[tuple[int, Any, Any]] = [
    (U8, 200, int),
    (I8, -100, int),
    (U16, 60000, int),
    (I16, -30000, int),
    (U32, 4_000_000_000, int),
    (I32, -2_000_000_000, int),
    (F32, 0.5, float),
    (BOOL, True, bool),
    (STRING, "naïve ▁", str),
    (U64, 2**64 - 1, int),
    (I64, -(2**63), int),
    (F64, 0.1, float),
]


class TestKeyValues:
    @pytest.mark.parametrize(("kind", "value", "python"), SCALARS)
    def test_scalars(self, write: Write, kind: int, value: Any, python: type) -> None:
        with open_gguf(write(kvs=[("k", kind, value)])) as f:
            assert f.metadata["k"] == value and type(f.metadata["k"]) is python
            assert f.types["k"] is ValueType(kind)
            assert f.get("k", python) == value
            for other in {int, float, bool, str} - {python}:
                with pytest.raises(GGUFError, match=f"'k' is .*expected {other.__name__}"):
                    f.get("k", other)

    @pytest.mark.parametrize(("kind", "value", "python"), SCALARS)
    def test_arrays(self, write: Write, kind: int, value: Any, python: type) -> None:
        path = write(kvs=[("a", ARRAY, (kind, [value, value])), ("empty", ARRAY, (kind, []))])
        with open_gguf(path) as f:
            assert list(f.metadata["a"]) == [value, value] and f.types["a"] is ValueType(kind)
            assert len(f.metadata["empty"]) == 0
            assert isinstance(f.metadata["a"], list if kind == STRING else np.ndarray)
            assert list(f.get_array("a", python)) == [value, value]
            with pytest.raises(GGUFError, match="is an array of"):
                f.get("a", python)
        assert read_metadata(path) == {"a": [value, value], "empty": []}
        assert read_metadata(path, max_array_length=1) == {"a": [], "empty": []}

    def test_number_arrays_are_read_only_views(self, write: Write) -> None:
        with open_gguf(write(kvs=[("a", ARRAY, (F32, [1.0, 2.0]))])) as f:
            assert f.metadata["a"].dtype == np.float32 and not f.metadata["a"].flags.writeable
            assert f.metadata["a"] is f.metadata["a"]

    def test_any_non_zero_byte_is_true(self, write: Write) -> None:
        array = struct.pack("<iQ", BOOL, 3) + b"\x00\x02\xff"
        with open_gguf(write(kvs=[("b", BOOL, b"\x07"), ("a", ARRAY, array)])) as f:
            assert f.metadata["b"] is True and f.metadata["a"].tolist() == [False, True, True]

    def test_strings_that_are_not_utf8(self, write: Write) -> None:
        array = (STRING, [b"\xff", "b"])
        path = write(kvs=[("s", STRING, struct.pack("<Q", 2) + b"a\xff"), ("a", ARRAY, array)])
        with open_gguf(path) as f:
            assert f.metadata["s"] == "a\ufffd" and f.metadata["a"] == ["\ufffd", "b"]
            raw = f.metadata.raw("a")
            assert raw is not None and raw.byte_strings() == [b"\xff", b"b"]
        with Header(path) as header:
            array_value = header.metadata["a"]
            assert isinstance(array_value, ArrayValue)
            assert (len(array_value), array_value[1], list(array_value)) == (2, "b", ["\ufffd", "b"])
            assert len(array_value.view()) == array_value.n_bytes == 18

    def test_missing_key(self, write: Write) -> None:
        with open_gguf(write()) as f:
            assert f.get("k", int, default=7) == 7 and f.get("k", int, default=None) is None
            assert f.get_array("k", int, default=()) == ()
            for getter in (f.get, f.get_array):
                with pytest.raises(GGUFError, match="missing key 'k'"):
                    getter("k", int)

    def test_empty_key(self, write: Write) -> None:
        refused(write(kvs=[("", U32, 1)]), "key 0 is empty")

    def test_duplicate_key(self, write: Write) -> None:
        refused(write(kvs=[("k", U8, 1), ("k", U8, 2)]), "duplicate key 'k'")

    def test_key_that_is_not_utf8(self, write: Write) -> None:
        refused(write(kvs=[(b"\xff", U8, 1)]), "key 0 is not UTF-8")

    @pytest.mark.parametrize("length", [-1, 2**30 + 1, 2**62, 1000])
    def test_key_length(self, write: Write, length: int) -> None:
        path = write(kvs=[("key", U32, 1)])
        raw = bytearray(path.read_bytes())
        struct.pack_into("<q", raw, 24, length)
        path.write_bytes(raw)
        refused(path, "key 0")

    @pytest.mark.parametrize("kind", [-1, 13, 2**31 - 1])
    def test_value_type(self, write: Write, kind: int) -> None:
        refused(write(kvs=[("k", kind, b"\0" * 8)]), f"'k' has value type {kind}", "0 to 12")
        refused(write(kvs=[("k", ARRAY, struct.pack("<iQ", kind, 1) + b"\0" * 8)]), f"'k' has value type {kind}")

    def test_array_of_arrays(self, write: Write) -> None:
        refused(write(kvs=[("k", ARRAY, struct.pack("<iQ", ARRAY, 0))]), "array of arrays")

    @pytest.mark.parametrize("kind", [kind for kind, _, _ in SCALARS])
    @pytest.mark.parametrize("length", [2**64 - 1, 2**61, 2**30 + 1, 2**30, 100])
    def test_array_length(self, write: Write, kind: int, length: int) -> None:
        refused(write(kvs=[("k", ARRAY, struct.pack("<iQ", kind, length) + bytes(16))]), "'k'")

    def test_string_array_that_runs_out(self, write: Write) -> None:
        for body in (struct.pack("<QQ", 0, 2**63), struct.pack("<QQ", 5, 0), struct.pack("<QQ", 8, 0)):
            refused(write(kvs=[("k", ARRAY, struct.pack("<iQ", STRING, 2) + body)]), "strings of key 'k' run past")

    def test_string_value_length(self, write: Write) -> None:
        refused(write(kvs=[("k", STRING, struct.pack("<Q", 2**30 + 1))]), "the value of key 'k'", "limit")
        refused(write(kvs=[("k", STRING, struct.pack("<Q", 2**30))]), "the value of key 'k'", "ends at")


class TestAlignment:
    @pytest.mark.parametrize("value", [0, 3, 13, 33, 2**32 - 1])
    def test_must_be_a_power_of_two(self, write: Write, value: int) -> None:
        refused(write(kvs=[(ALIGN, U32, value)]), ALIGN, str(value), "power of two")

    @pytest.mark.parametrize(("kind", "value"), [(I32, 32), (U64, 32), (U16, 32), (STRING, "32"), (ARRAY, (U32, [32]))])
    def test_must_be_u32(self, write: Write, kind: int, value: Any) -> None:
        refused(write(kvs=[(ALIGN, kind, value)]), ALIGN, "expected uint32")

    @pytest.mark.parametrize("alignment", [1, 2, 8, 32, 64, 4096])
    def test_custom(self, write: Write, tensor_fields: Any, alignment: int) -> None:
        tensors = [tensor_fields("a", (5,), GGMLType.I8, 5), tensor_fields("b", (3,), GGMLType.I8, 3)]
        path = write(kvs=[(ALIGN, U32, alignment)], tensors=tensors, alignment=alignment)
        with open_gguf(path) as f:
            assert f.tensors["a"].data.tolist() == [0, 1, 2, 3, 4] and f.tensors["b"].data.tolist() == [1, 2, 3]
            assert all(t.offset % alignment == 0 for t in f.tensors.values())

    def test_that_contradicts_the_offsets(self, write: Write, tensor_fields: Any) -> None:
        tensors = [tensor_fields("a", (5,), GGMLType.I8, 5), tensor_fields("b", (3,), GGMLType.I8, 3)]
        refused(write(kvs=[(ALIGN, U32, 64)], tensors=tensors, alignment=32), "'b' has offset 32, expected 64")


def with_tensor(write: Write, tensor_fields: Any, **fields: Any) -> Path:
    return write(tensors=[tensor_fields(**fields)])


class TestTensorInfos:
    def test_shapes(self, write: Write, tensor_fields: Any) -> None:
        shapes = {"scalar": (), "one": (4,), "two": (2, 3), "four": (2, 1, 2, 2), "empty": (2, 0), "none": (0,)}
        tensors = [tensor_fields(n, s, GGMLType.F32, 4 * int(np.prod(s))) for n, s in shapes.items()]
        with open_gguf(write(tensors=tensors)) as f:
            assert {name: t.shape for name, t in f.tensors.items()} == shapes
            assert [t.n_elements for t in f.tensors.values()] == [1, 4, 6, 8, 0, 0]
            assert [len(t.data) for t in f.tensors.values()] == [4, 16, 24, 32, 0, 0]
            assert f.tensor("two").data.tolist() == [(2 + j) % 100 for j in range(24)]
            with pytest.raises(GGUFError, match="missing tensor 'five'"):
                f.tensor("five")

    def test_data_is_a_read_only_view_that_outlives_the_file(self, write: Write, tensor_fields: Any) -> None:
        f = open_gguf(with_tensor(write, tensor_fields, nbytes=128))
        data = f.tensors["t"].data
        assert data.dtype == np.uint8 and not data.flags.writeable
        f.tensors["t"].drop_pages()
        f.close()
        f.close()
        assert data[1] == 1

    def test_pages_inside_a_large_tensor_can_be_dropped(self, write: Write, tensor_fields: Any) -> None:
        with open_gguf(with_tensor(write, tensor_fields, shape=(32768,), nbytes=131072)) as f:
            f.tensors["t"].drop_pages()
            assert f.tensors["t"].data[100000] == 100000 % 100

    @pytest.mark.parametrize("length", [-1, 2**31, 1000])
    def test_name_length(self, write: Write, tensor_fields: Any, length: int) -> None:
        refused(with_tensor(write, tensor_fields, name_length=length), "the name of tensor 0")

    def test_name_limit(self, write: Write, tensor_fields: Any) -> None:
        assert list(open_gguf(with_tensor(write, tensor_fields, name="n" * 63, nbytes=128)).tensors) == ["n" * 63]
        refused(with_tensor(write, tensor_fields, name="n" * 64, nbytes=128), "64 bytes long", "63")
        refused(with_tensor(write, tensor_fields, name="ä" * 32, nbytes=128), "64 bytes long")

    def test_duplicate_name(self, write: Write, tensor_fields: Any) -> None:
        refused(write(tensors=[tensor_fields("t", nbytes=128)] * 2), "duplicate tensor 't'")

    @pytest.mark.parametrize("n_dims", [5, 6, 2**32 - 1])
    def test_n_dims(self, write: Write, tensor_fields: Any, n_dims: int) -> None:
        refused(with_tensor(write, tensor_fields, n_dims=n_dims), f"'t' has {n_dims} dimensions")

    @pytest.mark.parametrize("shape", [(-1,), (32, -1), (32, 1, 1, -(2**63))])
    def test_negative_dimension(self, write: Write, tensor_fields: Any, shape: tuple[int, ...]) -> None:
        refused(with_tensor(write, tensor_fields, shape=shape), "'t' has shape", "negative")

    @pytest.mark.parametrize("shape", [(4 * (2**31 - 1),) * 2, (2**32, 2**31), (2**62, 2, 1, 1), (1, 1, 2**33, 2**33)])
    def test_elements_overflow(self, write: Write, tensor_fields: Any, shape: tuple[int, ...]) -> None:
        refused(with_tensor(write, tensor_fields, shape=shape), "'t' has shape", "elements")

    def test_bytes_overflow(self, write: Write, tensor_fields: Any) -> None:
        shape = (2**31, 2**31)  # 2^62 elements of 8 bytes
        refused(with_tensor(write, tensor_fields, shape=shape, type=GGMLType.I64), "'t' has shape", "bytes")

    def test_padded_bytes_overflow(self, write: Write, tensor_fields: Any) -> None:
        shape = (4, 2**30 - 1, 2**30 + 1)  # 2^64 - 16 bytes of F32: the padding wraps in 64 bits
        refused(with_tensor(write, tensor_fields, shape=shape), "'t' needs 18446744073709551600 bytes")

    @pytest.mark.parametrize("kind", [-1, 4, 5, 31, 32, 33, 36, 37, 38, 43, 2**31 - 1])
    def test_type(self, write: Write, tensor_fields: Any, kind: int) -> None:
        refused(with_tensor(write, tensor_fields, type=kind), f"'t' has type {kind}", "0 to 42")

    @pytest.mark.parametrize("kind", [t for t in GGMLType if t.block_size > 1])
    def test_rows_are_whole_blocks(self, write: Write, tensor_fields: Any, kind: GGMLType) -> None:
        n = kind.block_size
        path = with_tensor(write, tensor_fields, shape=(2 * n, 3), type=kind, nbytes=6 * kind.type_size)
        assert open_gguf(path).tensors["t"].nbytes == 6 * kind.type_size
        refused(with_tensor(write, tensor_fields, shape=(n // 2, 2), type=kind), "'t' has rows of", str(n))
        refused(with_tensor(write, tensor_fields, shape=(), type=kind), "'t' has rows of 1")

    @pytest.mark.parametrize("offset", [-1, 1, 32, 2**63])
    def test_first_offset(self, write: Write, tensor_fields: Any, offset: int) -> None:
        refused(with_tensor(write, tensor_fields, nbytes=128, offset=offset), "'t' has offset", "expected 0")

    @pytest.mark.parametrize("offset", [0, 96, 127, 160, 2**64 - 128])
    def test_gap_or_overlap(self, write: Write, tensor_fields: Any, offset: int) -> None:
        tensors = [tensor_fields("a", nbytes=128), tensor_fields("b", nbytes=128, offset=offset)]
        refused(write(tensors=tensors), f"'b' has offset {offset}, expected 128")


class TestData:
    def test_one_byte_short(self, write: Write, tensor_fields: Any) -> None:
        refused(write(tensors=[tensor_fields(nbytes=128)], drop_last_bytes=1), "'t' needs 128 bytes", "truncated")

    def test_padding_after_the_last_tensor_may_be_missing(self, write: Write, tensor_fields: Any) -> None:
        tensors = [tensor_fields(shape=(5,), type=GGMLType.I8, nbytes=5)]
        assert open_gguf(write(tensors=tensors, drop_last_bytes=27)).tensors["t"].nbytes == 5
        refused(write(tensors=tensors, drop_last_bytes=28), "'t' needs 5 bytes")

    def test_trailing_bytes_are_accepted(self, write: Write, tensor_fields: Any) -> None:
        path = write(tensors=[tensor_fields(nbytes=128)])
        path.write_bytes(path.read_bytes() + bytes(1000))
        assert open_gguf(path).tensors["t"].data[-1] == 127 % 100

    def test_padding_before_the_data_missing(self, write: Write, tensor_fields: Any) -> None:
        refused(write(tensors=[tensor_fields(shape=(0,))], drop_last_bytes=1), "the tensor data starts at")

    def test_total_overflow(self, write: Write, tensor_fields: Any) -> None:
        size = 0x7FFFFFFFFFFFFFC0
        tensors = [
            tensor_fields("a", (size,), GGMLType.I8, offset=0),
            tensor_fields("b", (size,), GGMLType.I8, offset=size),
        ]
        refused(write(tensors=tensors), f"'a' needs {size} bytes")

    def test_every_cut_of_a_model_is_refused(self, tmp_path: Path, tiny_models: ModuleType) -> None:
        whole = tmp_path / "ok.gguf"
        tiny_models.random_model(whole)
        raw = whole.read_bytes()
        start = Header(whole).data_offset
        cuts = [
            0,
            3,
            4,
            8,
            24,
            100,
            start // 4,
            start // 2,
            start - 300,
            start - 32,
            start,
            len(raw) - 4096,
            len(raw) - 1,
        ]
        for cut in cuts:
            path = tmp_path / "cut.gguf"
            path.write_bytes(raw[:cut])
            refused(path)


class TestPerLayer:
    def test_scalar_array_and_default(self, write: Write) -> None:
        with open_gguf(write(kvs=[("s", U32, 4), ("a", ARRAY, (I32, [1, 2, 3])), ("f", F32, 1.0)])) as f:
            assert f.get_per_layer("s", int, 3) == [4, 4, 4]
            assert f.get_per_layer("a", int, 3) == [1, 2, 3]
            assert f.get_per_layer("d", int, 2, default=9) == [9, 9]
            with pytest.raises(GGUFError, match="'a' has 3 elements, expected one for each of 4"):
                f.get_per_layer("a", int, 4)
            with pytest.raises(GGUFError, match="'f' is float32, expected int"):
                f.get_per_layer("f", int, 3)
            with pytest.raises(GGUFError, match="513 layers"):
                f.get_per_layer("s", int, 513)
            with pytest.raises(GGUFError, match="missing key 'd'"):
                f.get_per_layer("d", int, 2)


class TestAgainstTheGGUFPackage:
    def test_type_table(self) -> None:
        for number, (block_size, type_size) in gguf.GGML_QUANT_SIZES.items():
            if number.name == "Q8_1":
                continue  # the package still has its layout of 2023, 40 bytes; no file holds this type
            ours = GGMLType[number.name]
            assert (int(ours), ours.block_size, ours.type_size) == (int(number), block_size, type_size)

    def test_value_types(self) -> None:
        assert {t.name: int(t) for t in ValueType} == {t.name: int(t) for t in gguf.GGUFValueType}

    def test_reads_what_its_writer_writes(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        path = tmp_path / "w.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for name, value in {"uint8": 1, "int16": -2, "uint32": 3, "uint64": 4, "float32": 0.5, "float64": 0.25}.items():
            getattr(writer, f"add_{name}")(f"k.{name}", value)
        writer.add_string("k.string", "text")
        writer.add_bool("k.bool", False)
        writer.add_array("k.array", ["a", "b"])
        a = rng.normal(size=(3, 64)).astype(np.float32)
        q = gguf.quants.quantize(a, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("a", a)
        writer.add_tensor("q", q, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with open_gguf(path) as f:
            assert f.architecture == "llama" and f.metadata["k.array"] == ["a", "b"]
            assert f.get("k.float64", float) == 0.25 and f.get("k.int16", int) == -2
            assert f.tensors["a"].shape == (64, 3)
            assert np.array_equal(f.tensors["a"].data.view(np.float32).reshape(3, 64), a)
            assert f.tensors["q"].type is GGMLType.Q8_0
            assert np.array_equal(f.tensors["q"].data, q.view(np.uint8).ravel())


def test_the_header_needs_no_numpy() -> None:
    code = (
        "import sys, localllm.gguf.header, localllm.gguf.parts, localllm.gguf.summary, localllm.gguf.types;"
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_attribute() -> None:
    import localllm.gguf

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = localllm.gguf.nothing
