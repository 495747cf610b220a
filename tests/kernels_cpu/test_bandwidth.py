"""The meter's kernel reads all that it is given, however many threads and streams read it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels_cpu.bandwidth import N_STREAMS, BandwidthMeter, read_memory


@pytest.mark.parametrize("n_streams", N_STREAMS)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_every_element_is_read_once(run_kernel: Callable[..., None], n_threads: int, n_streams: int) -> None:
    memory = np.arange(64 * 24, dtype=np.float32)  # 24 units: whole runs for all of these
    sums = np.zeros(16 * n_threads, np.float32)
    run_kernel(read_memory, memory, memory.nbytes, sums, n_streams, n_threads=n_threads)
    assert sums.sum() == memory.sum()


def test_the_meter_gives_bytes_a_second() -> None:
    meter = BandwidthMeter(1, n_bytes=2**20)
    try:
        assert 1e7 < meter.measure() < 1e13
    finally:
        meter.close()
