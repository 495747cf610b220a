"""The searches of twins/searches.py, compiled: 16 blocks side by side. They know codes, but no layout.

x and weight are float32 [n][16] in memory, codes are written as float32 [n][16]. Every sum is taken in the order of
the block's columns, and nothing is fused or reassociated, so that each lane gets what the twin says on every CPU.
"""

from __future__ import annotations

from kernels_cpu.quantize.lanes import ROW, Vector, each, nearest
from kernels_cpu.quantize.scratch import PRODUCT, TRIAL
from kernels_cpu.simd import f32x16, load, select_less, store, vabs, vmax, vmin
from kernels_cpu.subroutine import subroutine

SMALLEST = 1e-15
ROUNDS = 5


@subroutine(f32x16)
def first_extreme(x: int, n: int) -> Vector:
    """The value of the largest magnitude, the first where several have it; 0 for zeros."""
    extreme, magnitude = each(0.0), each(0.0)
    for at in range(0, ROW * n, ROW):
        v = load(f32x16, x + at)
        extreme = select_less(magnitude, vabs(v), v, extreme)
        magnitude = vmax(vabs(v), magnitude)
    return extreme


@subroutine(f32x16)
def sum_of_squares(x: int, n: int) -> Vector:
    """x[0]² + x[1]² + ..."""
    total = each(0.0)
    for at in range(0, ROW * n, ROW):
        v = load(f32x16, x + at)
        total = total + v * v
    return total


@subroutine(f32x16)
def sum_of(x: int, n: int) -> Vector:
    """x[0] + x[1] + ..."""
    total = each(0.0)
    for at in range(0, ROW * n, ROW):
        total = total + load(f32x16, x + at)
    return total


@subroutine(f32x16, inlined=True)
def reciprocal_or_0(x: Vector) -> Vector:
    """1 / x, and 0 for 0."""
    return select_less(each(0.0), vabs(x), each(1.0) / x, each(0.0))


@subroutine()
def fit_scale(s: int, x: int, weight: int, n: int, n_codes: int, scale_to: int, codes: int) -> None:
    """As twins.searches.fit_scale with 2 n_codes codes; the scale goes to `scale_to`. n <= 32."""
    extreme = first_extreme(x, n)
    is_zero, one = vabs(extreme), each(1.0)
    extreme = select_less(is_zero, each(SMALLEST), one, extreme)
    low, high = each(-n_codes), each(n_codes - 1)
    for at in range(0, ROW * n, ROW):
        store(s + PRODUCT + at, load(f32x16, weight + at) * load(f32x16, x + at))
    best_factor, scale, gain = each(0.0), each(0.0), each(0.0)
    for i in range(-10, 10):
        more = each(0.0) if i == -10 else each(i) * each(0.1)
        factor = (each(0.0) - (each(n_codes) + more)) / extreme
        if i == 0:
            continue
        product, square = each(0.0), each(0.0)
        for at in range(0, ROW * n, ROW):
            found = nearest(factor * load(f32x16, x + at), low, high)
            product = product + load(f32x16, s + PRODUCT + at) * found
            square = square + load(f32x16, weight + at) * found * found
        # The first is taken as it is, the others where they gain more; nothing gains where all weights are 0.
        needed = each(-1.0) if i == -10 else gain * square
        beaten = select_less(each(0.0), square, product * product, needed)
        ratio = product / square
        best_factor = select_less(needed, beaten, factor, best_factor)
        scale = select_less(needed, beaten, ratio, scale)
        gain = select_less(needed, beaten, ratio * product, gain)
        if i == -10:
            best_factor = factor
    shift = select_less(is_zero, each(SMALLEST), each(0.0), each(n_codes))
    best_factor = select_less(is_zero, each(SMALLEST), each(0.0), best_factor)
    for at in range(0, ROW * n, ROW):
        store(codes + at, nearest(best_factor * load(f32x16, x + at), low, high) + shift)
    store(scale_to, select_less(is_zero, each(SMALLEST), each(0.0), scale))


