"""/v1/embeddings: inputs in every form, numbers and base64, refusals."""

import base64
import struct
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]

PATH = "/v1/embeddings"
TENTH = 0.1


async def embed(r: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = await r.post(PATH, {"model": "m", **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_texts_and_tokens(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        answer = await embed(r, {"input": ["abc", "a"], "dimensions": 7})
        assert answer == {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": [3, 0, 7, 1, pytest.approx(TENTH)], "index": 0},
                {"object": "embedding", "embedding": [1, 1, 7, 1, pytest.approx(TENTH)], "index": 1},
            ],
            "model": "m",
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
        }
        for given, lengths in (
            ("ab", [2]),
            ([5, 6, 7], [3]),
            ([[5], [6, 7]], [1, 2]),
            ([""], [0]),
            (["", "a"], [0, 1]),
        ):
            answer = await embed(r, {"input": given})
            assert [item["embedding"][0] for item in answer["data"]] == lengths
            assert [item["index"] for item in answer["data"]] == list(range(len(lengths)))


async def test_base64_is_the_same_numbers(running: Running, add_model: Add) -> None:
    add_model()
    async with running() as r:
        numbers = (await embed(r, {"input": "abc"}))["data"][0]["embedding"]
        text = (await embed(r, {"input": "abc", "encoding_format": "base64"}))["data"][0]["embedding"]
    assert struct.unpack("<5f", base64.b64decode(text)) == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("body", "status", "param", "text"),
    [
        ({"input": ""}, 400, "input", "invalid input"),
        ({"input": None}, 400, "input", "not null"),
        ({"input": []}, 400, "input", "invalid input"),
        ({"input": 3}, 400, "input", "not the number 3"),
        ({"input": ["a", 3]}, 400, "input", "all of one kind"),
        ({"input": [[1], []]}, 400, "input", "all of one kind"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format", 'expected float or base64, not "hex"'),
        ({"input": "a", "dimensions": "x"}, 400, "dimensions", "of type int"),
        ({"input": "!error:RequestError"}, 400, None, "scripted error"),
        ({"input": "!error:RunnerError"}, 500, None, "scripted error"),
        ({"input": "a", "model": "none"}, 404, None, 'model "none" not found, try pulling it first'),
        ({"input": "a", "model": ""}, 404, None, "model '' not found"),
    ],
)
async def test_what_is_refused(
    running: Running, add_model: Add, body: dict[str, Any], status: int, param: str | None, text: str
) -> None:
    add_model()
    async with running() as r:
        response = await r.post(PATH, {"model": "m", **body})
    error = response.json()["error"]
    kind = {400: "invalid_request_error", 404: "not_found_error", 500: "api_error"}[status]
    assert (response.status_code, error["type"], error["param"]) == (status, kind, param) and text in error["message"]
