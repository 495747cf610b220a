"""/v1/batches: with the official client, over restarts and crashes, cancelled, expired, and behind everybody else."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from localllm.server import chat
from localllm.server.openai_batches import validation, worker
from localllm.server.openai_batches.folder import new_id

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Add = Callable[..., None]
Start = Callable[..., Any]
CHAT = "/v1/chat/completions"


def line(custom_id: str, prompt: str, **body: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}]} | body
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def lines_of(content: bytes) -> dict[str, dict[str, Any]]:
    found = [json.loads(each) for each in content.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


def texts_of(content: bytes) -> dict[str, str]:
    lines = lines_of(content)
    return {key: each["response"]["body"]["choices"][0]["message"]["content"] for key, each in lines.items()}


def wait_until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.03)


def test_the_official_client(start_live: Start, add_model: Add) -> None:
    add_model()
    with openai.OpenAI(base_url=f"{start_live().url}/v1", api_key="x") as client:
        content = jsonl(
            line("a", "one"), line("b", "two x"), line("c", "no", model="none"), line("d", "s", stream=True)
        )
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"for": "a test"}
        )
        assert batch.status == "validating" and batch.expires_at == (batch.created_at + 24 * 3600)
        client.files.delete(file.id)  # the batch has its own
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed")
        batch = client.batches.retrieve(batch.id)
        assert batch.request_counts and batch.metadata == {"for": "a test"} and batch.errors is None
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (4, 2, 2)
        assert batch.in_progress_at and batch.finalizing_at and batch.completed_at and not batch.cancelled_at
        assert batch.output_file_id and batch.error_file_id
        output = client.files.content(batch.output_file_id).content
        assert texts_of(output) == {"a": "one ", "b": "two x "}
        first = lines_of(output)["a"]
        assert first["error"] is None and first["response"]["status_code"] == 200 and first["response"]["request_id"]
        errors = lines_of(client.files.content(batch.error_file_id).content)
        assert errors["c"]["response"]["status_code"] == 404
        assert "not found" in errors["c"]["response"]["body"]["error"]["message"]
        assert errors["d"]["response"]["status_code"] == 400
        assert [each.id for each in client.batches.list()] == [batch.id]
        assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'completed'"):
            client.batches.cancel(batch.id)
        with pytest.raises(openai.NotFoundError, match="No batch found"):
            client.batches.retrieve("batch_" + "0" * 24)


async def new_batch(r: Any, *lines: Any, **fields: Any) -> str:
    content = lines[0] if lines and isinstance(lines[0], bytes) else jsonl(*lines)
    file = await r.http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    body = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h", **fields}
    response = await r.http.post("/v1/batches", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


async def ended(r: Any, batch_id: str, timeout_s: float = 20.0) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while True:
        batch: dict[str, Any] = (await r.http.get(f"/v1/batches/{batch_id}")).json()
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            return batch
        assert time.monotonic() < deadline, batch
        await asyncio.sleep(0.02)


async def content_of(r: Any, file_id: str | None) -> bytes:
    return (await r.http.get(f"/v1/files/{file_id}/content")).content if file_id else b""


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (b"{", "invalid_json_line", 1),
        (b"[" * 5000, "invalid_json_line", 1),
        (b"\xff\xfe", "invalid_json_line", 1),
        (jsonl([1]), "invalid_json_line", 1),
        (jsonl(line("a", "x"), line("a", "y")), "duplicate_custom_id", 2),
        (jsonl(line("", "x")), "missing_required_parameter", 1),
        (jsonl(line("a", "x") | {"url": "/v1/embeddings"}), "invalid_url", 1),
        (jsonl(line("a", "x") | {"url": "/api/delete"}), "invalid_url", 1),
        (jsonl(line("a", "x") | {"method": "DELETE"}), "invalid_method", 1),
        (b"\n" + jsonl(line("a", "x") | {"body": "x"}), "missing_required_parameter", 2),
    ],
)
async def test_an_input_that_is_wrong(running: Running, content: bytes, code: str, number: int | None) -> None:
    async with running() as r:
        batch = await ended(r, await new_batch(r, content))
        assert batch["status"] == "failed" and batch["failed_at"]
        problem = batch["errors"]["data"][0]
        assert (problem["code"], problem["line"]) == (code, number)


async def test_a_batch_that_is_refused(running: Running) -> None:
    async with running() as r:
        file = await r.http.post("/v1/files", files={"file": ("x", b"x")}, data={"purpose": "batch"})
        good = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
        for bad, status in (
            ({"input_file_id": "file-x"}, 404),
            ({"endpoint": "/api/chat"}, 400),
            ({"completion_window": "soon"}, 400),
            ({"completion_window": "-1h"}, 400),
            ({"completion_window": "10000h"}, 400),
            ({"metadata": {"a": 1}}, 400),
            ({"metadata": {"a": "x" * 513}}, 400),
            ({"metadata": {str(n): "" for n in range(17)}}, 400),
            ({"metadata": "x"}, 400),
        ):
            response = await r.http.post("/v1/batches", json=good | bad)
            assert response.status_code == status and response.json()["error"]["message"], bad
        assert (await r.http.get("/v1/batches")).json()["data"] == []


@pytest.mark.parametrize(
    ("endpoint", "body", "part"),
    [
        ("/v1/completions", {"prompt": "one two"}, "one two "),
        ("/v1/responses", {"input": "one two"}, "one two "),
        ("/v1/embeddings", {"input": ["one", "two"]}, '"embedding"'),
    ],
)
async def test_every_endpoint(running: Running, add_model: Add, endpoint: str, body: dict[str, Any], part: str) -> None:
    add_model()
    async with running() as r:
        one = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "m", **body}}
        batch = await ended(r, await new_batch(r, one, endpoint=endpoint))
        assert batch["request_counts"]["completed"] == 1, await content_of(r, batch["error_file_id"])
        response = lines_of(await content_of(r, batch["output_file_id"]))["a"]["response"]
        alone = await r.http.post(endpoint, json=one["body"])
        assert response["status_code"] == 200 and part in json.dumps(response["body"])
        assert response["body"].keys() == alone.json().keys()


async def test_cancel(running: Running, add_model: Add) -> None:
    add_model()
    async with running(num_parallel=1) as r:
        batch_id = await new_batch(r, line("a", "one"), line("b", "!forever"), line("c", "two"))
        while (await r.http.get(f"/v1/batches/{batch_id}")).json()["request_counts"]["completed"] == 0:
            await asyncio.sleep(0.02)
        cancelled = (await r.http.post(f"/v1/batches/{batch_id}/cancel")).json()
        assert cancelled["status"] == "cancelling" and cancelled["cancelling_at"]
        batch = await ended(r, batch_id)
        assert batch["status"] == "cancelled" and batch["cancelled_at"]
        assert texts_of(await content_of(r, batch["output_file_id"])) == {"a": "one "}
        assert batch["error_file_id"] is None
        # The next one runs.
        assert (await ended(r, await new_batch(r, line("d", "x"))))["status"] == "completed"


async def test_an_application_that_fails_ends_one_request(
    running: Running, add_model: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model()
    ask = chat.ask

    async def failing(daemon: Any, body: Any, **fields: Any) -> Any:
        if body["messages"][0]["content"] == "bug":
            raise ZeroDivisionError
        return await ask(daemon, body, **fields)

    monkeypatch.setattr(chat, "ask", failing)
    async with running() as r:
        batch = await ended(r, await new_batch(r, line("a", "bug"), line("b", "two"), line("c", "x", Stream=True)))
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
        failed = lines_of(await content_of(r, batch["error_file_id"]))
        assert {key: each["response"]["status_code"] for key, each in failed.items()} == {"a": 500, "c": 400}


async def test_a_record_of_another_kind_is_none(running: Running, add_model: Add, tmp_path: Path) -> None:
    add_model()
    async with running(state_dir=tmp_path) as r:
        for record in ("[]", '{"strange": 1}', "[" * 100_000):
            batch_id, file_id = new_id("batch_"), new_id("file-")
            write_text(tmp_path / "openai" / "batches" / batch_id / "batch.json", record)
            write_text(tmp_path / "openai" / "files" / f"{file_id}.json", record)
            assert (await r.http.get(f"/v1/batches/{batch_id}")).status_code == 404
            assert (await r.http.get(f"/v1/files/{file_id}")).status_code == 404
        assert (await r.http.get("/v1/batches")).json()["data"] == []
        assert (await r.http.get("/v1/files")).json()["data"] == []
        assert (await ended(r, await new_batch(r, line("d", "x"))))["status"] == "completed"


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_input_of_too_many_requests_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MAX_REQUESTS", 3)
    write_text(tmp_path / "in", jsonl(*(line(str(n), "x") for n in range(9))).decode() + "{")
    n_read, problems = validation.validate(tmp_path / "in", CHAT)
    assert n_read == 4 and [problem["code"] for problem in problems] == ["too_many_tasks"]


async def test_expiry(running: Running, add_model: Add) -> None:
    add_model()
    async with running(num_parallel=1) as r:
        lines = (line("a", "one"), line("b", "!forever"), line("c", "two"))
        batch = await ended(r, await new_batch(r, *lines, completion_window="2s"))
        assert batch["status"] == "expired" and batch["expired_at"]
        assert texts_of(await content_of(r, batch["output_file_id"])) == {"a": "one "}
        errors = lines_of(await content_of(r, batch["error_file_id"]))
        assert {key: each["error"]["code"] for key, each in errors.items()} == dict.fromkeys("bc", "batch_expired")
        assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}


async def test_requests_of_people_go_first(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        batch_id = await new_batch(r, *(line(str(n), "!sleep:0.2 x") for n in range(8)), line("!", "!request"))
        while not any(model.active for model in r.daemon.scheduler.running()):
            await asyncio.sleep(0.01)
        for _ in range(3):
            answer = await r.http.post("/api/generate", json={"model": "m", "prompt": "now", "stream": False})
            assert answer.json()["response"] == "now "
        assert (await r.http.get(f"/v1/batches/{batch_id}")).json()["request_counts"]["completed"] < 8
        batch = await ended(r, batch_id)
        texts = texts_of(await content_of(r, batch["output_file_id"]))
        assert json.loads(texts["!"])["is_interactive"] is False


async def test_a_model_taken_away_is_no_failure(
    running: Running, add_model: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BUSY_PAUSE_S", 0.05)
    monkeypatch.setattr("localllm.scheduler.resident.INTERACTIVE_PAUSE_S", 0.2)
    add_model("m")
    add_model("n", template="{{ .Prompt }}")
    async with running(scheduler={"max_loaded_models": 1}) as r:
        batch_id = await new_batch(r, line("a", "!sleep:1.5 one"), line("b", "two"))
        while not any(model.active for model in r.daemon.scheduler.running()):
            await asyncio.sleep(0.01)
        answer = await r.http.post("/api/generate", json={"model": "n", "prompt": "now", "stream": False})
        assert answer.json()["response"] == "now "
        batch = await ended(r, batch_id)
        assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert texts_of(await content_of(r, batch["output_file_id"])) == {"a": "one ", "b": "two "}


@pytest.mark.parametrize("how", ["term", "kill"])
def test_a_batch_survives_a_restart(start_live: Start, add_model: Add, tmp_path: Path, how: str) -> None:
    add_model()
    state = {"LOCALLLM_STATE_DIR": str(tmp_path / "state"), "LOCALLLM_NUM_PARALLEL": "1"}
    daemon = start_live(**state)
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="x") as client:
        content = jsonl(*(line(str(n), f"!sleep:0.15 !pid / {n}") for n in range(12)))
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 3)  # type: ignore[union-attr]
    if how == "term":
        daemon.stop()
    else:
        daemon.process.kill()
        daemon.process.wait()
        with (tmp_path / "state/openai/batches" / batch.id / "output.jsonl").open("ab") as torn:
            torn.write(b'{"id": "batch_req_x", "custom_id": "11", "resp')
    with openai.OpenAI(base_url=f"{start_live(**state).url}/v1", api_key="x") as client:
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed")
        done = client.batches.retrieve(batch.id)
        assert done.request_counts and (done.request_counts.completed, done.request_counts.failed) == (12, 0)
        assert done.output_file_id and done.error_file_id is None
        texts = texts_of(client.files.content(done.output_file_id).content)
        assert set(texts) == {str(n) for n in range(12)}
        assert len({text.partition("/")[0] for text in texts.values()}) == 2  # two daemons' runners, each its part


def test_batches_of_a_daemon_with_keys(start_live: Start, add_model: Add) -> None:
    add_model()
    daemon = start_live(LOCALLLM_API_KEYS="secret")
    with httpx.Client(base_url=daemon.url, trust_env=False) as http:
        assert http.get("/v1/batches").json()["error"]["type"] == "authentication_error"
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="secret") as client:
        file = client.files.create(file=("in.jsonl", jsonl(line("a", "one"))), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed")
    with (
        openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.batches.list()
