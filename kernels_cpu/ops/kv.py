"""The KV cache of a layer: how a page is laid out, and the kernels that write to it. Who owns a page it does not know.

A page holds 32 positions, first the keys of all kv heads, then the values: what attention needs of a head lies in one
run. With hd = head_dim, and hd16, hd32 = hd rounded up to 16 and 32:

    f32, f16  K  [hd][32 positions]                   a vector is one column of 16 positions
              V  [groups of 32 columns][32 positions][32]; of 16 at the end of an odd hd16; zero beyond hd
    q8_0      K  f16 scale [hd32 / 32][32 positions], then u8 [hd32 / 4][32 positions][4 columns]: integer + 128
              V  f16 scale [hd32 / 32][32 positions], then i8 [hd32 / 32][32 positions][32 columns]
    q4_0      K  f16 scale [hd32 / 32][32 positions], then u8 [hd32 / 8][32 positions][4]: integers + 8 of columns j
                 (low bits) and j + 4 (high bits) of 8
              V  f16 scale [hd32 / 32][32 positions], then i8 [hd32 / 32][32 positions][16]: integers of columns j (low
                 bits) and j + 16 (high bits) of 32, signed

What the integers mean is said in kernels_cpu.kv_rounding. No two positions share a byte, so that threads may write
neighbours, and none depends on another.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import int64

from kernels_cpu.graph import PAGE_POSITIONS
from kernels_cpu.kv_rounding import BLOCK, KV_ROUNDINGS
from kernels_cpu.ops import arg, round_up, share, specialised
from kernels_cpu.ops.kv_parts import biased, nibbles, quantise_4, quantise_8
from kernels_cpu.ops.rotation import copy_padded, rotate
from kernels_cpu.ops.scatter import scatter_nibbles, scatter_words
from kernels_cpu.simd import (
    f32x16,
    ld_f32,
    ld_i32,
    ld_i64,
    load,
    scatter_f16,
    smaller,
    st_f16,
    st_f32,
    store,
    store_f16,
)
from kernels_cpu.subroutine import subroutine


@dataclass(frozen=True)
class KVLayout:
    """Sizes of one layer's cache of a type (a key of KV_ROUNDINGS)."""

    kv_type: str
    n_head_kv: int
    head_dim: int

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys of one head in a page, a multiple of 64."""
        bits = KV_ROUNDINGS[self.kv_type].bits
        if bits >= 16:
            return PAGE_POSITIONS * self.head_dim * bits // 8
        return self._quantised_bytes(bits)

    @property
    def value_bytes(self) -> int:
        """Bytes of the values of one head in a page, a multiple of 64."""
        bits = KV_ROUNDINGS[self.kv_type].bits
        if bits >= 16:
            return PAGE_POSITIONS * -(-self.head_dim // 16) * 16 * bits // 8
        return self._quantised_bytes(bits)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.n_head_kv * (self.key_bytes + self.value_bytes)

    @property
    def key_rotation(self) -> int:
        """Size of the transform of keys and queries; 1: none."""
        return KV_ROUNDINGS[self.kv_type].key_rotation(self.head_dim)

    @property
    def value_rotation(self) -> int:
        """Size of the transform of values and results; 1: none."""
        return KV_ROUNDINGS[self.kv_type].value_rotation(self.head_dim)

    def _quantised_bytes(self, bits: int) -> int:
        n_blocks = -(-self.head_dim // BLOCK)
        return PAGE_POSITIONS * n_blocks * (2 + BLOCK * bits // 8)


@subroutine()
def _write_f16(x: int, y: int, keys: int, values: int, p: int, head_dim: int) -> None:
    """A head's key and value, float32 at x and y with zeros up to hd32, to position p of a page."""
    for d in range(0, head_dim, 16):
        store_f16(_value_place(values, p, d, head_dim, 2), load(f32x16, y + 4 * d))
        if d + 16 <= head_dim:
            scatter_f16(keys + 64 * d + 2 * p, 64, load(f32x16, x + 4 * d))
        else:
            for c in range(d, head_dim):
                st_f16(keys + 64 * c + 2 * p, ld_f32(x + 4 * c))


@subroutine()
def _write_f32(x: int, y: int, keys: int, values: int, p: int, head_dim: int) -> None:
    """As _write_f16."""
    for d in range(0, head_dim, 16):
        store(_value_place(values, p, d, head_dim, 4), load(f32x16, y + 4 * d))
    for c in range(head_dim):
        st_f32(keys + 128 * c + 4 * p, ld_f32(x + 4 * c))


