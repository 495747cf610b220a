"""Answers as recorded in tests/fixtures/golden: status, type and every byte of the body, for each endpoint and error.

Points in time, durations, digests, paths and random ids are masked. The cases of a file run in turn on one daemon.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from localllm.server.app import ROUTES

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Add = Callable[..., None]

FOLDER = Path(__file__).parents[1] / "fixtures/golden"
FILES = sorted(FOLDER.glob("*.json"))
MASKS = tuple(
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "<time>"),
        (r'("[a-z_]*duration":)\d+', r"\g<1>1"),
        (r"FROM (?:[A-Z]:)?[/\\]\S+?(?=\\n)", "FROM <path>"),
        (r"[0-9a-f]{64}", "<digest>"),
        (r'("id":")[0-9a-f]{32}', r"\1<id>"),
        (r"\b(chatcmpl-|cmpl-|resp_|msg_|rs_|fc_)[0-9a-f]{32}", r"\1<id>"),
        (r"\b(msg|req)_[0-9a-f]{24}", r"\1_<id>"),
        (r'("(?:created|created_at|completed_at)":)\d+', r"\g<1>1"),
    )
)


def add_models(add_model: Add) -> None:
    """What the cases are asked of; all answer by the script of tests/scheduler/fake_runner.py."""
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    add_model("m", params={"stop": ["<|end|>"], "temperature": 0.7}, licenses=["MIT"])
    add_model("tools", jinja="{% if tools %}{{ tools }}{% endif %}{{ messages[0].tool_calls }}" + plain)
    add_model("thinks", jinja="<think></think>" + plain)
    add_model("inserts", jinja=plain + "{# inserts #}", params={"fake": {"capabilities": ["completion", "insert"]}})
    add_model("history", system="be brief", messages=history)
    add_model("bert", kind="bert")


def masked(text: str) -> str:
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return text


def expected_text(response: dict[str, Any]) -> str:
    """The bytes that a recorded answer stands for: a text, one object, or one object a line."""
    if "text" in response:
        return str(response["text"])
    if "body" in response:
        return _compact(response["body"])
    return "".join(_compact(line) + "\n" for line in response["lines"])


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


async def answer_to(http: httpx.AsyncClient, request: dict[str, Any]) -> httpx.Response:
    body = request.get("text", json.dumps(request["body"]) if "body" in request else None)
    return await http.request(request["method"], request["path"], content=body, headers=request.get("headers"))


def test_there_is_a_file() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_golden(running: Running, add_model: Add, path: Path) -> None:
    add_models(add_model)
    cases = json.loads(path.read_text(encoding="utf-8"))
    async with running() as r:
        for case in cases:
            response = await answer_to(r.http, case["request"])
            expected = case["response"]
            told = (response.status_code, response.headers.get("content-type", ""), masked(response.text))
            wanted = (expected["status"], expected["type"], expected_text(expected))
            assert told == wanted, case["name"]


def test_every_endpoint_of_ollamas_has_a_case() -> None:
    asked = {(case["request"]["method"], case["request"]["path"]) for path in FILES for case in _cases(path)}
    for route in ROUTES:
        if route.path != "/" and not route.path.startswith("/api/"):
            continue
        method = "HEAD" if route.methods == {"HEAD"} else next(m for m in route.methods if m != "HEAD")
        assert any(m == method and route.path_regex.match(p) for m, p in asked), f"{method} {route.path}"


def _cases(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8")))
