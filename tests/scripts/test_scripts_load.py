"""What figures of requests under load are made of, and that the script runs; how fast anything is, is not tested."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from measuring.load import mixed, shared, soak, stall
from measuring.load.chats import Answer, Chat, ask
from measuring.load.exact import Exact
from measuring.load.lookup import Lookup, UnequalError
from measuring.load.rounds import Must, medians, percentile, ratio, take
from measuring.load.soak import Held
from measuring.load.texts import Texts

CHAT = Chat(({"role": "user", "content": "hi"},), n_output=2, seed=7)


def answer_of(sent_s: float, *piece_s: float) -> Answer:
    return Answer(sent_s, piece_s[-1], piece_s=list(piece_s), n_prompt=10, n_output=len(piece_s))


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], **fields}).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields}])


def asked(*blocks: bytes, status: int = 200) -> tuple[Answer, dict[str, Any]]:
    """The answer that `ask` makes of a server's blocks, and the body that the server got."""
    bodies: list[dict[str, Any]] = []

    async def stream() -> Any:
        for block in blocks:
            yield block

    def serve(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(status, content=stream())

    async def run() -> Answer:
        async with httpx.AsyncClient(transport=httpx.MockTransport(serve), base_url="http://127.0.0.1") as http:
            return await ask(http, "m", CHAT)

    return asyncio.run(run()), bodies[0]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.75, 3.0), (0.76, 4.0), (0.99, 4.0), (0.0, 1.0)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_of_nothing_there_is_no_percentile() -> None:
    assert math.isnan(percentile([], 0.5)) and math.isnan(percentile([1.0, math.nan], 0.5))


def test_tokens_without_text_count_as_tokens() -> None:
    answer, _ = asked(event(usage={"prompt_tokens": 9, "completion_tokens": 2}))
    assert answer.n_output == 2 and math.isnan(answer.ttft_s) and answer.end_s > answer.sent_s


def test_bounds_are_met_from_their_side() -> None:
    assert Must("speed", 2.0, 2.0, is_floor=True).holds and not Must("speed", 1.9, 2.0, is_floor=True).holds
    assert Must("wait", 1.3, 1.3).holds and not Must("wait", 1.31, 1.3).holds
    assert not Must("nothing measured", math.nan, 1.0).holds
    assert Must("wait", 2.0, 1.0).line() == "MISS wait: 2 (must be <= 1)"


def test_a_ratio_is_of_the_same_round() -> None:
    found = {"ours": [{"x": 10.0}, {"x": 40.0}, {"x": 12.0}], "theirs": [{"x": 5.0}, {"x": 40.0}, {"x": 3.0}]}
    assert ratio(found, "x") == 2.0
    assert ratio({"ours": found["ours"]}, "x") is None
    assert medians(found["ours"]) == {"x": 12.0}


def test_sides_take_turns() -> None:
    calls: list[tuple[str, int]] = []

    async def run(name: str, i: int) -> dict[str, float]:
        calls.append((name, i))
        return {"x": float(len(calls))}

    found = asyncio.run(take(["ours", "theirs"], 2, run))
    assert calls == [("ours", 0), ("theirs", 0), ("theirs", 1), ("ours", 1)]
    assert found == {"ours": [{"x": 1.0}, {"x": 4.0}], "theirs": [{"x": 2.0}, {"x": 3.0}]}


def test_texts_have_the_length_asked_for_and_come_again_from_their_seed() -> None:
    def count(text: str) -> int:
        return len(text)  # a vocabulary of single characters

    one, other = Texts(count, "a"), Texts(count, "b")
    lengths = [len(one.of(n)) for n in (50, 400, 2000)]
    assert all(abs(found - n) <= 0.05 * n for found, n in zip(lengths, (50, 400, 2000), strict=True))
    assert Texts(count, "a").of(50) == Texts(count, "a").of(50) != other.of(50)
    assert one.of(50) != one.of(50)


