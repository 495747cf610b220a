"""Quantises rows; what comes of a block is for the types to say."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from kernels_cpu.compile import Routine
from kernels_cpu.quantize import iq4, k_affine, k_signed, legacy, small
from kernels_cpu.quantize.blocks import BLOCKS, Block
from kernels_cpu.quantize.lanes import BF16_ROWS, F16_ROWS, F32_ROWS, LANES
from kernels_cpu.quantize.quantizer import JOB
from kernels_cpu.quantize.scratch import SCRATCH_BYTES
from kernels_cpu.quantize.twins.arithmetic import Bytes, Floats

CHUNK_VALUES = 1 << 17
"""Values that a thread takes at once: some milliseconds of work."""

KINDS = {"float32": F32_ROWS, "float16": F16_ROWS, "uint16": BF16_ROWS}
INFINITY_BITS, INFINITY_HALF_BITS = 0x7F800000, 0x7C00
MAX_VALUE = 1e9
"""No scale of a half reaches so far, and the sums of a search may be infinite from here on."""

LARGEST_VALUE = {"MXFP4": float("inf"), "BF16": (2 - 2**-8) * 2.0**127 * (1 - 2**-24)}
"""Where that is another: the largest float32 that is not rounded to infinity."""

ROUTINES = {
    (name.removesuffix("_WEIGHTED"), name.endswith("_WEIGHTED")): routine
    for module in (legacy, k_affine, k_signed, iq4, small)
    for name, routine in vars(module).items()
    if isinstance(routine, Routine)
}
"""By type and whether an importance is given."""

_loading = threading.Lock()


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
    values = np.ascontiguousarray(values)
    if type_name == "F32":
        _copy(values, out)
    elif out.size:
        _compiled(type_name, values, importance, out, n_threads)
    return out


def _copy(values: NDArray[np.generic], out: Bytes) -> None:
    """float32 as they are."""
    wide = as_float32(values)
    _refuse_rows(np.flatnonzero(~np.isfinite(wide).all(axis=1)), 0, "NaN or infinity")
    out[:] = wide.astype("<f4").view(np.uint8)


def _compiled(
    type_name: str, values: NDArray[np.generic], importance: Floats | None, out: Bytes, n_threads: int
) -> None:
    """16 rows at a time; the last ones are followed by rows of zeros."""
    more = -values.shape[1] % LANES
    if more:  # which only types without blocks can have
        wide = np.empty((len(out), out.shape[1] // values.shape[1] * (values.shape[1] + more)), np.uint8)
        _compiled(type_name, np.pad(values, ((0, 0), (0, more))), None, wide, n_threads)
        out[:] = wide[:, : out.shape[1]]
        return
    routine = ROUTINES[type_name, importance is not None]
    with _loading:
        routine.load()
    weight = None if importance is None else np.ascontiguousarray(importance, np.float32)
    whole = len(values) - len(values) % LANES
    step = max(1, CHUNK_VALUES // (LANES * values.shape[1])) * LANES
    parts = [(values[i:e], out[i:e], i) for i in range(0, whole, step) for e in (min(i + step, whole),)]
    work = partial(_run, routine, weight, LARGEST_VALUE.get(type_name, MAX_VALUE))
    n_threads = min(n_threads or physical_cores(), len(parts))
    if n_threads > 1:
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(work, *zip(*parts, strict=True)))
    else:
        for part in parts:
            work(*part)
    if whole < len(values):
        rest, blocks = np.zeros((LANES, values.shape[1]), values.dtype), np.empty((LANES, out.shape[1]), np.uint8)
        rest[: len(values) - whole] = values[whole:]
        work(rest, blocks, whole)
        out[whole:] = blocks[: len(values) - whole]


def _run(
    routine: Routine, importance: Floats | None, limit: float, values: NDArray[Any], out: Bytes, start: int
) -> None:
    """Rows by the groups of 16, on this thread. `start` is the number of the first in the caller's eyes."""
    n_groups = len(values) // LANES
    scratch, seen = np.empty(SCRATCH_BYTES, np.uint8), np.empty((n_groups, 2, LANES), np.int32)
    job = {
        "values": values.ctypes.data,
        "stride": values.strides[0],
        "kind": KINDS[values.dtype.name],
        "n_cols": values.shape[1],
        "importance": 0 if importance is None else importance.ctypes.data,
        "out": out.ctypes.data,
        "out_stride": out.strides[0],
        "n_groups": n_groups,
        "scratch": scratch.ctypes.data,
        "seen": seen.ctypes.data,
    }
    words = np.array([job[word] for word in JOB], np.int64)
    routine(words.ctypes.data)
    largest, half = seen[:, 0].ravel(), seen[:, 1].ravel()
    _refuse_rows(np.flatnonzero(largest >= INFINITY_BITS), start, "NaN or infinity")
    is_large = (half >= INFINITY_HALF_BITS) | (largest.view(np.float32) > limit)
    _refuse_rows(np.flatnonzero(is_large), start, "values too large for the type")


def physical_cores() -> int:
    """Cores that this process may use, threads of one core not counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


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
