"""How figures of two sides are taken and compared, and what a token is said to read."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from localllm.gguf import open_gguf
from measuring import process
from measuring.daemon import Daemon
from measuring.figures import Figure, Samples, take_rounds
from measuring.traffic import Traffic

DECODE = Figure("decode", 0, "f16")


class Recorder:
    """A side that notes in a common list when it was asked."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def measure(self, figure: Figure) -> float:
        self._calls.append(self._name)
        return float(len(self._calls))


def test_a_ratio_is_the_median_of_each_rounds_ratio() -> None:
    samples = Samples(ours=[10.0, 40.0, 12.0], theirs=[5.0, 40.0, 3.0], bandwidth=[100.0, 200.0, 100.0])
    assert samples.ratio() == 2.0  # medians would give 12 / 5
    assert samples.share(bytes_per_token=5.0) == 0.6  # of 0.5, 1.0 and 0.6


def test_without_a_peer_there_is_no_ratio() -> None:
    assert Samples(ours=[1.0], bandwidth=[1.0]).ratio() is None


def test_who_goes_first_takes_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    sides = Recorder("ours", calls), Recorder("theirs", calls)
    reports: list[int] = []
    samples = take_rounds([DECODE], *sides, lambda: 1.0, 2, reports.append)
    assert calls == ["ours", "ours", "theirs", "theirs", "ours"]
    assert samples[DECODE] == Samples(ours=[2.0, 5.0], theirs=[3.0, 4.0], bandwidth=[1.0, 1.0])
    assert reports == [1, 2]


def test_a_window_bounds_what_a_layer_reads(parity_models: ModuleType, tmp_path: Path) -> None:
    with open_gguf(parity_models.make("gemma3-dense", tmp_path / "gemma3.gguf")) as gguf:
        traffic, window = Traffic(gguf), gguf.get("gemma3.attention.sliding_window", int, 0)
        per_position = traffic.kv_bytes("f16", 1)
        within, beyond = traffic.kv_bytes("f16", window), traffic.kv_bytes("f16", window + 1)
    assert within == window * per_position
    assert 0 < beyond - within < per_position  # the layers without a window


def test_a_quantised_cache_reads_its_scales_too(tiny_model: Path) -> None:
    with open_gguf(tiny_model) as gguf:
        traffic = Traffic(gguf)
    assert traffic.kv_bytes("q8_0", 64) / traffic.kv_bytes("f16", 64) == 34 / 64


def test_the_peak_of_a_small_process_is_not_that_of_its_parent() -> None:
    block = bytearray(100 << 20)  # this process is large
    block[::4096] = b"1" * len(block[::4096])
    small = process.run([sys.executable, "-S", "-c", "print('done')"])
    large = process.run([sys.executable, "-S", "-c", "x = b'1' * (60 << 20)"])
    assert small.output == "done" and small.peak_bytes < 40 << 20
    assert large.output == "" and large.peak_bytes > 60 << 20


def test_a_command_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="exit status"):
        process.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_daemon_that_does_not_start_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("LOCALLLM_TLS_CERT", str(tmp_path / "missing"))
    with pytest.raises(SystemExit, match="the daemon ended at its start"):
        Daemon("m.gguf", tmp_path, 1)
