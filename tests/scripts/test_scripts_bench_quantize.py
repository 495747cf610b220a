"""scripts/bench-quantize takes both sides alike and compares times; how fast anything is, is not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_both_sides_get_the_same_work(run_bench: Callable[..., dict[str, Any]], tiny_model: Path, peer: Path) -> None:
    options = ("--type", "Q8_0", "--threads", 1, "--rounds", 2, "--llama-quantize", peer / "llama-quantize")
    found = run_bench("bench-quantize", tiny_model, *options)
    calls = [json.loads(line) for line in (peer / "calls.jsonl").read_text().splitlines()]
    assert len(calls) == 2
    for name, source, made, kind, n_threads in calls:
        assert (name, source, kind, n_threads) == ("llama-quantize", str(tiny_model), "Q8_0", "1")
        assert Path(made).parent.parent == tiny_model.parent and not Path(made).parent.exists()
    assert found["source_bytes"] == tiny_model.stat().st_size
    assert found["seconds"] > 0 and found["peak_bytes"] > found["their_peak_bytes"] > 0
    assert found["ratio"] == pytest.approx(found["seconds"] / found["their_seconds"], rel=0.5)


def test_without_a_peer_there_is_no_ratio(run_bench: Callable[..., dict[str, Any]], tiny_model: Path) -> None:
    found = run_bench("bench-quantize", tiny_model, "--type", "F32", "--threads", 1, "--rounds", 1)
    assert found["type"] == "F32" and "ratio" not in found
