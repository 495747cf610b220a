"""GET /v1/models and /v1/models/{model}."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]


async def test_no_models_are_an_empty_list(running: Running, add_model: Callable[..., None]) -> None:
    async with running() as r:
        assert (await r.http.get("/v1/models")).json() == {"object": "list", "data": []}
        add_model("gone")
        await r.post("/api/delete", {"model": "gone"}, method="DELETE")
        assert (await r.http.get("/v1/models")).json() == {"object": "list", "data": []}


async def test_the_list_and_its_items(running: Running, add_model: Callable[..., None]) -> None:
    add_model("m")
    add_model("hf.co/someone/other:q4")
    async with running() as r:
        answer = (await r.http.get("/v1/models")).json()
        by_id = {item["id"]: item for item in answer["data"]}
        assert answer["object"] == "list" and set(by_id) == {"m:latest", "hf.co/someone/other:q4"}
        created = by_id["m:latest"]["created"]
        assert by_id["m:latest"] == {
            "id": "m:latest",
            "object": "model",
            "created": created,
            "owned_by": "library",
        }
        assert isinstance(created, int) and by_id["hf.co/someone/other:q4"]["owned_by"] == "someone"
        for asked, told in (("M", "m:latest"), ("hf.co/someone/other:q4", "hf.co/someone/other:q4")):
            assert (await r.http.get(f"/v1/models/{asked}")).json() == by_id[told]


async def test_errors(running: Running) -> None:
    async with running() as r:
        response = await r.http.get("/v1/models/nope")
        assert response.status_code == 404 and response.json()["error"] == {
            "message": "model 'nope' not found",
            "type": "not_found_error",
            "param": None,
            "code": None,
            "hint": "localllm pull nope",
        }
        response = await r.http.get("/v1/models/bad%20name!")
        assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
