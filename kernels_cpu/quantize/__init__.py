"""Rows of floats to the blocks of GGUF's quant types; it knows neither files nor which type a tensor should get."""

from __future__ import annotations

from kernels_cpu.quantize.blocks import BLOCKS
from kernels_cpu.quantize.rows import quantize_rows

TYPES = frozenset(BLOCKS)
"""Types that rows can be quantised to."""

__all__ = ["TYPES", "quantize_rows"]
