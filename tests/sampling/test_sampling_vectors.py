"""The vectors of llama.cpp's tests/test-sampling.cpp: probabilities in, probabilities out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from localllm.sampling.candidates import Candidates
from localllm.sampling.dist import Dist
from localllm.sampling.dry import Dry
from localllm.sampling.min_p import MinP
from localllm.sampling.penalties import Penalties
from localllm.sampling.temperature import Temperature
from localllm.sampling.top_k import TopK
from localllm.sampling.top_n_sigma import TopNSigma
from localllm.sampling.top_p import TopP
from localllm.sampling.typical_p import TypicalP
from localllm.sampling.xtc import Xtc

RISING = [0.1, 0.2, 0.3, 0.4]
FALLING = [0.4, 0.3, 0.2, 0.1]
FIFTHS = [0.2] * 5
QUARTERS = [0.25] * 4


def log(probabilities: list[float]) -> np.ndarray:
    return np.log(np.array(probabilities, np.float32))


def filtered(probabilities: list[float], sampler: Any, normalise: bool = True) -> np.ndarray:
    candidates = Candidates(log(probabilities))
    if getattr(sampler, "is_active", True):
        sampler.apply(candidates)
    return candidates.probabilities() if normalise else np.exp(candidates.logits)


def check(got: np.ndarray, expected: list[float]) -> None:
    assert got.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, RISING), (0.0, [0, 0, 0, 1])])
def test_temperature(temperature: float, expected: list[float]) -> None:
    check(filtered(RISING, Temperature(temperature)), expected)
    check(filtered(RISING, Temperature(temperature, 0.0, 1.0)), expected)


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [1.0]), (3, [0.44444, 0.33333, 0.22222]), (4, FALLING), (0, RISING), (9, FALLING)]
)
def test_top_k(k: int, expected: list[float]) -> None:
    check(filtered(RISING, TopK(k)), expected)


@pytest.mark.parametrize(
    ("p", "expected"), [(0, [1.0]), (0.7, [0.571429, 0.428571]), (0.8, [0.44444, 0.33333, 0.22222]), (1.0, RISING)]
)
def test_top_p(p: float, expected: list[float]) -> None:
    check(filtered(RISING, TopP(p)), expected)


@pytest.mark.parametrize(
    ("p", "n"), [(0.0, 4), (0.24, 4), (0.26, 3), (0.49, 3), (0.51, 2), (0.74, 2), (0.76, 1), (1.0, 1), (1.05, 1)]
)
def test_min_p(p: float, n: int) -> None:
    kept = RISING[4 - n :]
    check(filtered(RISING, MinP(p)), [q / sum(kept) for q in kept])


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.09, [0.1]), (0.19, [0.2, 0.1]), (0.29, [0.3, 0.2, 0.1]), (0.39, FALLING)]
)
def test_xtc(threshold: float, expected: list[float]) -> None:
    check(filtered(FALLING, Xtc(0.99, threshold, 0, seed=0), normalise=False), expected)


@pytest.mark.parametrize(
    ("given", "expected"), [([0.97, 0.01, 0.01, 0.01], [0.97]), ([0.4, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2])]
)
def test_typical(given: list[float], expected: list[float]) -> None:
    check(filtered(given, TypicalP(0.5), normalise=False), expected)


@pytest.mark.parametrize(
    ("n", "expected"), [(1.0, [0, 0, 0.428571, 0.571429]), (0.0, RISING), (3.0, RISING), (-1.0, RISING)]
)
def test_top_n_sigma(n: float, expected: list[float]) -> None:
    check(filtered(RISING, TopNSigma(n)), expected)


@pytest.mark.parametrize(
    ("last", "repeat", "alpha", "expected"),
    [
        ([0], 50.0, 0.0, [0, 0.25, 0.25, 0.25, 0.25]),
        ([0, 1, 2], 50.0, 0.0, [0, 0, 0, 0.5, 0.5]),
        ([0, 1, 2, 0, 0], 50.0, 0.0, [0, 0, 0, 0.5, 0.5]),
        ([0], 1.0, 5.0, [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
        ([0, 1, 2], 1.0, 5.0, [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
        ([0, 1, 2, 0, 0], 1.0, 5.0, [0, 0.000023, 0.000023, 0.499977, 0.499977]),
    ],
)
def test_penalties(last: list[int], repeat: float, alpha: float, expected: list[float]) -> None:
    sampler = Penalties(len(last), repeat, alpha, alpha)
    for token in last:
        sampler.accept(token)
    logits = log(FIFTHS)
    sampler.apply(logits)
    check(Candidates(logits).probabilities(), expected)


@pytest.mark.parametrize(
    ("given", "last", "expected", "multiplier", "allowed", "breakers"),
    [
        (QUARTERS, [0, 1], QUARTERS, 1.0, 2, []),
        (QUARTERS, [0, 1, 2, 0, 1], [0.296923, 0.296923, 0.109232, 0.296923], 1.0, 2, []),
        (FIFTHS, [0, 1, 3, 4, 0, 1], FIFTHS, 1.0, 2, [3]),
        (FIFTHS, [0, 1, 2, 0, 1], [0.241818, 0.241818, 0.032727, 0.241818, 0.241818], 2.0, 2, []),
        (FIFTHS, [0, 1, 2, 3, 4, 0, 1], FIFTHS, 1.0, 4, []),
    ],
)
def test_dry(
    given: list[float], last: list[int], expected: list[float], multiplier: float, allowed: int, breakers: list[int]
) -> None:
    last_n = 4 if len(last) < 4 else len(last)
    sampler = Dry(multiplier, 1.1, allowed, last_n, {token: [[]] for token in breakers})
    for token in last:
        sampler.accept(token)
    logits = log(given)
    sampler.apply(logits)
    check(Candidates(logits).probabilities(), expected)


def test_dist_draws_once_even_from_a_single_candidate() -> None:
    single, control = Dist(4242), Dist(4242)
    single.select(Candidates(np.zeros(1, np.float32)))
    control.select(Candidates(np.zeros(2, np.float32)))
    flat = np.zeros(256, np.float32)
    for _ in range(4):
        assert single.select(Candidates(flat)) == control.select(Candidates(flat))


QUEUES = [
    ("k", 10000, 1.0, 1.0),
    ("k", 1, 1.0, 1.0),
    ("p", 10000, 1.0, 1.0),
    ("p", 10000, 0.0, 1.0),
    ("m", 10000, 1.0, 1.0),
    ("m", 10000, 1.0, 1e-12),
    ("k", 100, 1.0, 1.0),
    ("p", 10000, 0.0003, 1.0),
    ("p", 10000, 0.8, 1.0),
    ("m", 10000, 1.0, 9997.9 / 9999.0),
    ("m", 10000, 1.0, 0.1),
    ("mp", 100, 0.8, 9997.9 / 9999.0),
    *[(order, 100, 0.8, 0.1) for order in ("kp", "km", "pk", "pm", "mk", "mp")],
    *[(order, 100, 0.8, 0.1) for order in ("kpm", "kmp", "pkm", "pmk", "mkp", "mpk")],
]


@pytest.mark.parametrize(("order", "k", "p", "m"), QUEUES)
def test_queues_of_filters_over_linear_probabilities(order: str, k: int, p: float, m: float) -> None:
    """Token i has weight i, so that the sizes and the range of ids after each filter can be computed by hand."""
    n_vocab = 10000
    with np.errstate(divide="ignore"):
        candidates = Candidates(np.log(np.arange(n_vocab, dtype=np.float32)))
    lowest = 0
    for letter in order:
        size = len(candidates)
        sampler: Any = {"k": TopK(k), "p": TopP(p, 1), "m": MinP(m, 1)}[letter]
        if sampler.is_active:
            sampler.apply(candidates)
        if letter == "k":
            expected, lowest = min(size, k), max(lowest, n_vocab - k)
        elif letter == "p":
            expected, lowest = expected_nucleus(n_vocab, lowest, p)
        else:
            n_possible = n_vocab - 1  # token 0 has weight 0
            expected = min(max(math.ceil((1.0 - m) * n_vocab), 1), size, n_possible)
            lowest = min(max(math.floor(m * n_vocab), 1, n_vocab - size), n_vocab - 1)
        ids = [candidates.token(i) for i in range(len(candidates))]
        assert len(ids) == expected
        assert max(ids) == n_vocab - 1
        if candidates.is_sorted:
            assert ids == list(range(n_vocab - 1, n_vocab - 1 - expected, -1))
            assert letter == "m" or ids[-1] == lowest


def expected_nucleus(n_vocab: int, lowest: int, p: float) -> tuple[int, int]:
    total = sum(range(lowest, n_vocab))
    target, cumulative, size, token = math.ceil(np.float32(p) * np.float32(total)), 0, 0, n_vocab
    while size == 0 or cumulative < target:
        token, size = token - 1, size + 1
        cumulative += token
    return (size + 1, 0) if token == 1 else (size, token)
