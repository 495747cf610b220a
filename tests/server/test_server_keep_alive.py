"""Every spelling of keep_alive, and when a model goes."""

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

YEAR_S = 365 * 86400


async def left_s(r: Any) -> float | None:
    models = (await r.http.get("/api/ps")).json()["models"]
    if not models:
        return None
    text = models[0]["expires_at"]
    whole, _, rest = text.partition(".")
    expires = datetime.fromisoformat((whole + rest.lstrip("0123456789")).replace("Z", "+00:00"))
    return (expires - datetime.now(timezone.utc)).total_seconds()


@pytest.mark.parametrize(
    ("value", "wanted_s"),
    [(None, 300), (3600, 3600), ("1h30m", 5400), ("24h", 86400), (2.5, 2.5), ("300ms", 0.3), (1e300, None)]
    + [(value, None) for value in (-1, -1.5, "-1m", "-1ns")],
)
async def test_expiry(running: Running, add_model: Add, value: Any, wanted_s: float | None) -> None:
    add_model()
    async with running() as r:
        answer = (await r.post("/api/generate", {"model": "m", "keep_alive": value})).json()
        assert answer["done_reason"] == "load" and answer["response"] == ""
        left = await left_s(r)
        if wanted_s is None:
            assert left is not None and left > YEAR_S
        else:
            assert left is not None and abs(left - wanted_s) < 2


@pytest.mark.parametrize("value", [0, "0", "0s", 0.0])
@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_zero_unloads(running: Running, add_model: Add, path: str, value: Any) -> None:
    add_model()
    async with running() as r:
        await r.post(path, {"model": "m"})
        answer = (await r.post(path, {"model": "m", "keep_alive": value})).json()
        assert answer["done_reason"] == "unload" and await left_s(r) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", 'invalid keep_alive: time: invalid duration "abc"'),
        ("", 'invalid keep_alive: time: invalid duration ""'),
        ("-1", 'invalid keep_alive: time: missing unit in duration "-1"'),
        ("2", 'invalid keep_alive: time: missing unit in duration "2"'),
        (True, "invalid keep_alive: Unsupported type: true"),
        ([], "invalid keep_alive: Unsupported type: []"),
    ],
)
async def test_refused(running: Running, add_model: Add, value: Any, text: str) -> None:
    add_model()
    async with running() as r:
        response = await r.post("/api/generate", {"model": "m", "keep_alive": value})
        assert (response.status_code, response.json()["error"]) == (400, text)


async def test_a_model_goes_in_time(running: Running, add_model: Add, until: Any) -> None:
    add_model()
    async with running() as r:
        await r.post("/api/generate", {"model": "m", "prompt": "x", "keep_alive": "500ms", "stream": False})
        start = time.monotonic()
        await until(lambda: not r.daemon.scheduler.running())
        assert 0.3 < time.monotonic() - start < 2


async def test_the_default_comes_from_the_settings(running: Running, add_model: Add) -> None:
    add_model()
    async with running(keep_alive_ns=60 * 10**9) as r:
        await r.post("/api/generate", {"model": "m"})
        left = await left_s(r)
        assert left is not None and 50 < left <= 60


async def test_unloading_what_is_not_loaded(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        answer = (await r.post("/api/generate", {"model": "m", "keep_alive": 0})).json()
        assert answer["done_reason"] == "unload"
