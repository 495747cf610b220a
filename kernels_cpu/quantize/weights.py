"""How much the error of a value counts, 16 blocks side by side; it does not know what is done with that."""

from __future__ import annotations

from kernels_cpu.quantize.lanes import ROW, Vector, broadcast, each, root
from kernels_cpu.quantize.scratch import WEIGHT
from kernels_cpu.quantize.search import sum_of_squares
from kernels_cpu.simd import f32x16, load, store, vabs
from kernels_cpu.subroutine import subroutine


@subroutine()
def weigh_by_importance(s: int, x: int, n: int, importance: int, mean_square: Vector) -> None:
    """WEIGHT = importance * sqrt(mean square + x²)."""
    for i in range(n):
        v = load(f32x16, x + ROW * i)
        store(s + WEIGHT + ROW * i, broadcast(importance + 4 * i) * root(mean_square + v * v))


@subroutine()
def weigh_by_importance_alone(s: int, n: int, importance: int) -> None:
    """WEIGHT = importance."""
    for i in range(n):
        store(s + WEIGHT + ROW * i, broadcast(importance + 4 * i))


@subroutine()
def weigh_by_square(s: int, x: int, n: int) -> None:
    """WEIGHT = x²."""
    for at in range(0, ROW * n, ROW):
        v = load(f32x16, x + at)
        store(s + WEIGHT + at, v * v)


@subroutine()
def weigh_by_magnitude(s: int, x: int, n: int) -> None:
    """WEIGHT = |x|, in sub-blocks of 32 with the root of their mean square added."""
    more = each(0.0)
    if n == 32:
        more = root(sum_of_squares(x, n) / each(32.0))
    for at in range(0, ROW * n, ROW):
        store(s + WEIGHT + at, more + vabs(load(f32x16, x + at)))
