"""Reads GGUF model files, and checks everything before it is used; it knows no architecture and runs nothing.

`localllm.gguf.header`, `.parts`, `.summary` and `.types` need the standard library alone. The names below load NumPy
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localllm.gguf.content import check_tensors
    from localllm.gguf.file import GGUFFile, TensorInfo, open_gguf
    from localllm.gguf.types import GGMLType, ValueType

__all__ = ["GGMLType", "GGUFFile", "TensorInfo", "ValueType", "check_tensors", "open_gguf"]

_MODULES = {
    "GGMLType": "types",
    "GGUFFile": "file",
    "TensorInfo": "file",
    "ValueType": "types",
    "check_tensors": "content",
    "open_gguf": "file",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
