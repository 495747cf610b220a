"""A batch on a real engine: paused for people's requests, again and again, it says what it would say alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration
Model = Callable[[str], str]
PROMPT = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals. " * 3


def body(seed: int) -> dict[str, Any]:
    options = {"ignore_eos": True, "top_k": 0}
    return {
        "model": "random",
        "prompt": f"{seed} {PROMPT}",
        "seed": seed,
        "temperature": 1.0,
        "max_tokens": 300,
        "logprobs": 1,
        "options": options,
    }


def said(completion: dict[str, Any]) -> Any:
    """The text, and what cannot agree by chance: the log-probability of every token."""
    (choice,) = completion["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_a_batch_says_the_same_when_paused(server: Any, model: Model) -> None:
    model("random")
    alone = {str(seed): said(server.post("/v1/completions", body(seed))) for seed in range(4)}
    assert len({text for text, _ in alone.values()}) == 4
    server.unload_all()

    line = {"method": "POST", "url": "/v1/completions"}
    lines = [json.dumps({"custom_id": str(seed), **line, "body": body(seed)}) for seed in range(4)]
    upload = {"file": ("in.jsonl", "\n".join(lines).encode())}
    file = server.http.post("/v1/files", files=upload, data={"purpose": "batch"}).json()
    batch = server.post("/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/completions"})
    n_between = 0
    while batch["status"] != "completed":
        assert batch["status"] in ("validating", "in_progress", "finalizing"), batch
        # Each takes the whole KV cache of the model's one place.
        long = "another story, of quite another length, " * (20 + n_between % 5)
        server.post("/api/generate", {"model": "random", "prompt": long, "raw": True, "options": {"num_predict": 3}})
        n_between += 1
        time.sleep(0.02)
        batch = server.http.get(f"/v1/batches/{batch['id']}").json()
    assert n_between > 2 and batch["request_counts"]["completed"] == 4
    output = server.http.get(f"/v1/files/{batch['output_file_id']}/content").text
    answers = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, output.splitlines())}
    assert {custom_id: said(answer) for custom_id, answer in answers.items()} == alone
