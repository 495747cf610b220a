"""Turns floats of one format into another; where they come from and go to is not its business."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from localllm.gguf.types import GGMLType

Floats = npt.NDArray[Any]
TYPES = {"F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16}


def to_float32(raw: Floats, dtype: str) -> npt.NDArray[np.float32]:
    """float32 of elements stored as F64, F32, F16 or BF16 (uint16); the first is rounded.

    Raises:
        ValueError: `dtype` is another.
    """
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype not in ("F64", "F32", "F16"):
        raise ValueError(f"dtype {dtype}, expected F64, F32, F16 or BF16")
    return raw.astype(np.float32, copy=False)


def from_float32(values: npt.NDArray[np.float32], dtype: str) -> Floats:
    """Elements of F32, F16 or BF16 (as uint16), rounded to the nearest, ties to even.

    Raises:
        ValueError: a finite value does not fit F16.
    """
    if dtype == "F32":
        return values
    if dtype == "F16":
        try:
            with np.errstate(over="raise"):
                return values.astype(np.float16)
        except FloatingPointError as error:
            largest = np.abs(values[np.isfinite(values)]).max()
            raise ValueError(f"{largest:g} does not fit F16, whose largest number is 65504") from error
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), ((bits >> 16) | 0x40).astype(np.uint16), rounded)


def converted(raw: Floats, source: str, target: str) -> Floats:
    """Elements of dtype `source` as `target`, F32, F16 or BF16; untouched where these are the same.

    Raises:
        ValueError: as `to_float32` and `from_float32`.
    """
    return raw if source == target else from_float32(to_float32(raw, source), target)
