"""How large a model's weights are once they are interleaved, from its header alone; it knows no bytes of them.

The table is that of `kernels_cpu.quants`, which takes a second to import; a test holds the two together.
"""

from collections.abc import Iterable

from localllm.gguf.header import TensorHeader
from localllm.gguf.types import GGMLType

GROUP_ROWS = 16
# Matrices are padded to so many rows, and begin on a page of memory each.
UNIT_ROWS = 32
PAGE_BYTES = 4096
FLOAT_BYTES = 4

PACKED_BLOCKS: dict[GGMLType, tuple[int, int]] = {
    GGMLType.F32: (32, 2048),
    GGMLType.F16: (32, 1024),
    GGMLType.BF16: (32, 1024),
    GGMLType.Q4_0: (32, 288),
    GGMLType.Q4_1: (32, 320),
    GGMLType.Q5_0: (32, 352),
    GGMLType.Q5_1: (32, 384),
    GGMLType.Q8_0: (32, 544),
    GGMLType.Q2_K: (256, 1344),
    GGMLType.Q3_K: (256, 1824),
    GGMLType.Q4_K: (256, 2368),
    GGMLType.Q5_K: (256, 2880),
    GGMLType.Q6_K: (256, 3360),
    GGMLType.IQ1_S: (256, 1184),
    GGMLType.IQ1_M: (256, 1824),
    GGMLType.IQ2_XXS: (256, 1696),
    GGMLType.IQ2_XS: (256, 1824),
    GGMLType.IQ2_S: (256, 1824),
    GGMLType.IQ3_XXS: (256, 2208),
    GGMLType.IQ3_S: (256, 2208),
    GGMLType.IQ4_NL: (32, 288),
    GGMLType.IQ4_XS: (256, 2208),
    GGMLType.TQ1_0: (256, 1056),
    GGMLType.TQ2_0: (256, 1056),
    GGMLType.MXFP4: (32, 272),
    GGMLType.NVFP4: (64, 576),
    GGMLType.Q1_0: (128, 288),
    GGMLType.Q2_0: (64, 288),
}
"""Of each type that can be run, columns of a block and bytes that 16 rows of it take."""


def packed_bytes(tensors: Iterable[TensorHeader]) -> int:
    """Bytes of the interleaved copy of the matrices among `tensors`, and of the vectors as float32.

    Of a type that cannot be run, the file's own bytes: the runner will refuse it.
    """
    return sum(_tensor_bytes(tensor) for tensor in tensors)


def _tensor_bytes(tensor: TensorHeader) -> int:
    n_cols = tensor.shape[0] if tensor.shape else 1
    n_rows = tensor.n_elements // max(1, n_cols)
    if n_rows <= 1:
        return FLOAT_BYTES * tensor.n_elements
    if tensor.type not in PACKED_BLOCKS:
        return tensor.n_elements // tensor.type.block_size * tensor.type.type_size
    block_columns, block_bytes = PACKED_BLOCKS[tensor.type]
    n_groups = UNIT_ROWS // GROUP_ROWS * -(-n_rows // UNIT_ROWS)
    return -(-n_groups * -(-n_cols // block_columns) * block_bytes // PAGE_BYTES) * PAGE_BYTES