def test_pieces_of_text_are_noted_wherever_blocks_are_cut() -> None:
    told = event(prompt_progress={"total": 9, "cache": 4, "processed": 9, "time_ms": 12.5})
    usage = event(usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}})
    pieces = delta(role="assistant", content=None), delta(content="a"), delta(content="b")
    whole = b"".join((told, *pieces, usage, b"data: [DONE]\n\n"))
    for cut in (0, 10, len(whole) // 2, len(whole) - 3):
        answer, body = asked(whole[:cut], whole[cut:])
        assert (answer.text, answer.n_prompt, answer.n_cached, answer.n_output) == ("ab", 9, 4, 2)
        assert len(answer.piece_s) == 2 and answer.ttft_s > 0 and answer.prefill_ms == 12.5
    assert body["model"] == "m" and body["seed"] == 7 and body["max_tokens"] == 2
    assert body["ignore_eos"] is True and body["temperature"] == 0.8


@pytest.mark.parametrize(
    ("blocks", "status", "expected"),
    [
        ([b"too busy"], 503, "503: too busy"),
        ([b'data: {"error": {"message": "broken"}}\n\n'], 200, "broken"),
        ([delta(content="a"), event(usage={"prompt_tokens": 9, "completion_tokens": 3})], 200, "of 2 tokens, got 3"),
    ],
)
def test_an_answer_that_is_none_ends_the_measurement(blocks: list[bytes], status: int, expected: str) -> None:
    with pytest.raises(RuntimeError, match=expected):
        asked(*blocks, status=status)


def test_mixed_counts_all_tokens_until_the_last_has_come() -> None:
    found = mixed.figures([answer_of(1.0, 1.5, 1.6, 1.8), answer_of(1.0, 2.0, 3.0)], start_s=1.0)
    assert found["tokens_per_s"] == 5 / 2 and found["prompt_tokens"] == 20
    assert found["ttft_p50_ms"] == pytest.approx(500) and found["ttft_p99_ms"] == pytest.approx(1000)
    assert found["tbt_p50_ms"] == pytest.approx(200) and found["tbt_p99_ms"] == pytest.approx(1000)


def test_a_stall_is_what_happens_while_the_prompt_is_evaluated() -> None:
    running = answer_of(0.0, 1.0, 1.1, 1.2, 1.5, 2.0, 2.7)  # the last gap is the prompt's too
    found = stall.figures(running, answer_of(1.2, 2.5), undisturbed=answer_of(5.0, 5.1, 5.2, 5.3, 6.3))
    assert found["undisturbed_ms"] == pytest.approx(100) and found["gaps"] == 3
    assert found["worst_ms"] == pytest.approx(700) and found["stall"] == pytest.approx(7)
    assert found["prompt_ttft_s"] == pytest.approx(1.3)


def test_an_answer_that_stops_for_the_prompt_has_stalled() -> None:
    found = stall.figures(answer_of(0.0, 1.0, 1.1, 9.0), answer_of(1.2, 5.0), answer_of(0.0, 0.1, 0.2))
    assert found["gaps"] == 1 and found["stall"] == pytest.approx(79)


def test_what_is_shared_is_compared_with_what_is_not() -> None:
    alone, first = [answer_of(0.0, 0.1)] * 3, [answer_of(0.0, 2.0), answer_of(0.0, 0.3), answer_of(0.0, 0.3)]
    found = shared.figures(alone, first, 150.0, [answer_of(0.0, 0.1), answer_of(0.0, 0.18), answer_of(0.0, 0.2)])
    assert found["shared"] == pytest.approx(1.2) and found["first"] == pytest.approx(2)
    assert found["shared_to_alone"] == pytest.approx(1.8)
    assert found["cold_ms"] == pytest.approx(2000) and found["slowest_ms"] == pytest.approx(200)


class FakeDaemon:
    """Answers chats with what it is told; a list of their options is kept."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers, self.asked = list(answers), []

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body["options"])
        return self._answers[-1 if "draft_num_predict" in body["options"] else 0]


GUESSED = {"message": "a", "eval_count": 400, "eval_duration": 10**9, "draft_count": 100, "draft_accepted_count": 80}
PLAIN = {"message": "a", "eval_count": 400, "eval_duration": 4 * 10**9}


def test_guesses_are_compared_with_none_and_who_goes_first_takes_turns() -> None:
    for i in (0, 1):
        daemon: Any = FakeDaemon(GUESSED, PLAIN)
        found = Lookup().run(daemon, "m", i)
        assert found["lookup"] == 4 and found["plain_tokens_per_s"] == 100 and found["accepted"] == 0.8
        assert [options.get("draft_num_predict") for options in daemon.asked] == ([0, None] if i else [None, 0])
        assert all(options["temperature"] == 0 for options in daemon.asked)


@pytest.mark.parametrize("change", [{"message": "b"}, {"eval_count": 399}])
def test_guesses_that_change_an_answer_end_the_measurement(change: dict[str, Any]) -> None:
    daemon: Any = FakeDaemon(GUESSED, PLAIN | change)
    with pytest.raises(UnequalError):
        Lookup().run(daemon, "m", 0)


def test_requests_of_all_kinds_are_the_same_from_the_same_seed() -> None:
    requests, again = (Exact(60).requests("m", Texts(len, "a")) for _ in range(2))
    assert requests == again
    assert {request.path for request in requests} == {"/api/chat", "/api/generate"}
    options = [request.body["options"] for request in requests]
    assert sum("format" in request.body for request in requests) >= 5
    assert sum(each.get("temperature") == 0 for each in options) >= 10
    assert sum(each["num_predict"] >= 200 for each in options) == 15
    assert len({each["seed"] for each in options}) == 60


def held(**changes: int) -> Held:
    nothing = {"pages_used": 0, "running": 0, "processes": 2, "files": 20, "daemon_bytes": 100, "runner_bytes": 1000}
    return Held(**{**nothing, **changes})


def test_a_soak_compares_with_the_first_look() -> None:
    ends = {"done": 5, "queue": 1, "decode": 2, "status 503": 1, "error": 1}
    found = soak.figures([held(), held(pages_used=3), held(files=22, processes=3, daemon_bytes=110)], ends)
    assert (found["requests"], found["canceled"], found["failed"]) == (10, 3, 2)
    assert (found["pages_used"], found["more_files"], found["more_processes"]) == (3, 2, 1)
    assert found["daemon_growth"] == pytest.approx(1.1) and found["runner_growth"] == 1


@pytest.mark.integration
def test_bench_load_measures_a_daemon(run_bench: Callable[..., dict[str, Any]], tiny_model: Path) -> None:
    few = ("--rounds", 1, "--threads", 1, "--clients", 2, "--chats", 3)
    found = run_bench("bench-load", tiny_model, "--scenarios", "mixed,shared", *few)
    mixed_found, shared_found = found["scenarios"]
    assert mixed_found["ours"]["tokens_per_s"] > 0 and 3 * 64 <= mixed_found["ours"]["output_tokens"] <= 3 * 256
    assert shared_found["ours"]["cached_tokens"] > 1900 and shared_found["musts"]


@pytest.mark.integration
def test_bench_load_holds_answers_against_each_other(
    run_bench: Callable[..., dict[str, Any]], tiny_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model.read_bytes() + bytes(32))
    scenarios = ("--scenarios", "restart,lookup,exact,soak", "--rounds", 1, "--threads", 1, "--requests", 60)
    found = {each["scenario"]: each for each in run_bench("bench-load", tiny_model, other, *scenarios)["scenarios"]}
    assert found["restart"]["ours"]["cached_tokens"] > 1900
    assert found["lookup"]["ours"]["tokens"] == 400  # and they were the same
    assert found["exact"]["ours"]["different"] == found["exact"]["ours"]["failed"] == 0
    held = found["soak"]["ours"]
    assert held["requests"] == 60 and 0 < held["canceled"] < 40
    assert held["failed"] == held["pages_used"] == held["running"] == held["more_files"] == 0
