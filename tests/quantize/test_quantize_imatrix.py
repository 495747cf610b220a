"""Importance matrices: both forms of files, what is refused, and that they fit the model."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import LocalLLMError
from localllm.gguf import GGMLType, open_gguf
from localllm.gguf.writer import TensorPlan, Writer
from localllm.quantize import QuantizeError
from localllm.quantize.imatrix import ImportanceMatrix, read_imatrix

SUMS = np.array([[2, 4, 6, 8], [3, 0, 0, 9]], np.float32)


def write_gguf(path: Path, tensors: dict[str, np.ndarray], **metadata: object) -> Path:
    plans = [TensorPlan(name, x.shape, GGMLType.F32) for name, x in tensors.items()]
    with Writer(path, {"general.type": "imatrix", **metadata}, plans) as writer:  # type: ignore[dict-item]
        for x in tensors.values():
            writer.write(x)
        writer.finish()
    return path


def dat(*entries: tuple[str, int, list[float]], tail: bytes = b"") -> bytes:
    parts = [struct.pack("<i", len(entries))]
    for name, n_calls, values in entries:
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", n_calls, len(values))]
        parts.append(struct.pack(f"<{len(values)}f", *values))
    return b"".join(parts) + tail


def test_gguf_gives_averages_of_each_matrix_and_1_for_those_without_counts(tmp_path: Path) -> None:
    counts = np.array([[2], [0]], np.float32)
    tensors = {"blk.0.w.weight.in_sum2": SUMS, "blk.0.w.weight.counts": counts}
    keys = {"imatrix.datasets": ["wiki.txt", "b"], "imatrix.chunk_count": 7, "imatrix.chunk_size": 512}
    matrix = read_imatrix(write_gguf(tmp_path / "m.gguf", tensors, **keys))
    np.testing.assert_array_equal(matrix.weights["blk.0.w.weight"], [1, 2, 3, 4, 1, 1, 1, 1])
    assert (matrix.datasets, matrix.n_chunks) == (["wiki.txt", "b"], 7)


def test_the_older_form(tmp_path: Path) -> None:
    tail = struct.pack("<ii", 5, 8) + b"wiki.txt"
    (tmp_path / "m.dat").write_bytes(dat(("a.weight", 2, [2, 6]), ("b.weight", 0, [1, 3]), tail=tail))
    matrix = read_imatrix(tmp_path / "m.dat")
    assert {name: values.tolist() for name, values in matrix.weights.items()} == {
        "a.weight": [1, 3],
        "b.weight": [1, 3],
    }
    assert (matrix.datasets, matrix.n_chunks) == (["wiki.txt"], 5)


def test_the_older_form_without_what_may_follow(tmp_path: Path) -> None:
    (tmp_path / "m.dat").write_bytes(dat(("a.weight", 1, [2])))
    assert read_imatrix(tmp_path / "m.dat").n_chunks == 0
    (tmp_path / "m.dat").write_bytes(dat(("a.weight", 1, [2]), tail=struct.pack("<i", 3)))
    assert read_imatrix(tmp_path / "m.dat").n_chunks == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the number of entries needs 4 bytes at offset 0"),
        (struct.pack("<i", 0), "the number of entries is 0 at offset 0, expected 1 or more"),
        (struct.pack("<ii", 1, 1 << 30), "name 0 needs 1073741824 bytes"),
        (struct.pack("<ii", 1, -1), "the length of name 0 is -1"),
        (dat(("a", 1, [1, 2]))[:-1], "the values of 'a' needs 8 bytes"),
        (dat(("a", 1, [])), "the number of values of 'a' is 0"),
        (dat(("a", 1, [1, float("nan")])), "a weight for tensor 'a' is NaN, infinite or negative"),
        (dat(("a", 1, [1, -1])), "a weight for tensor 'a' is NaN, infinite or negative"),
        (dat(("a", 1, [1]), tail=b"xx"), "the number of chunks needs 4 bytes"),
    ],
)
def test_damage_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "m.dat"
    path.write_bytes(data)
    with pytest.raises(QuantizeError) as caught:
        read_imatrix(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.dat"
    path.write_bytes(data)
    try:
        read_imatrix(path)
    except LocalLLMError as error:
        assert isinstance(error, QuantizeError)


def test_a_gguf_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"token_embd.weight": SUMS})
    with pytest.raises(QuantizeError, match=r"no importance matrix: it has no tensor that ends in '.in_sum2'"):
        read_imatrix(tmp_path / "m.gguf")


def test_sums_without_counts_and_counts_that_do_not_divide(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"w.in_sum2": SUMS})
    with pytest.raises(QuantizeError, match=r"missing tensor 'w\.counts'"):
        read_imatrix(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", {"w.in_sum2": SUMS, "w.counts": np.ones((3, 1), np.float32)})
    with pytest.raises(QuantizeError, match="8 sums and 3 counts for tensor 'w'"):
        read_imatrix(tmp_path / "b.gguf")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match="cannot be read: No such file or directory"):
        read_imatrix(tmp_path / "m.gguf")


def test_weights_must_fit_the_tensors(tmp_path: Path) -> None:
    def matrix(**weights: int) -> ImportanceMatrix:
        named = {f"{name}.weight": np.ones(n, np.float32) for name, n in weights.items()}
        return ImportanceMatrix(tmp_path / "m.dat", named)

    tensors = {"token_embd.weight": np.ones((8, 4), np.float32), "exps.weight": np.ones((3, 2, 4), np.float32)}
    with open_gguf(write_gguf(tmp_path / "model.gguf", tensors)) as gguf:
        embedding, stack = gguf.tensors.values()
        weights = matrix(exps=12).weights_of(stack)
        assert weights is not None and weights.shape == (3, 4)
        assert matrix(other=4).weights_of(stack) is None
        with pytest.raises(QuantizeError, match=r"4 weights for tensor 'exps.weight', expected 12"):
            matrix(exps=4).weights_of(stack)
        assert matrix(token_embd=5).weights_of(embedding) is None
        matrix(exps=12).check(gguf.tensors.values(), "llama")
        with pytest.raises(QuantizeError, match=r"it has 'other.weight' and others, expected 'token_embd.weight'"):
            matrix(other=4).check(gguf.tensors.values(), "llama")