@subroutine(inlined=True)
def _by_turns(s: int, x: int, weight: int, n: int, low: Vector, high: Vector, least_rest: Vector, codes: int) -> None:
    """Moves code after code where that gains, and leaves the scale in TRIAL. The square without the code that is moved
    must be above `least_rest`."""
    product, square = each(0.0), each(0.0)
    for at in range(0, ROW * n, ROW):
        w, c = load(f32x16, weight + at), load(f32x16, codes + at)
        product = product + w * load(f32x16, x + at) * c
        square = square + w * c * c
    for _ in range(ROUNDS):
        for at in range(0, ROW * n, ROW):
            v, w, old = load(f32x16, x + at), load(f32x16, weight + at), load(f32x16, codes + at)
            rest_product, rest_square = product - w * v * old, square - w * old * old
            new = nearest(v * rest_square / rest_product, low, high)
            new_product, new_square = rest_product + w * v * new, rest_square + w * new * new
            gain, needed = new_product * new_product * square, product * product * new_square
            gain = select_less(each(0.0), rest_product, gain, needed)
            gain = select_less(least_rest, rest_square, gain, needed)
            gain = select_less(each(0.0), new_square, gain, needed)
            gain = select_less(each(0.0), vabs(new - old), gain, needed)
            store(codes + at, select_less(needed, gain, new, old))
            product = select_less(needed, gain, new_product, product)
            square = select_less(needed, gain, new_square, square)
    store(s + TRIAL, select_less(each(0.0), square, product / square, each(0.0)))


@subroutine()
def fit_scale_by_turns(s: int, x: int, weight: int, n: int, n_codes: int, scale_to: int, codes: int) -> None:
    """As twins.searches.fit_scale_by_turns; `weight` is x²."""
    extreme = first_extreme(x, n)
    is_zero = vabs(extreme)
    factor = each(-n_codes) / select_less(is_zero, each(SMALLEST), each(1.0), extreme)
    low, high = each(-n_codes), each(n_codes - 1)
    for at in range(0, ROW * n, ROW):
        store(codes + at, nearest(factor * load(f32x16, x + at), low, high))
    _by_turns(s, x, weight, n, low, high, each(-3e38), codes)
    store(scale_to, select_less(is_zero, each(SMALLEST), each(0.0), load(f32x16, s + TRIAL)))
    for at in range(0, ROW * n, ROW):
        shifted = load(f32x16, codes + at) + each(n_codes)
        store(codes + at, select_less(is_zero, each(SMALLEST), each(0.0), shifted))


@subroutine()
def fit_positive(s: int, x: int, weight: int, n: int, n_max: int, scale_to: int, codes: int) -> None:
    """As twins.searches.fit_positive."""
    largest = each(0.0)
    for at in range(0, ROW * n, ROW):
        largest = vmax(load(f32x16, x + at), largest)
    is_zero = largest
    largest = select_less(is_zero, each(SMALLEST), each(1.0), largest)
    low, high = each(0.0), each(n_max)
    best_factor, least = each(0.0), each(0.0)
    for i in range(-5, 5):
        factor = high / largest if i == -5 else (each(i) * each(0.1) + high) / largest
        step = each(1.0) / factor
        error = each(0.0)
        for at in range(0, ROW * n, ROW):
            v = load(f32x16, x + at)
            lost = v - step * nearest(factor * v, low, high)
            error = error + load(f32x16, weight + at) * lost * lost
        if i == -5:
            best_factor, least = factor, error
        best_factor = select_less(error, least, factor, best_factor)
        least = vmin(error, least)
    for at in range(0, ROW * n, ROW):
        store(codes + at, nearest(best_factor * load(f32x16, x + at), low, high))
    _by_turns(s, x, weight, n, low, high, each(0.0), codes)
    store(scale_to, select_less(is_zero, each(SMALLEST), each(0.0), load(f32x16, s + TRIAL)))
    for at in range(0, ROW * n, ROW):
        store(codes + at, select_less(is_zero, each(SMALLEST), each(0.0), load(f32x16, codes + at)))


