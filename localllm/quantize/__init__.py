"""Quantises GGUF models: which tensor gets which type, and the way from file to file; it knows no kernel's inside.

`localllm.quantize.presets` needs the standard library alone. `quantize` loads NumPy and Numba when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from localllm.errors import QuantizeError
from localllm.quantize.presets import PRESETS, Preset, parse_preset

if TYPE_CHECKING:
    from localllm.quantize.file import quantize

__all__ = ["PRESETS", "Preset", "QuantizeError", "parse_preset", "quantize"]


def __getattr__(name: str) -> Any:
    if name != "quantize":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.file").quantize
