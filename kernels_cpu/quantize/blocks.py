"""The blocks of the types that there are quantisers for: how many columns in how many bytes. It knows nothing else."""

from __future__ import annotations

from typing import NamedTuple


class Block(NamedTuple):
    """Columns and bytes of a block, and whether an importance of the columns changes what comes of it."""

    columns: int
    n_bytes: int
    is_weighted: bool


BLOCKS: dict[str, Block] = {
    "F32": Block(1, 4, False),
    "F16": Block(1, 2, False),
    "BF16": Block(1, 2, False),
    "Q4_0": Block(32, 18, True),
    "Q4_1": Block(32, 20, True),
    "Q5_0": Block(32, 22, True),
    "Q5_1": Block(32, 24, True),
    "Q8_0": Block(32, 34, False),
    "Q2_K": Block(256, 84, True),
    "Q3_K": Block(256, 110, True),
    "Q4_K": Block(256, 144, True),
    "Q5_K": Block(256, 176, True),
    "Q6_K": Block(256, 210, True),
    "IQ4_NL": Block(32, 18, True),
    "IQ4_XS": Block(256, 136, True),
    "MXFP4": Block(32, 17, False),
    "TQ1_0": Block(256, 54, False),
    "TQ2_0": Block(256, 66, False),
}
"""Sizes as GGUF has them."""