@subroutine(inlined=True)
def _fit_affine(
    s: int, x: int, weight: int, n: int, n_max: int, first: float, step: float, n_trials: int, by_magnitude: bool,
    scale_to: int, minimum_to: int, codes: int,
) -> None:  # fmt: skip
    largest, least_value, zero = load(f32x16, x), load(f32x16, x), each(0.0)
    sum_w, sum_x = each(0.0), each(0.0)
    for at in range(0, ROW * n, ROW):
        v, w = load(f32x16, x + at), load(f32x16, weight + at)
        largest, least_value = vmax(v, largest), vmin(v, least_value)
        sum_w, sum_x = sum_w + w, sum_x + w * v
    first_minimum = vmin(least_value, zero)
    minimum, high = first_minimum, each(n_max)
    scale, least = zero, zero
    best_factor, best_origin = zero, minimum
    for i in range(-1, n_trials):
        more = zero if i < 0 else each(first) + each(step) * each(i)
        factor = (more + high) / (largest - minimum)
        sum_l, sum_l2, sum_xl = zero, zero, zero
        for at in range(0, ROW * n, ROW):
            v, w = load(f32x16, x + at), load(f32x16, weight + at)
            found = nearest(factor * (v - minimum), zero, high)
            store(s + TRIAL + at, found)
            weighted = w * found
            sum_l = sum_l + weighted
            sum_l2 = sum_l2 + weighted * found
            sum_xl = sum_xl + weighted * v
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        new_scale = select_less(zero, new_minimum, sum_xl / sum_l2, new_scale)
        new_minimum = select_less(zero, new_minimum, zero, new_minimum)
        if i < 0:
            new_scale, new_minimum = each(1.0) / factor, minimum
        error = zero
        for at in range(0, ROW * n, ROW):
            lost = new_scale * load(f32x16, s + TRIAL + at) + new_minimum - load(f32x16, x + at)
            lost = vabs(lost) if by_magnitude else lost * lost
            error = error + load(f32x16, weight + at) * lost
        if i < 0:
            scale, least, best_factor = new_scale, error, factor
        else:
            error = select_less(zero, determinant, error, least)
            best_factor = select_less(error, least, factor, best_factor)
            best_origin = select_less(error, least, minimum, best_origin)
            scale = select_less(error, least, new_scale, scale)
            minimum = select_less(error, least, new_minimum, minimum)
            least = select_less(error, least, error, least)
    # Of a flat block nothing was found but its minimum.
    scale = select_less(first_minimum, largest, scale, zero)
    minimum = select_less(first_minimum, largest, minimum, first_minimum)
    best_factor = select_less(first_minimum, largest, best_factor, zero)
    best_origin = select_less(first_minimum, largest, best_origin, first_minimum)
    for at in range(0, ROW * n, ROW):
        store(codes + at, nearest(best_factor * (load(f32x16, x + at) - best_origin), zero, high))
    store(scale_to, scale)
    store(minimum_to, zero - minimum)


@subroutine()
def fit_affine(
    s: int, x: int, weight: int, n: int, n_max: int, first: float, step: float, n_trials: int,
    scale_to: int, minimum_to: int, codes: int,
) -> None:  # fmt: skip
    """As twins.searches.fit_scale_and_minimum, by squares. n <= 32."""
    _fit_affine(s, x, weight, n, n_max, first, step, n_trials, False, scale_to, minimum_to, codes)


@subroutine()
def fit_affine_by_magnitude(
    s: int, x: int, weight: int, n: int, n_max: int, first: float, step: float, n_trials: int,
    scale_to: int, minimum_to: int, codes: int,
) -> None:  # fmt: skip
    """As twins.searches.fit_scale_and_minimum, by magnitudes. n <= 32."""
    _fit_affine(s, x, weight, n, n_max, first, step, n_trials, True, scale_to, minimum_to, codes)
