"""The random matrices of the kernel benchmarks hold numbers as models have them, whatever their type."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_cpu.quants.table import QUANT_TYPES, QuantType
from kernels_cpu.twin import dequantise
from measuring.synthetic import random_weight


@pytest.mark.parametrize("quant", QUANT_TYPES.values(), ids=lambda quant: quant.format.name)
def test_random_weights_are_plausible_numbers(quant: QuantType) -> None:
    weight = random_weight("w", quant, 16, 512, np.random.default_rng(0))
    values = dequantise(weight)
    assert values.shape == (16, 512)
    largest = np.abs(values).max(axis=1)
    assert np.isfinite(values).all() and (largest > 1e-3).all() and (largest < 100).all()
    assert (np.std(values, axis=1) > 0).all()
