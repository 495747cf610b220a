"""GET /metrics: what Prometheus reads there, before, during and after requests."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from localllm.keys import Keyring
from localllm.messages import Counts
from localllm.server.answer_counts import CANCELED, AnswerCounts, CountingMiddleware
from localllm.server.app import ROUTES
from localllm.server.daemon import DAEMON_KEY
from localllm.server.metrics import HTTP_NAME, MEASURES, PREFIX

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]
Samples = dict[tuple[str, tuple[str, ...]], float]


async def scrape(r: Any) -> Samples:
    """Values by name without the prefix, and by the labels' values in alphabetical order of their names."""
    response = await r.http.get("/metrics")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain; version=")
    samples: Samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            key = (sample.name.removeprefix(PREFIX), tuple(value for _, value in sorted(sample.labels.items())))
            assert key not in samples, "a series twice"
            samples[key] = sample.value
    return samples


async def until(r: Any, key: tuple[str, tuple[str, ...]], value: float) -> Samples:
    for _ in range(500):
        samples = await scrape(r)
        if samples.get(key) == value:
            return samples
        await asyncio.sleep(0.02)
    raise AssertionError(f"{key} is {samples.get(key)}, not {value}")


MODEL = ("m:latest",)


def test_every_count_of_a_runner_is_shown_and_names_are_prometheus() -> None:
    names = [measure.name for measure in MEASURES]
    assert len(set(names)) == len(names)
    counts = {name.replace("_ns", "_seconds") for name in Counts().to_json()}
    assert {f"{name}_total" for name in counts} <= set(names)
    for measure in MEASURES:
        assert measure.name.endswith("_total") == (measure.kind == "counter")
        assert measure.name.endswith("_seconds") == (measure.kind == "histogram")


async def test_counters_move_with_requests_of_every_dialect(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        assert not any(labels == MODEL for _, labels in await scrape(r))
        message = {"role": "user", "content": "hello !figures:3"}
        bodies = {
            "/api/generate": {"model": "m", "prompt": "hello !figures:3"},
            "/api/chat": {"model": "m", "messages": [message]},
            "/v1/chat/completions": {"model": "m", "messages": [message], "stream": True},
            "/v1/messages": {"model": "m", "messages": [message], "max_tokens": 9},
        }
        for path, body in bodies.items():
            assert (await r.post(path, body)).status_code == 200
        await r.post("/api/chat", {"model": "nobody", "messages": []})
        await r.http.get("/made/up")
        samples = await scrape(r)
        for path in bodies:
            assert samples[HTTP_NAME, (path, "200")] == 1
        assert samples[HTTP_NAME, ("/api/chat", "404")] == samples[HTTP_NAME, ("other", "404")] == 1
        assert samples["time_to_first_token_seconds_count", MODEL] == 4
        assert samples["prompt_tokens_total", MODEL] == 12
        assert samples["time_between_tokens_seconds_bucket", ("0.001", *MODEL)] == 0
        assert samples["time_between_tokens_seconds_bucket", ("0.0025", *MODEL)] == 4
        assert samples["time_between_tokens_seconds_bucket", ("+Inf", *MODEL)] == 4
        assert samples["time_between_tokens_seconds_sum", MODEL] == pytest.approx(0.008)
        assert samples["model_loads_total", MODEL] == samples["model_load_seconds_count", MODEL] == 1
        assert samples["kv_cache_pages", MODEL] == 8 and samples["kv_cache_pages_used", MODEL] == 3
        assert samples["model_memory_bytes", MODEL] == 1000
        assert not any("nobody" in labels for _, labels in samples)


async def test_scrapes_beside_many_requests(running: Running, add_model: Add) -> None:
    add_model()
    async with running(num_parallel=2) as r:
        body = {"model": "m", "prompt": "!sleep:0.4 x !figures:1", "stream": False}
        requests = [asyncio.create_task(r.post("/api/generate", body)) for _ in range(6)]
        await until(r, ("requests_running", MODEL), 2)
        samples, *_ = await asyncio.gather(*(scrape(r) for _ in range(10)))
        assert samples["requests_waiting", MODEL] + samples["requests_running", MODEL] <= 6
        assert {response.status_code for response in await asyncio.gather(*requests)} == {200}
        samples = await scrape(r)
        assert samples["requests_waiting", MODEL] == samples["requests_running", MODEL] == 0
        assert samples["request_queue_seconds_count", MODEL] == samples["prompt_tokens_total", MODEL] == 6


async def test_a_full_queue_and_a_runner_that_dies(running: Running, add_model: Add) -> None:
    add_model()
    async with running(scheduler={"max_queue": 1}, num_parallel=1) as r:
        dying = {"model": "m", "prompt": "!figures:3 !sleep:0.6 !crash", "stream": False}
        first = asyncio.create_task(r.post("/api/generate", dying))
        await until(r, ("prompt_tokens_total", MODEL), 3)
        second = asyncio.create_task(r.post("/api/generate", {**dying, "prompt": "x"}))
        await until(r, ("requests_waiting", MODEL), 1)
        assert (await r.post("/api/generate", {**dying, "prompt": "x"})).status_code == 503
        assert (await first).status_code == 500 and (await second).status_code == 200
        samples = await scrape(r)
        assert samples["requests_refused_total", MODEL] == samples["runner_deaths_total", MODEL] == 1
        assert samples["model_loads_total", MODEL] == 2 and samples["prompt_tokens_total", MODEL] == 3
        assert samples["kv_cache_pages_used", MODEL] == 0  # the new runner has said nothing yet
        assert [samples[HTTP_NAME, ("/api/generate", status)] for status in ("200", "500", "503")] == [1, 1, 1]


async def test_a_model_that_is_unloaded_stays_and_a_deleted_one_goes(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        await r.post("/api/generate", {"model": "m", "prompt": "x"})
        await r.post("/api/generate", {"model": "m", "keep_alive": 0})
        samples = await scrape(r)
        assert samples["model_unloads_total", (*MODEL, "request")] == 1
        assert ("model_memory_bytes", MODEL) not in samples and ("kv_cache_pages", MODEL) not in samples
        assert (await r.post("/api/delete", {"model": "m"}, "DELETE")).status_code == 200
        assert not any(labels[:1] == MODEL for _, labels in await scrape(r))


async def test_openmetrics_where_it_is_asked_for(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        await r.post("/api/generate", {"model": "m", "prompt": "x"})
        response = await r.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name for family in openmetrics.text_string_to_metric_families(response.text)}
        assert f"{PREFIX}model_loads" in families and f"{PREFIX}time_to_first_token_seconds" in families


async def test_the_door_is_that_of_everything_else(running: Running) -> None:
    async with running(keys=Keyring(["secret"])) as r:
        assert (await r.http.get("/metrics")).status_code == 401
        assert (await r.http.get("/metrics", headers={"host": "evil.example"})).status_code == 403
        allowed = await r.http.get("/metrics", headers={"authorization": "Bearer secret"})
        assert allowed.status_code == 200
        assert 'localllm_http_requests_total{endpoint="/metrics",status="401"} 1.0' in allowed.text


async def test_who_leaves_before_the_answer_and_the_daemon_itself() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        """Ends as an endpoint does whose client has gone."""

    counts = AnswerCounts()
    app = CountingMiddleware(silent, counts=counts, routes=ROUTES)
    scope = {"type": "http", "path": "/v1/files/file-1/content"}
    await app(scope, None, None)  # type: ignore[arg-type]
    await app({**scope, DAEMON_KEY: object()}, None, None)  # type: ignore[arg-type]
    assert counts == {("/v1/files/{file_id}/content", CANCELED): 1}
