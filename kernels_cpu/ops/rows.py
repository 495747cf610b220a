"""What happens to whole rows between two products, in one pass; it does not know which layer the rows belong to."""

from __future__ import annotations

from functools import partial

from kernels_cpu.compile import kernel
from kernels_cpu.ops import arg, copy_of, run_of_rows
from kernels_cpu.ops.norm import inverse_rms
from kernels_cpu.ops.quantize import write_block
from kernels_cpu.simd import f32_bits, f32x16, ld_i64, load, splat, store
from kernels_cpu.subroutine import subroutine


@subroutine(inlined=True)
def _add(x: int, w: int, eps: float, addend: int, out: int, n_blocks: int, n_cols: int) -> None:
    """out = addend + x, where w is not 0 with x * w / sqrt(mean(x^2) + eps) in place of x. Out may be addend."""
    r = splat(f32x16, inverse_rms(x, 32 * n_blocks, n_cols, eps)) if w != 0 else splat(f32x16, 1.0)
    for at in range(0, 128 * n_blocks, 64):
        y = load(f32x16, x + at)
        if w != 0:
            y = y * r * load(f32x16, w + at)
        store(out + at, load(f32x16, addend + at) + y)


@partial(kernel, cost=8)
def rows(row: int, thread: int, n_threads: int) -> None:
    """Norm, addition, norm and quantising of rows; what has an address of 0 (or bits of 0) is left out:

        y = x * w_before / sqrt(mean(x^2) + eps_before)
        sum = y = addend + y
        z = y * w / sqrt(mean(y^2) + eps)
        floats = z; quantised = z in blocks of 32 columns (bits: 0, 8 or 16)

    Arguments: count, n_cols, x, x_own, w_before, eps_before_bits, addend, addend_own, sum, w, eps_bits, floats, own,
    quantised, quantised_stride, quantised_own, bits. Rows of floats lie 32-column blocks after one another, without
    gaps. w_before needs an addend, an addend needs a sum, which may be in its place; w is float32 [32 n_blocks], zero
    from n_cols on. `own` belongs to sum and floats. Split by rows, or, where a result has own copies, every thread
    for itself. Squares are summed as in norm.inverse_rms.
    """
    n, n_cols, bits = ld_i64(arg(row, 0)), arg(row, 1), arg(row, 16)
    n_blocks = (n_cols + 31) // 32
    stride, quantised_stride = 128 * n_blocks, arg(row, 14)
    x, addend = copy_of(thread, arg(row, 2), arg(row, 3), n), copy_of(thread, arg(row, 6), arg(row, 7), n)
    total = copy_of(thread, arg(row, 8), arg(row, 12), n)
    quantised = copy_of(thread, arg(row, 13), arg(row, 15), n)
    w, eps = arg(row, 9), float(f32_bits(arg(row, 10)))
    first, end = run_of_rows(thread, n_threads, n, arg(row, 15) + arg(row, 12))
    for i in range(first, end):
        y = x + i * stride
        if arg(row, 6) != 0:
            y = total + i * stride
            eps_before = float(f32_bits(arg(row, 5)))
            _add(x + i * stride, arg(row, 4), eps_before, addend + i * stride, y, n_blocks, n_cols)
        if w == 0 and bits == 0 and arg(row, 11) == 0:
            continue
        r = splat(f32x16, inverse_rms(y, 32 * n_blocks, n_cols, eps)) if w != 0 else splat(f32x16, 1.0)
        floats = copy_of(thread, arg(row, 11), arg(row, 12), n) + i * stride if arg(row, 11) != 0 else 0
        for k in range(n_blocks):
            a, b = load(f32x16, y + 128 * k), load(f32x16, y + 128 * k + 64)
            if w != 0:
                a = a * r * load(f32x16, w + 128 * k)
                b = b * r * load(f32x16, w + 128 * k + 64)
            write_block(floats, quantised + i * quantised_stride, bits, k, a, b)
