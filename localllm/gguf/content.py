"""Looks for NaN, infinity and invalid scales in tensor data; quant formats are known only by where their scales are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from localllm.errors import GGUFError
from localllm.gguf.file import TensorInfo
from localllm.gguf.types import GGMLType

CHUNK_BYTES = 1 << 24

Blocks = npt.NDArray[np.uint8]  # [n_blocks, type_size]
Flags = npt.NDArray[np.bool_]  # [n_blocks]


def _not_finite(dtype: str, exponent: int, *fields: int) -> Callable[[Blocks], Flags]:
    """True where a float at one of the byte offsets, read as the unsigned `dtype`, has all exponent bits set."""
    size = np.dtype(dtype).itemsize

    def check(blocks: Blocks) -> Flags:
        bad = np.zeros(len(blocks), np.bool_)
        for at in fields:
            bits = np.ascontiguousarray(blocks[:, at : at + size]).view(dtype)[:, 0]
            bad |= bits & exponent == exponent
        return bad

    return check


def _f16(*fields: int) -> Callable[[Blocks], Flags]:
    return _not_finite("<u2", 0x7C00, *fields)


def _iq1_m_scale(blocks: Blocks) -> Flags:
    """The f16 scale is spread over the top nibbles of the four u16 at byte 48; its exponent is in the upper two."""
    words = np.ascontiguousarray(blocks[:, 48:56]).view("<u2")
    scale = (words[:, 0] >> 12) | (words[:, 1] >> 8 & 0x00F0) | (words[:, 2] >> 4 & 0x0F00) | (words[:, 3] & 0xF000)
    return scale & 0x7C00 == 0x7C00


_CHECKS: dict[GGMLType, Callable[[Blocks], Flags]] = {
    GGMLType.F32: _not_finite("<u4", 0x7F800000, 0),
    GGMLType.F64: _not_finite("<u8", 0x7FF0000000000000, 0),
    GGMLType.BF16: _not_finite("<u2", 0x7F80, 0),
    GGMLType.F16: _f16(0),
    GGMLType.Q4_0: _f16(0),
    GGMLType.Q4_1: _f16(0, 2),
    GGMLType.Q5_0: _f16(0),
    GGMLType.Q5_1: _f16(0, 2),
    GGMLType.Q8_0: _f16(0),
    GGMLType.Q8_1: _f16(0, 2),
    GGMLType.Q2_K: _f16(80, 82),
    GGMLType.Q3_K: _f16(108),
    GGMLType.Q4_K: _f16(0, 2),
    GGMLType.Q5_K: _f16(0, 2),
    GGMLType.Q6_K: _f16(208),
    GGMLType.Q8_K: _not_finite("<u4", 0x7F800000, 0),
    GGMLType.IQ1_S: _f16(0),
    GGMLType.IQ1_M: _iq1_m_scale,
    GGMLType.IQ2_XXS: _f16(0),
    GGMLType.IQ2_XS: _f16(0),
    GGMLType.IQ2_S: _f16(0),
    GGMLType.IQ3_XXS: _f16(0),
    GGMLType.IQ3_S: _f16(0),
    GGMLType.IQ4_NL: _f16(0),
    GGMLType.IQ4_XS: _f16(0),
    GGMLType.TQ1_0: _f16(52),
    GGMLType.TQ2_0: _f16(64),
    GGMLType.Q1_0: _f16(0),
    GGMLType.Q2_0: _f16(0),
    GGMLType.MXFP4: lambda blocks: blocks[:, 0] == 0xFF,
}


def check_tensors(tensors: Iterable[TensorInfo]) -> None:
    """Read every tensor and refuse values no arithmetic survives; integers and NVFP4 have none.

    Works in pieces of 16 MiB, so the memory it takes does not grow with the tensor.

    Raises:
        GGUFError: names the first tensor with a NaN or an infinity, and the block it is in.
    """
    for tensor in tensors:
        check = _CHECKS.get(tensor.type)
        if check is not None:
            _check_tensor(tensor, check)


def _check_tensor(tensor: TensorInfo, check: Callable[[Blocks], Flags]) -> None:
    blocks = tensor.data.reshape(-1, tensor.type.type_size)
    step = CHUNK_BYTES // tensor.type.type_size
    for start in range(0, len(blocks), step):
        bad = check(blocks[start : start + step])
        if bad.any():
            block = start + int(bad.argmax())
            raise GGUFError(
                f"{tensor.path}: tensor {tensor.name!r} ({tensor.type.name}) holds a NaN or an infinity "
                f"in block {block} (elements from {block * tensor.type.block_size}, "
                f"byte {tensor.offset + block * tensor.type.type_size} of the file)",
                hint="the file is corrupt: download it again",
            )
