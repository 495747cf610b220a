"""Searches for the scales that lose least; they know codes from 0 or around 0, but no layout.

x and weight are float32 [n, blocks], codes come as float32 [n, blocks]. What is tried, in which order, and when a trial
counts as better, is llama.cpp's (ggml-quants.c: make_qx_quants, make_q3_quants, make_qkx2_quants, make_qkx3_quants,
make_qp_quants), so that its files and ours are the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels_cpu.quantize.twins.arithmetic import SMALLEST, Booleans, Floats, clipped_codes, first_extreme, sum_in_order

ZERO, ONE, TENTH = np.float32(0), np.float32(1), np.float32(0.1)
ROUNDS = 5
"""How often each code is looked at again, given all others."""


class Affine(NamedTuple):
    """x is about scale * codes - minimum, with minimum >= 0."""

    scale: Floats
    minimum: Floats
    codes: Floats


class Trials(NamedTuple):
    """Ranges that are tried: of `first + step * i` more codes than there are, for i = 0 ... n_trials - 1."""

    first: float
    step: float
    n_trials: int


def fit_scale(x: Floats, weight: Floats, n: int) -> tuple[Floats, Floats]:
    """Scale and codes for x = scale * (code - n), with codes below 2n: the extreme value is tried at places around -n.

    For given codes l the error sum(weight (x - scale l)²) is least at scale = sum(w x l) / sum(w l²), where it falls
    short of sum(w x²) by sum(w x l)² / sum(w l²): a trial that gains more is better.
    """
    extreme = first_extreme(x)
    is_zero = np.abs(extreme) < SMALLEST
    extreme = np.where(is_zero, ONE, extreme)

    def sums(factor: Floats) -> tuple[Floats, Floats]:
        codes = clipped_codes(factor * x, -n, n - 1)
        return sum_in_order(weight * x * codes), sum_in_order(weight * codes * codes)

    best_factor = np.float32(-n) / extreme
    product, square = sums(best_factor)
    scale = np.where(square != 0, product / square, ZERO)
    gain = scale * product
    for i in (*range(-9, 0), *range(1, 10)):
        factor = -(np.float32(n) + TENTH * np.float32(i)) / extreme
        product, square = sums(factor)
        is_better = (square > 0) & (product * product > gain * square)
        scale = np.where(is_better, product / square, scale)
        gain = np.where(is_better, scale * product, gain)
        best_factor = np.where(is_better, factor, best_factor)
    codes = clipped_codes(best_factor * x, -n, n - 1) + np.float32(n)
    return np.where(is_zero, ZERO, scale), np.where(is_zero, ZERO, codes)


def fit_scale_by_turns(x: Floats, n: int) -> tuple[Floats, Floats]:
    """As fit_scale, with weights x²: from the extreme value at -n, code after code is moved where that gains."""
    weight = x * x
    extreme = first_extreme(x)
    is_zero = np.abs(extreme) < SMALLEST
    factor = np.float32(-n) / np.where(is_zero, ONE, extreme)
    codes = clipped_codes(factor * x, -n, n - 1)
    product, square = sum_in_order(weight * x * codes), sum_in_order(weight * codes * codes)
    for _ in range(ROUNDS):
        for i in range(len(x)):
            old = codes[i]
            rest_product = product - weight[i] * x[i] * old
            rest_square = square - weight[i] * old * old
            new = clipped_codes(x[i] * rest_square / rest_product, -n, n - 1)
            new_product = rest_product + weight[i] * x[i] * new
            new_square = rest_square + weight[i] * new * new
            is_better = _is_gain(new_product, new_square, product, square)
            is_better &= (rest_product > 0) & (new != old) & (new_square > 0)
            codes[i] = np.where(is_better, new, old)
            product, square = np.where(is_better, new_product, product), np.where(is_better, new_square, square)
    scale = np.where(square > 0, product / square, ZERO)
    return np.where(is_zero, ZERO, scale), np.where(is_zero, ZERO, codes + np.float32(n))


def _is_gain(new_product: Floats, new_square: Floats, product: Floats, square: Floats) -> Booleans:
    return new_product * new_product * square > product * product * new_square


def fit_scale_and_minimum(x: Floats, weight: Floats, n_max: int, trials: Trials, by_magnitude: bool = False) -> Affine:
    """Codes of 0 ... n_max with a scale and a minimum that is not above 0.

    Codes are taken from a range between the least value (as far as known: a better minimum is used at once) and the
    largest; for them scale and minimum are those of weighted least squares. The best trial loses the least of
    sum(weight d²), or of sum(weight |d|) where `by_magnitude`.
    """
    largest = x.max(axis=0)
    minimum = np.fmin(x.min(axis=0), ZERO)
    sum_w, sum_x = sum_in_order(weight), sum_in_order(weight * x)
    is_flat = largest <= minimum

    def codes_at(factor: Floats, origin: Floats) -> Floats:
        return clipped_codes(factor * (x - origin), 0, n_max)

    def error(scale: Floats, minimum: Floats, codes: Floats) -> Floats:
        lost = scale * codes + minimum - x
        return sum_in_order(weight * (np.abs(lost) if by_magnitude else lost * lost))

    factor = np.where(is_flat, ZERO, np.float32(n_max) / (largest - minimum))
    scale = np.where(is_flat, ZERO, ONE / factor)
    best_codes = codes_at(factor, minimum)
    least = np.where(is_flat, np.float32(-1), error(scale, minimum, best_codes))
    for i in range(trials.n_trials):
        more = np.float32(trials.first) + np.float32(trials.step) * np.float32(i)
        codes = codes_at((more + np.float32(n_max)) / (largest - minimum), minimum)
        sum_l, sum_l2 = sum_in_order(weight * codes), sum_in_order(weight * codes * codes)
        sum_xl = sum_in_order(weight * codes * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        new_scale = np.where(new_minimum > 0, sum_xl / sum_l2, new_scale)
        new_minimum = np.where(new_minimum > 0, ZERO, new_minimum)
        new_error = error(new_scale, new_minimum, codes)
        is_better = (determinant > 0) & (new_error < least)
        scale, minimum = np.where(is_better, new_scale, scale), np.where(is_better, new_minimum, minimum)
        least, best_codes = np.where(is_better, new_error, least), np.where(is_better, codes, best_codes)
    return Affine(scale, -minimum, best_codes)


def fit_positive(x: Floats, weight: Floats, n_max: int) -> tuple[Floats, Floats]:
    """Scale and codes of 0 ... n_max for what is not negative: first the best of some ranges, then code by code."""
    largest = np.fmax(x.max(axis=0), ZERO)
    is_zero = largest < SMALLEST
    largest = np.where(is_zero, ONE, largest)

    def error(factor: Floats) -> Floats:
        lost = x - ONE / factor * clipped_codes(factor * x, 0, n_max)
        return sum_in_order(weight * lost * lost)

    best_factor = np.float32(n_max) / largest
    least = error(best_factor)
    for i in (*range(-4, 0), *range(1, 5)):
        factor = (TENTH * np.float32(i) + np.float32(n_max)) / largest
        new_error = error(factor)
        best_factor = np.where(new_error < least, factor, best_factor)
        least = np.fmin(new_error, least)
    codes = clipped_codes(best_factor * x, 0, n_max)
    product, square = sum_in_order(weight * x * codes), sum_in_order(weight * codes * codes)
    for _ in range(ROUNDS):
        for i in range(len(x)):
            old = codes[i]
            rest_product = product - weight[i] * x[i] * old
            rest_square = square - weight[i] * old * old
            new = clipped_codes(x[i] * rest_square / rest_product, 0, n_max)
            new_product = rest_product + weight[i] * x[i] * new
            new_square = rest_square + weight[i] * new * new
            is_better = _is_gain(new_product, new_square, product, square)
            is_better &= (rest_product > 0) & (rest_square > 0) & (new != old)
            codes[i] = np.where(is_better, new, old)
            product, square = np.where(is_better, new_product, product), np.where(is_better, new_square, square)
    scale = np.where(square > 0, product / square, ZERO)
    return np.where(is_zero, ZERO, scale), np.where(is_zero, ZERO, codes)
