"""Quantises rows; what comes of a block is for the types to say."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.quantize.blocks import BLOCKS, Block
from kernels_cpu.quantize.twins import quantize_rows as quantize_rows_twin
from kernels_cpu.quantize.twins.arithmetic import Bytes, Floats

AT_ONCE = 1 << 16


def quantize_rows(
    type_name: str, values: NDArray[np.generic], importance: Floats | None = None, n_threads: int = 0
) -> Bytes:
    """Rows in GGUF's layout: uint8 [n_rows, bytes per row], C order. The GIL is released inside.

    `values` [n_rows, n_cols] is float32, float16, or uint16, which is taken for the bits of bfloat16; any strides.
    `importance` float32 [n_cols], finite and not negative, says how much an error in a column counts; types whose
    codes leave no choice (BLOCKS tells) do without. `n_threads` 0 means all cores. The bytes do not depend on the
    threads, the CPU or how rows are cut into calls.

    Raises:
        ValueError: an unknown type, a shape or dtype that cannot be, NaN or infinity in a row, or a row whose scale a
            half cannot hold.
    """
    block = _checked(type_name, values, importance)
    if not block.is_weighted:
        importance = None
    out = np.empty((len(values), values.shape[1] // block.columns * block.n_bytes), np.uint8)
    step = max(1, AT_ONCE // max(1, values.shape[1]))
    for start in range(0, len(values), step):
        part = as_float32(values[start : start + step])
        _refuse_rows(np.flatnonzero(~np.isfinite(part).all(axis=1)), start, "NaN or infinity")
        out[start : start + step] = quantize_rows_twin(type_name, part, importance)
    return out


def as_float32(values: NDArray[np.generic]) -> Floats:
    """The numbers that are meant; uint16 are the bits of bfloat16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32)


def _checked(type_name: str, values: NDArray[np.generic], importance: Floats | None) -> Block:
    if type_name not in BLOCKS:
        raise ValueError(f'no quantiser for type "{type_name}" (expected one of: {", ".join(BLOCKS)})')
    block = BLOCKS[type_name]
    if values.ndim != 2 or values.dtype not in (np.float32, np.float16, np.uint16):
        found = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"rows to quantise are {found}, not float32, float16 or uint16 (bfloat16) [n_rows, n_cols]")
    n_cols = values.shape[1]
    if n_cols % block.columns:
        raise ValueError(f"rows of {n_cols} columns are not whole blocks of {type_name} ({block.columns} columns)")
    if importance is None:
        return block
    if importance.shape != (n_cols,):
        raise ValueError(f"an importance of shape {list(importance.shape)} is not one of {n_cols} columns")
    if not (np.isfinite(importance) & (importance >= 0)).all():
        raise ValueError("an importance is NaN, infinite or negative")
    return block


def _refuse_rows(rows: NDArray[Any], start: int, what: str) -> None:
    if len(rows):
        raise ValueError(f"{what} in row {start + int(rows[0])}")
