"""Reads LoRA adapters from GGUF files and checks them against the model they are for; it applies nothing.

Format, as llama.cpp defines it: `general.type` adapter, `adapter.type` lora, `adapter.lora.alpha`, and for each matrix
`NAME.lora_a` [rank, columns] and `NAME.lora_b` [rows, rank], which add alpha / rank · B A (B A, where alpha is 0). For
`token_embd.weight` they are [tokens, rank] and [columns, rank].
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kernels_cpu.adapters import F32, Target
from kernels_cpu.graph import LowRank, Weight
from kernels_cpu.ops.lora import MAX_RANK
from localllm.errors import AdapterError, GGUFError
from localllm.gguf import GGMLType, open_gguf

if TYPE_CHECKING:
    from localllm.gguf import GGUFFile, TensorInfo

A, B = ".lora_a", ".lora_b"

logger = logging.getLogger(__name__)


def read_adapter(path: Path, architecture: str, found: Mapping[str, Target]) -> dict[str, LowRank]:
    """What the adapter in a file adds to the matrices of a model, by the names of these `found` targets.

    Norms that it may hold are left out, as llama.cpp does, and logged.

    Raises:
        AdapterError: it is no LoRA adapter, or none for this model.
    """
    try:
        with open_gguf(path) as file:
            return _Reader(file, found).read(architecture)
    except (GGUFError, OSError) as error:
        raise AdapterError(f"adapter cannot be read: {error}") from error


class _Reader:
    def __init__(self, file: GGUFFile, found: Mapping[str, Target]) -> None:
        self._file, self._found = file, found

    def read(self, architecture: str) -> dict[str, LowRank]:
        self._check_kind(architecture)
        alpha = self._file.get("adapter.lora.alpha", float, 0.0)
        if not np.isfinite(alpha):
            raise self._error(f"adapter.lora.alpha: expected a number, got {alpha}")
        names = self._names()
        if not names:
            raise self._error("it has no pairs of `.lora_a` and `.lora_b`")
        return {name: self._pair(name, alpha) for name in names}

    def _error(self, text: str, hint: str | None = None) -> AdapterError:
        return AdapterError(f"adapter {self._file.path.name}: {text}", hint=hint)

    def _check_kind(self, architecture: str) -> None:
        file = self._file
        kind = file.get("general.type", str, "")
        if file.get("general.architecture", str, "") == "controlvector":
            raise self._error("control vectors are not supported, only LoRA adapters")
        if kind != "adapter":
            raise self._error(f'expected general.type "adapter", got {kind[:64]!r}')
        adapter_type = file.get("adapter.type", str, "")
        if adapter_type != "lora":
            raise self._error(f'expected adapter.type "lora", got {adapter_type[:64]!r}')
        if "adapter.alora.invocation_tokens" in file.metadata:
            raise self._error("activated LoRA (aLoRA) is not supported")
        if file.architecture != architecture:
            raise self._error(
                f"it is for architecture {file.architecture[:64]!r}, the model is of {architecture!r}",
                hint="use it with the model that it was trained on",
            )

    def _names(self) -> list[str]:
        """Names of the matrices that have both halves, in the order of the file."""
        names: dict[str, None] = {}
        for tensor in self._file.tensors:
            if tensor.endswith((A, B)):
                names[tensor[: -len(A)]] = None
            elif tensor.endswith("_norm.weight"):
                logger.warning("a norm in a LoRA adapter is not applied: %.80r", tensor)
            else:
                raise self._error(f"tensor `{tensor}`: expected a name that ends with `{A}` or `{B}`")
        for name in names:
            for half in (A, B):
                if name + half not in self._file.tensors:
                    raise self._error(f"tensor `{name}{half}` is missing, its other half is there")
        return [*names]

    def _pair(self, name: str, alpha: float) -> LowRank:
        target = self._found.get(name)
        if target is None:
            what = "adapters of experts are" if "_exps." in name else "the model has no such matrix, or it is"
            raise self._error(
                f"tensor `{name}`: {what} not supported", hint="use it with the model that it was trained on"
            )
        a, b = self._file.tensors[name + A], self._file.tensors[name + B]
        rank = b.shape[0] if b.shape else 0
        if not 1 <= rank <= MAX_RANK:
            raise self._error(f"tensor `{name}{B}`: expected a rank in 1..{MAX_RANK}, got {rank}")
        for tensor, wanted in zip((a, b), target.shapes(rank), strict=True):
            shape = (*tensor.shape, 1)[:2]
            if len(tensor.shape) > 2 or shape != wanted[::-1]:
                got = list(tensor.shape)
                raise self._error(
                    f"tensor `{tensor.name}`: expected shape {list(wanted[::-1])}, got {got}",
                    hint="use it with the model that it was trained on",
                )
        return LowRank(self._floats(a), self._floats(b), alpha / rank if alpha else 1.0)

    def _floats(self, tensor: TensorInfo) -> F32:
        """A matrix as float32 [rows, columns], a copy."""
        n_cols, n_rows = (*tensor.shape, 1)[:2]
        x = _dequantised(tensor, n_rows, n_cols).reshape(n_rows, n_cols)
        if not np.isfinite(x).all():
            raise self._error(f"tensor `{tensor.name}` holds a NaN or an infinity")
        return x


def _dequantised(tensor: TensorInfo, n_rows: int, n_cols: int) -> F32:
    if tensor.type == GGMLType.F32:
        return tensor.data.view("<f4").astype(np.float32)
    if tensor.type == GGMLType.F16:
        return tensor.data.view("<f2").astype(np.float32)
    if tensor.type == GGMLType.BF16:
        return (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    # Imported on demand: the `gguf` package behind it takes long to import, and quantised adapters are rare.
    from kernels_cpu.twin import dequantise

    return dequantise(Weight(tensor.name, int(tensor.type), n_rows, n_cols, tensor.data)).copy()
