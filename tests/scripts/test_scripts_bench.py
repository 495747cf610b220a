"""The benchmarks run, compare what they should compare, and end with JSON; how fast anything is, is not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunScript = Callable[..., str]
RunBench = Callable[..., dict[str, Any]]
NARROW = ("--threads", 1, "--rounds", 1, "--kv", "f16", "--tokens", 2)


@pytest.fixture(scope="module")
def compared(run_bench: RunBench, tiny_model: Path, peer: Path) -> tuple[dict[str, Any], list[list[str]]]:
    """What scripts/bench says of the tiny model beside a peer, and how it called the peer for its figures."""
    options = ("--prefill", 20, "--depths", 40, "--together", 2, "--llama-cpp", peer)
    (model,) = run_bench("bench", tiny_model, *NARROW, *options)["models"]
    calls = [json.loads(line) for line in (peer / "calls.jsonl").read_text().splitlines()]
    return model, [call for call in calls if "--no-warmup" not in call]


def test_bench_compares_each_figure_with_the_peer(compared: tuple[dict[str, Any], Any]) -> None:
    model, _ = compared
    figures = {figure["kind"]: figure for figure in model["figures"]}
    assert {kind: figure["n"] for kind, figure in figures.items()} == {"prefill": 20, "decode": 40, "together": 2}
    for kind, theirs in (("prefill", 50.0), ("decode", 50.0), ("together", 80.0)):
        assert figures[kind]["their_tokens_per_s"] == theirs
        assert figures[kind]["ratio"] == pytest.approx(figures[kind]["tokens_per_s"] / theirs)
    decode = figures["decode"]
    # Keys and values of 2 layers, 2 heads of 16 halves, of the 41 positions halfway through the 2 tokens.
    assert decode["bytes_per_token"] == model["weight_bytes"] + 2 * 2 * 2 * 16 * 2 * 41
    assert decode["share"] == pytest.approx(decode["tokens_per_s"] / decode["ceiling_tokens_per_s"])


def test_bench_measures_the_memory_of_both_sides(compared: tuple[dict[str, Any], Any]) -> None:
    model, _ = compared
    memory = model["memory"]
    # Code that only compiling needs is given back after loading: less may be resident than before.
    assert memory["peak_bytes"] >= memory["resident_bytes"] > 0 and memory["before_bytes"] > 0
    assert 0 < memory["their_peak_bytes"] < memory["before_bytes"]  # of a program that loads nothing


def test_both_sides_do_the_same_work(compared: tuple[Any, list[list[str]]], tiny_model: Path) -> None:
    _, calls = compared
    arguments = [dict(zip(call[1::2], call[2::2], strict=True)) for call in calls]
    assert [call[0] for call in calls] == ["llama-bench", "llama-bench", "llama-batched-bench"]
    assert all(given["-t"] == "1" and given["-m"] == str(tiny_model) for given in arguments)
    prefill, decode, together = arguments
    assert (prefill["-p"], prefill["-n"]) == ("20", "0")
    assert (decode["-p"], decode["-n"], decode["-d"]) == ("0", "2", "40")
    assert (together["-npl"], together["-npp"], together["-ntg"], together["-tb"]) == ("2", "128", "32", "1")


def test_an_empty_list_leaves_its_figures_out(run_bench: RunBench, tiny_model: Path) -> None:
    options = ("--prefill", "", "--depths", 0, "--together", "", "--no-memory")
    (model,) = run_bench("bench", tiny_model, *NARROW, *options)["models"]
    (figure,) = model["figures"]
    assert figure["kind"] == "decode" and "ratio" not in figure and "memory" not in model


def test_bench_table_makes_a_column_of_each_model(run_script: RunScript, tmp_path: Path) -> None:
    decode = {"kind": "decode", "n": 2048, "kv": "q8_0", "tokens_per_s": 98.7, "share": 0.91, "ratio": 2.44}
    memory = {"resident_bytes": 3e8, "their_peak_bytes": 2e8}
    one = {"models": [{"model": "a.gguf", "figures": [decode], "memory": memory}]}
    starts = {"run_s": 0.71, "start_cached": {"load_s": 0.2}, "start_empty_cache": {"load_s": 8.5}}
    for name, output in (("one", one), ("two", {"models": [{"model": "b.gguf", **starts}]})):
        (tmp_path / name).write_text("lines for people\n" + json.dumps(output) + "\n")
    lines = run_script("bench-table", tmp_path / "one", tmp_path / "two").splitlines()
    assert lines[0] == "|  | a | b |"
    assert "| decode after 2048 tokens, q8_0 KV cache | 99 (91%) · 2.4 x |  |" in lines
    assert "| memory · llama.cpp's | 300 MB · 200 MB |  |" in lines
    assert "| very first loading, compiling kernels |  | 8.5 s |" in lines


def test_bench_kernels_relates_batches_to_one_row(run_bench: RunBench) -> None:
    shape = ("--rows", 64, "--cols", 64, "--megabytes", 0.1, "--batches", "1,4,17")
    found = run_bench("bench-kernels", "--types", "F16", "--threads", 1, "--rounds", 1, *shape)
    (path,) = found["paths"]
    (kind,) = path["types"]
    assert kind["type"] == "F16" and kind["cost"]["1"] == 1.0
    # Operations are 2 a weight and row, so 4 rows at 4 times the cost of one have the GOPS of one.
    assert kind["gops"]["4"] == pytest.approx(4 * kind["gops"]["1"] / kind["cost"]["4"])
    assert kind["gb_per_s"] == pytest.approx(kind["gops"]["1"] / 2 * 2)  # bytes a weight


def test_bench_attention_takes_each_depth(run_bench: RunBench) -> None:
    shape = ("--heads", 2, "--heads-kv", 1, "--head-dim", 64, "--layers", 1, "--depths", "32,100")
    found = run_bench("bench-attention", "--kv", "f16", "--threads", 1, "--rounds", 1, *shape)
    assert [(figure["kv"], figure["depth"]) for figure in found["figures"]] == [("f16", 32), ("f16", 100)]
    assert all(figure["gb_per_s"] > 0 for figure in found["figures"])


@pytest.mark.integration
def test_bench_start_times_cold_and_warm(run_bench: RunBench, tiny_model: Path) -> None:
    (model,) = run_bench("bench-start", tiny_model, "--threads", 1, "--rounds", 1)["models"]
    assert model["start_cached"]["load_s"] < model["start_empty_cache"]["load_s"]
    assert 0 < model["run_s"] < 60
