"""The KV cache of a layer: how a page is laid out, and the kernel that writes to it. Who owns a page it does not know.

A page holds 32 positions, first the keys of all kv heads, then the values; with hd = head_dim and hd16 = hd rounded
up to 16:

    K   [n_head_kv][2 blocks][hd][16 positions]   f16: a vector is one column of 16 positions
    V   [n_head_kv][32 positions][hd16]           f16, zero beyond hd: a vector is 16 columns of one position

Attention goes through the keys of several pages before it needs the values: the longer the runs it finds, the nearer
it comes to the bandwidth of the memory.
"""

from __future__ import annotations

from numba import float32

from kernels_cpu.compile import kernel
from kernels_cpu.graph import PAGE_POSITIONS
from kernels_cpu.ops import arg, round_up, share
from kernels_cpu.simd import f32x16, ld_f32, ld_i32, ld_i64, load, scatter_f16, st_f16, store_f16


def kv_page_bytes(n_head_kv: int, head_dim: int) -> int:
    """Bytes of a page of one layer's KV cache: n_head_kv * 64 * (head_dim + head_dim rounded up to 16)."""
    return n_head_kv * 2 * PAGE_POSITIONS * (head_dim + -(-head_dim // 16) * 16)


@kernel
def kv_write(row: int, thread: int, n_threads: int) -> None:
    """Keys and values of the step's rows to their places in the cache as f16; split by (kv head, row).

    Arguments: count, k, k_stride, v, v_stride, base, page_bytes, n_head_kv, head_dim, positions, slots, page_tables,
    max_pages. Position p of a slot lies in page `page_tables[slot, p // 32]` (int32 [n_slots, max_pages]), which is
    `page_bytes` times that number from `base`. Rounds half to even; beyond 65504 to infinity.
    """
    n = ld_i64(arg(row, 0))
    k, k_stride, v, v_stride = arg(row, 1), arg(row, 2), arg(row, 3), arg(row, 4)
    base, page_bytes, n_head_kv, head_dim = arg(row, 5), arg(row, 6), arg(row, 7), arg(row, 8)
    positions, slots, page_tables, max_pages = arg(row, 9), arg(row, 10), arg(row, 11), arg(row, 12)
    n_vector, width = head_dim // 16 * 16, round_up(head_dim, 16)
    for item in range(share(n * n_head_kv, thread, n_threads), share(n * n_head_kv, thread + 1, n_threads)):
        head = item // n
        i = item - head * n
        p = ld_i32(positions + 4 * i)
        page = ld_i32(page_tables + 4 * (ld_i32(slots + 4 * i) * max_pages + p // 32))
        keys = base + page * page_bytes + 64 * head_dim * head + 32 * head_dim * (p % 32 // 16) + 2 * (p % 16)
        values = base + page * page_bytes + 64 * head_dim * n_head_kv + 2 * width * (32 * head + p % 32)
        x, y = k + i * k_stride + 4 * head * head_dim, v + i * v_stride + 4 * head * head_dim
        for d in range(0, n_vector, 16):
            scatter_f16(keys + 32 * d, 32, load(f32x16, x + 4 * d))
            store_f16(values + 2 * d, load(f32x16, y + 4 * d))
        for d in range(n_vector, head_dim):
            st_f16(keys + 32 * d, ld_f32(x + 4 * d))
            st_f16(values + 2 * d, ld_f32(y + 4 * d))
        for d in range(head_dim, width):
            st_f16(values + 2 * d, float32(0.0))