@subroutine(int64)
def _value_place(values: int, p: int, d: int, head_dim: int, n_bytes: int) -> int:
    """Where columns d .. d + 15 of the value of position p lie, of n_bytes each."""
    first = d // 32 * 32
    width = smaller(round_up(head_dim, 16) - first, 32)
    return values + n_bytes * (PAGE_POSITIONS * first + width * p + d - first)


@subroutine()
def _write_q8_0(x: int, y: int, keys: int, values: int, p: int, head_dim: int) -> None:
    """As _write_f16."""
    n_blocks = (head_dim + 31) // 32
    for k in range(n_blocks):
        d, low, high = quantise_8(x + 128 * k)
        st_f16(keys + 64 * k + 2 * p, d)
        codes = keys + 64 * n_blocks + 1024 * k + 4 * p
        scatter_words(codes, 128, biased(low, 128))
        scatter_words(codes + 512, 128, biased(high, 128))
        d, low, high = quantise_8(y + 128 * k)
        st_f16(values + 64 * k + 2 * p, d)
        codes = values + 64 * n_blocks + 1024 * k + 32 * p
        store(codes, biased(low, 0))
        store(codes + 16, biased(high, 0))


@subroutine()
def _write_q4_0(x: int, y: int, keys: int, values: int, p: int, head_dim: int) -> None:
    """As _write_f16."""
    n_blocks = (head_dim + 31) // 32
    for k in range(n_blocks):
        d, low, high = quantise_4(x + 128 * k)
        st_f16(keys + 64 * k + 2 * p, d)
        codes = keys + 64 * n_blocks + 512 * k + 4 * p
        scatter_nibbles(codes, 128, biased(low, 8))
        scatter_nibbles(codes + 256, 128, biased(high, 8))
        d, low, high = quantise_4(y + 128 * k)
        st_f16(values + 64 * k + 2 * p, d)
        store(values + 64 * n_blocks + 512 * k + 16 * p, nibbles(biased(low, 0), biased(high, 0)))


# Replaced in each type's copy of the kernel below.
write_head = _write_f32


def _kv_write(row: int, thread: int, n_threads: int) -> None:
    """Keys and values of the step's rows to their places in the cache; split by (row, head).

    Arguments: count, k, k_stride, v, v_stride, base, page_bytes, n_head_kv, head_dim, positions, slots, page_tables,
    max_pages, key_bytes, value_bytes, key_rotation, value_rotation, work, work_stride. Position p of a slot lies in
    page `page_tables[slot, p // 32]` (int32 [n_slots, max_pages]), which is `page_bytes` times that number from `base`.
    The five words before `work` are KVLayout's; a thread has 8 hd32 bytes at `work`, `work_stride` bytes apart.
    Rounds half to even.
    """
    n = ld_i64(arg(row, 0))
    n_head_kv, head_dim = arg(row, 7), arg(row, 8)
    x = arg(row, 17) + thread * arg(row, 18)
    y = x + 4 * round_up(head_dim, 32)
    for item in range(share(n * n_head_kv, thread, n_threads), share(n * n_head_kv, thread + 1, n_threads)):
        i = item // n_head_kv
        head = item - i * n_head_kv
        copy_padded(arg(row, 1) + i * arg(row, 2) + 4 * head * head_dim, x, head_dim)
        copy_padded(arg(row, 3) + i * arg(row, 4) + 4 * head * head_dim, y, head_dim)
        if arg(row, 15) > 1:
            rotate(x, head_dim, arg(row, 15))
            rotate(y, head_dim, arg(row, 16))
        p = int64(ld_i32(arg(row, 9) + 4 * i))
        pages = arg(row, 11) + 4 * ld_i32(arg(row, 10) + 4 * i) * arg(row, 12)
        keys = arg(row, 5) + ld_i32(pages + 4 * (p // 32)) * arg(row, 6)
        values = keys + n_head_kv * arg(row, 13) + head * arg(row, 14)
        write_head(x, y, keys + head * arg(row, 13), values, p % 32, head_dim)


kv_write_f32 = specialised(_kv_write, __name__, "kv_write_f32", write_head=_write_f32)
kv_write_f16 = specialised(_kv_write, __name__, "kv_write_f16", write_head=_write_f16)
kv_write_q8_0 = specialised(_kv_write, __name__, "kv_write_q8_0", write_head=_write_q8_0)
kv_write_q4_0 = specialised(_kv_write, __name__, "kv_write_q4_0", write_head=_write_q4_0)

KV_WRITE = {"f32": kv_write_f32, "f16": kv_write_f16, "q8_0": kv_write_q8_0, "q4_0": kv_write_q4_0}
"""The kernel of each type."""
