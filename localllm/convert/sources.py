"""What a tensor of a GGUF is made of: stored tensors, changed on the way; it does not know which model needs what.

A source has a `shape` (outermost first), the `dtype` of its elements and `pieces`, flat arrays that follow one another.
No source of a model holds more than PIECE_BYTES, or one attention head, at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localllm.convert.checkpoint import StoredTensor
from localllm.convert.numbers import to_float32
from localllm.errors import ConvertError


class Source(Protocol):
    """Elements of a tensor: floats of `dtype` (F64, F32, F16, BF16), in pieces."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    def pieces(self) -> Iterator[npt.NDArray[Any]]: ...


@dataclass(frozen=True)
class Constant:
    """Numbers that no file has: float32."""

    values: npt.NDArray[np.float32]
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        yield self.values.reshape(-1)


@dataclass(frozen=True)
class Changed:
    """A source whose numbers, as float32, are changed one by one."""

    stored: Source
    change: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        for piece in self.stored.pieces():
            yield self.change(to_float32(piece, self.stored.dtype))


class Interleaved:
    """Rows of queries or keys, each head's first and second half dealt out alternately.

    Checkpoints for `transformers` turn pairs (i, i + head_dim / 2), GGUFs of `llama` turn (2 i, 2 i + 1).
    """

    def __init__(self, stored: StoredTensor, n_head: int) -> None:
        """Raises ConvertError if the rows are not `n_head` heads of an even size."""
        n_rows = stored.shape[0] if stored.shape else 0
        if n_head < 1 or n_rows % (2 * n_head):
            raise ConvertError(
                f"{stored.path}: tensor {stored.name!r}: {n_rows} rows for {n_head} heads, expected pairs"
            )
        self.stored, self.n_head = stored, n_head
        self.shape, self.dtype = stored.shape, stored.dtype

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        head_dim = self.shape[0] // self.n_head
        for head in range(self.n_head):
            rows = self.stored.rows(head * head_dim, (head + 1) * head_dim).read().reshape(2, head_dim // 2, -1)
            yield np.ascontiguousarray(rows.swapaxes(0, 1)).reshape(-1)


class Transposed:
    """A stored matrix with rows and columns exchanged; it is held whole."""

    def __init__(self, stored: StoredTensor) -> None:
        self.stored, self.dtype = stored, stored.dtype
        self.shape: tuple[int, ...] = stored.shape[::-1]

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        yield np.ascontiguousarray(self.stored.read().T).reshape(-1)
