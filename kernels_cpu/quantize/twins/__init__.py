"""How rows are quantised, in NumPy, written to be read: what the compiled quantisers must equal bit for bit.

`quantize_rows` of this package takes the rows apart into blocks, which the modules beside it quantise, as many side by
side as there are: arrays are [position in the block][block]. Sums are taken in the order of positions, in float32.
"""

from __future__ import annotations

import numpy as np

from kernels_cpu.quantize.blocks import BLOCKS
from kernels_cpu.quantize.twins import floats, iq4, k_types, legacy, small
from kernels_cpu.quantize.twins.arithmetic import Bytes, Floats, sum_in_order

QUANTIZERS = legacy.QUANTIZERS | k_types.QUANTIZERS | iq4.QUANTIZERS | small.QUANTIZERS | floats.QUANTIZERS
"""By type: a function of x [columns, n], importance [columns, n] or None, and the mean square [n] of each block's row,
that gives uint8 [block bytes, n]."""


def quantize_rows(type_name: str, values: Floats, importance: Floats | None = None) -> Bytes:
    """float32 [n_rows, n_cols], all finite, to uint8 [n_rows, bytes per row] in GGUF's layout."""
    columns = BLOCKS[type_name].columns
    n_rows, n_cols = values.shape
    x = np.ascontiguousarray(values.reshape(-1, columns).T)
    weight, square = None, np.zeros(x.shape[1], np.float32)
    with np.errstate(all="ignore"):
        if importance is not None:
            weight = np.tile(importance.reshape(-1, columns).T, n_rows)
            square = np.repeat(sum_in_order((values * values).T) / np.float32(n_cols), n_cols // columns)
        blocks = QUANTIZERS[type_name](x, weight, square)
    return np.ascontiguousarray(blocks.T).reshape(n_rows, -1)
