"""NaN and infinity in tensor data: each type, each scale field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm.errors import GGUFError
from localllm.gguf import GGMLType, check_tensors, open_gguf
from localllm.gguf.content import CHUNK_BYTES

Write = Callable[..., Path]
SCALE_FIELDS = {
    "F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q8_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
    "IQ3_XXS": [0], "IQ3_S": [0], "IQ4_NL": [0], "IQ4_XS": [0],
    "TQ1_0": [52], "TQ2_0": [64], "Q1_0": [0], "Q2_0": [0],
}  # fmt: skip
NAN_F16, INF_F16 = b"\x01\x7e", b"\x00\xfc"


def put(write: Write, tensor_fields: Any, kind: GGMLType, blocks: int, at: int, what: bytes) -> Path:
    nbytes = blocks * kind.type_size
    path = write(tensors=[tensor_fields("t", (blocks * kind.block_size,), kind, nbytes)])
    start = open_gguf(path).tensors["t"].offset
    raw = bytearray(path.read_bytes())
    raw[start : start + nbytes] = bytes(nbytes)
    raw[start + at : start + at + len(what)] = what
    path.write_bytes(raw)
    return path


def check(path: Path) -> None:
    with open_gguf(path) as f:
        check_tensors(f.tensors.values())


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, fields in SCALE_FIELDS.items() for at in fields])
@pytest.mark.parametrize("what", [NAN_F16, INF_F16])
def test_f16_scales(write: Write, tensor_fields: Any, name: str, at: int, what: bytes) -> None:
    kind = GGMLType[name]
    check(put(write, tensor_fields, kind, 3, 0, b""))
    with pytest.raises(GGUFError, match=rf"'t' \({name}\).*block 1 \(elements from {kind.block_size},"):
        check(put(write, tensor_fields, kind, 3, kind.type_size + at, what))


@pytest.mark.parametrize(("kind", "dtype"), [(GGMLType.F32, "<f4"), (GGMLType.F64, "<f8"), (GGMLType.Q8_K, "<f4")])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_wider_floats(write: Write, tensor_fields: Any, kind: GGMLType, dtype: str, value: float) -> None:
    check(put(write, tensor_fields, kind, 3, 2 * kind.type_size, np.array(1e30, dtype).tobytes()))
    with pytest.raises(GGUFError, match="block 2"):
        check(put(write, tensor_fields, kind, 3, 2 * kind.type_size, np.array(value, dtype).tobytes()))


def test_bf16(write: Write, tensor_fields: Any) -> None:
    check(put(write, tensor_fields, GGMLType.BF16, 4, 2, b"\x7f\x7f"))
    for what in (b"\x80\x7f", b"\x81\xff"):
        with pytest.raises(GGUFError, match="block 1"):
            check(put(write, tensor_fields, GGMLType.BF16, 4, 2, what))


def test_iq1_m_scale_is_spread_over_four_words(write: Write, tensor_fields: Any) -> None:
    nan = b"\x00\x10\x00\x00\x00\xe0\x00\x70"  # nibbles 1, 0, e, 7 from low to high: 0x7e01
    one = b"\xff\x0f\xff\x0f\xff\xcf\xff\x3f"  # 0x3c00, with every other bit set
    check(put(write, tensor_fields, GGMLType.IQ1_M, 2, 56 + 48, one))
    with pytest.raises(GGUFError, match="block 1"):
        check(put(write, tensor_fields, GGMLType.IQ1_M, 2, 56 + 48, nan))


def test_e8m0(write: Write, tensor_fields: Any) -> None:
    check(put(write, tensor_fields, GGMLType.MXFP4, 3, 17, b"\xfe" + b"\xff" * 16))
    with pytest.raises(GGUFError, match="block 1"):
        check(put(write, tensor_fields, GGMLType.MXFP4, 3, 17, b"\xff"))


@pytest.mark.parametrize("kind", [GGMLType.I8, GGMLType.I32, GGMLType.NVFP4])
def test_types_without_invalid_values(write: Write, tensor_fields: Any, kind: GGMLType) -> None:
    check(put(write, tensor_fields, kind, 2, 0, b"\xff" * kind.type_size))


def test_quants_of_a_scale_type_are_not_looked_at(write: Write, tensor_fields: Any) -> None:
    check(put(write, tensor_fields, GGMLType.Q8_0, 2, 2, b"\xff\x7f" * 16))


def test_a_fault_in_a_later_chunk_is_placed(write: Write, tensor_fields: Any) -> None:
    n = CHUNK_BYTES // 4 + 10
    path = write(tensors=[tensor_fields("t", (n,), GGMLType.F32, 0)])
    values = np.zeros(n, np.float32)
    values[n - 3] = np.nan
    path.write_bytes(path.read_bytes() + values.tobytes())
    with pytest.raises(GGUFError, match=f"block {n - 3} "):
        check(path)
