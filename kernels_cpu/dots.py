"""Integer dot products of weight codes with activations, 16 weight rows at once; they know no quant type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from kernels_cpu.simd import (
    AVX2,
    I16,
    I32,
    NEON,
    PATH,
    SIGNED_CODES,
    VNNI,
    Builder,
    const,
    emit_as_is,
    emit_dot_avx2_signed,
    emit_dot_portable,
    emit_join,
    emit_maddubs,
    emit_maddwd,
    emit_sdot,
    emit_slice,
    emit_vpdpbusd,
)

PART_BYTES = {"avx512": 64, "avx2": 32, "neon": 16, "portable": 64}[PATH]
"""A code vector is multiplied in parts that fit a register."""

_PART_I16, _PART_I32 = ir.VectorType(I16, PART_BYTES // 2), ir.VectorType(I32, PART_BYTES // 4)


def emit_parts(b: Builder, codes: ir.Value) -> list[ir.Value]:
    """A code vector, <64 x i8>, in parts."""
    m = 64 // PART_BYTES
    return [codes] if m == 1 else [emit_slice(b, codes, k, m) for k in range(m)]


@dataclass(frozen=True)
class XSums:
    """Sums over the activations of a run of columns, loaded when they are needed: all of them, i32, and those of
    columns 0, 1 and of columns 2, 3 of each 4, i16 beside i16; 4 bytes repeated over a part, <n x i8>."""

    total: Callable[[], ir.Value]
    lanes: Callable[[], ir.Value]


class BlockDot:
    """sum((code - zero_point)·x) of `n_steps` code vectors with one activation row, 16 weight rows at once.

    Codes are unsigned bytes up to `max_code` in groups of 4 columns a lane; activations are signed
    bytes in -127..127. `step` takes the next 4 columns.

    On AVX2 products are summed in 16 bits, two lanes for each 4 columns. Where the result must fit these, overflows on
    the way are no matter: the sums begin with what the zero point takes off. Else they are widened as often as needed.
    Codes above 127 are taken as signed bytes, biased by 128, where the CPU multiplies those better.
    """

    def __init__(self, b: Builder, max_code: int, zero_point: int, n_steps: int, x_sums: XSums) -> None:
        self.b, self.max_code, self.x_sums = b, max_code, x_sums
        self.in_16_bits = AVX2 and not VNNI
        self.bias = 128 if max_code > 127 and SIGNED_CODES else 0
        self.zero_point = zero_point - self.bias
        largest = 2 * n_steps * 127 * max(zero_point, max_code - zero_point)
        self.fits = self.in_16_bits and not self.bias and largest <= 32767
        self.accs = [const(_PART_I32, 0)] * (64 // PART_BYTES)
        if not self.in_16_bits:
            self._take_zero_point_off()
        self.pairs: list[ir.Value] = []
        self.n_pairs = 0

    def prepare(self, codes: ir.Value) -> list[ir.Value]:
        """A code vector as `step` takes it; the same for all rows."""
        if self.bias:
            codes = self.b.xor(codes, const(codes.type, 0x80))
        return emit_parts(self.b, codes)

    def step(self, codes: list[ir.Value], x: ir.Value) -> None:
        """Add 4 columns: prepared codes, and the 4 activations repeated over a part."""
        if self.in_16_bits and not self.bias:
            self._step_16_bits(codes, x)
        else:
            self.accs = [self._dot(acc, part, x) for acc, part in zip(self.accs, codes, strict=True)]

    def _dot(self, acc: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
        if VNNI:
            return emit_vpdpbusd(self.b, acc, codes, x)
        if NEON:
            return emit_sdot(self.b, acc, codes, x)
        return (emit_dot_avx2_signed if AVX2 else emit_dot_portable)(self.b, acc, codes, x)

    def _step_16_bits(self, codes: list[ir.Value], x: ir.Value) -> None:
        b = self.b
        if self.fits and self.zero_point and not self.pairs:
            lanes = b.bitcast(self.x_sums.lanes(), _PART_I16)
            self.pairs = [b.mul(lanes, const(_PART_I16, -self.zero_point))] * len(codes)
        if not self.fits and self.n_pairs == max(1, 32767 // (2 * 127 * self.max_code)):
            self._widen()
        new = [emit_maddubs(b, part, x) for part in codes]
        if self.pairs:
            new = [b.add(pairs, more) for pairs, more in zip(self.pairs, new, strict=True)]
        self.pairs = [emit_as_is(b, pairs) for pairs in new]
        self.n_pairs += 1

    def _widen(self) -> None:
        b = self.b
        if self.pairs:
            wide = [emit_maddwd(b, pairs, const(_PART_I16, 1)) for pairs in self.pairs]
            self.accs = [b.add(acc, more) for acc, more in zip(self.accs, wide, strict=True)]
        self.pairs, self.n_pairs = [], 0

    def _take_zero_point_off(self) -> None:
        if self.zero_point:
            total = self.b.bitcast(self.x_sums.total(), _PART_I32)
            off = self.b.mul(total, const(_PART_I32, self.zero_point))
            self.accs = [self.b.sub(acc, off) for acc in self.accs]

    def finish(self) -> ir.Value:
        """The sums, <16 x i32>."""
        self._widen()
        if self.in_16_bits and not self.fits:
            self._take_zero_point_off()
        return emit_join(self.b, self.accs)


class BlockDot16:
    """As BlockDot with 16-bit activations: x in -32767..32767, codes unsigned up to 255.

    A step's even and odd columns become two vectors of i16 pairs, so `step` takes the activations of
    columns (0, 2) and of (1, 3), each pair repeated over a part. 32 columns cannot overflow 32 bits.
    """

    def __init__(self, b: Builder, zero_point: int, x_sums: XSums) -> None:
        self.b, self.zero_point, self.x_sums = b, zero_point, x_sums
        self.accs = [const(_PART_I32, 0)] * (64 // PART_BYTES)

    def prepare(self, codes: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """A code vector as `step` takes it, even and odd columns apart; the same for all rows."""
        b = self.b
        words = [b.bitcast(part, _PART_I16) for part in emit_parts(b, codes)]
        return [(b.and_(w, const(_PART_I16, 0xFF)), b.lshr(w, const(_PART_I16, 8))) for w in words]

    def step(self, codes: list[tuple[ir.Value, ir.Value]], *x: ir.Value) -> None:
        """Add 4 columns: prepared codes, two activation pairs."""
        b = self.b
        for x_pair, which in zip(x, range(2), strict=True):
            pairs = b.bitcast(x_pair, _PART_I16)
            more = [emit_maddwd(b, part[which], pairs) for part in codes]
            self.accs = [b.add(acc, m) for acc, m in zip(self.accs, more, strict=True)]

    def finish(self) -> ir.Value:
        """The sums, <16 x i32>."""
        b, accs = self.b, self.accs
        if self.zero_point:
            off = b.mul(b.bitcast(self.x_sums.total(), _PART_I32), const(_PART_I32, self.zero_point))
            accs = [b.sub(acc, off) for acc in accs]
        return emit_join(b, accs)
