"""What `show` and `tags` say about a model file, standard library only; it never reads tensor data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.gguf.header import ArrayValue, TensorHeader
from localllm.gguf.parts import open_parts
from localllm.gguf.types import FILE_TYPE_NAMES, usual_file_type

MILLION, BILLION = 10**6, 10**9


@dataclass(frozen=True)
class Summary:
    """The figures of a model, over all its parts. `None` where the file does not say.

    `parameter_size` is spelled as Ollama does (`134.52M`, `8.0B`), `file_type` too (`Q4_K_M`).
    """

    architecture: str | None
    parameter_count: int
    parameter_size: str
    file_type: str
    file_bytes: int
    n_ctx_train: int | None
    n_embd: int | None
    n_layer: int | None


def read_summary(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Summary:
    """Summarise a model given by its file, any part of it, or all parts (as `parts.open_parts`).

    Raises:
        GGUFError: as `parts.open_parts`.
    """
    headers = open_parts(paths)
    try:
        metadata = headers[0].metadata
        tensors = [tensor for header in headers for tensor in header.tensors.values()]
        arch = metadata.get("general.architecture")
        n = parameter_count(tensors)
        return Summary(
            architecture=arch if isinstance(arch, str) else None,
            parameter_count=n,
            parameter_size=size_label(n),
            file_type=file_type_name(metadata, tensors),
            file_bytes=sum(header.file_bytes for header in headers),
            n_ctx_train=_figure(metadata, f"{arch}.context_length"),
            n_embd=_figure(metadata, f"{arch}.embedding_length"),
            n_layer=_figure(metadata, f"{arch}.block_count"),
        )
    finally:
        for header in headers:
            header.close()


def _figure(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool | ArrayValue) else None


def parameter_count(tensors: Iterable[TensorHeader]) -> int:
    """Elements of all tensors together."""
    return sum(tensor.n_elements for tensor in tensors)


def size_label(n_parameters: int) -> str:
    """Spell a parameter count: 1 decimal for billions, 2 for millions, none where the number is round."""
    if n_parameters >= BILLION:
        digits = 0 if n_parameters % BILLION == 0 else 1
        return f"{n_parameters / BILLION:.{digits}f}B"
    if n_parameters >= MILLION:
        digits = 0 if n_parameters % MILLION == 0 else 2
        return f"{n_parameters / MILLION:.{digits}f}M"
    if n_parameters >= 1000:
        return f"{n_parameters / 1000:.0f}K"
    return str(n_parameters)


def file_type_name(metadata: Mapping[str, Any], tensors: Iterable[TensorHeader]) -> str:
    """`general.file_type` spelled out, else the type that most matrices have, else `unknown`."""
    number = metadata.get("general.file_type")
    if isinstance(number, int) and number in FILE_TYPE_NAMES:
        return FILE_TYPE_NAMES[number]
    matrices = Counter(tensor.type for tensor in tensors if len(tensor.shape) > 1)
    return usual_file_type(matrices.most_common(1)[0][0]) if matrices else "unknown"
