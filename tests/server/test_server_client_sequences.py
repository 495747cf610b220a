"""What Open WebUI, Continue and Claude Code send, in their order and shapes, and what they read of the answers."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from registry.progress import PULLING_MANIFEST, SUCCESS, Progress

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Add = Callable[..., None]

FIM_TEMPLATE = "{{ if .Suffix }}<PRE> {{ .Prompt }} <SUF>{{ .Suffix }} <MID>{{ else }}{{ .Prompt }}{{ end }}"
TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
USER = {"role": "user", "content": "one two"}


def pulled(reference: str, cancel: Any, access: Any) -> Iterator[Progress]:
    yield PULLING_MANIFEST
    yield SUCCESS


async def test_open_webui(running: Running, add_model: Add) -> None:
    add_model("llama3.2:3b", system="s")
    async with running(pull=pulled) as r:
        r.http.headers.update({"Authorization": "Bearer sk-any", "X-OpenWebUI-User-Name": "someone"})
        assert tuple(map(int, (await r.http.get("/api/version")).json()["version"].split("."))) > (0, 1, 0)
        (listed,) = (await r.http.get("/api/tags")).json()["models"]
        assert listed["name"] == listed["model"] == "llama3.2:3b" and listed["details"]["family"]
        datetime.fromisoformat(re.sub(r"\.\d+", "", listed["modified_at"]).replace("Z", "+00:00"))
        assert (await r.post("/api/show", {"model": "llama3.2:3b"})).json()["model_info"]

        asked = {"model": "llama3.2:3b", "messages": [USER], "stream": True, "options": {}, "keep_alive": "5m"}
        *parts, last = await r.lines(
            "/api/chat", {**asked, "format": None, "think": None, "metadata": {"chat_id": "x"}}
        )
        assert "".join(part["message"]["content"] for part in parts) == "one two " and last["done"] is True
        assert {"eval_count", "eval_duration", "prompt_eval_count", "prompt_eval_duration"} <= set(last)
        (loaded,) = (await r.http.get("/api/ps")).json()["models"]
        expires = datetime.fromisoformat(re.sub(r"\.\d+", "", loaded["expires_at"]).replace("Z", "+00:00"))
        assert 200 < (expires - datetime.now(expires.tzinfo)).total_seconds() < 400
        titled = {**asked, "stream": False, "options": {"num_predict": 50, "temperature": 0.1}, "keep_alive": 1800}
        assert (await r.post("/api/chat", titled)).json()["message"]["content"] == "one two "

        embedded = await r.post("/api/embed", {"model": "llama3.2:3b", "input": ["a", "b"]})
        assert len(embedded.json()["embeddings"]) == 2
        unloaded = await r.post("/api/generate", {"model": "llama3.2:3b", "keep_alive": 0})
        assert unloaded.json()["done_reason"] == "unload" and (await r.http.get("/api/ps")).json() == {"models": []}

        assert (await r.lines("/api/pull", {"name": "some:latest", "model": "some:latest"}))[-1] == {
            "status": "success"
        }
        created = await r.lines("/api/create", {"model": "mine:latest", "from": "llama3.2:3b", "stream": True})
        assert created[-1] == {"status": "success"}
        copied = await r.post("/api/copy", {"source": "mine:latest", "destination": "copy:latest"})
        assert (copied.status_code, copied.content) == (200, b"")
        deleted = await r.post("/api/delete", {"model": "copy:latest", "name": "copy:latest"}, "DELETE")
        assert (deleted.status_code, deleted.content) == (200, b"")
        names = [item["id"] for item in (await r.http.get("/v1/models")).json()["data"]]
        assert sorted(names) == ["llama3.2:3b", "mine:latest"]

        missing = await r.post("/api/chat", {**asked, "model": "gone:latest"})
        assert missing.status_code == 404 and missing.json()["error"] == "model 'gone:latest' not found"


async def test_continue(running: Running, add_model: Add) -> None:
    params = {"stop": ["<EOT>", "\n\n"], "num_ctx": 2048, "temperature": 0.2}
    fake = {"fake": {"capabilities": ["completion", "insert"]}}
    add_model("coder", template=FIM_TEMPLATE, params={**params, **fake})
    async with running() as r:
        r.http.headers["Authorization"] = "Bearer undefined"
        shown = (await r.post("/api/show", {"name": "coder"})).json()
        found = [re.match(r"^(\S+)\s+(.*)$", line) for line in shown["parameters"].split("\n")]
        pairs = [match.groups() for match in found if match]
        assert [json.loads(text) for key, text in pairs if key == "stop"] == ["<EOT>", "\n\n"]
        assert ("num_ctx", "2048") in pairs and ".Suffix" in shown["template"]

        common = {"model": "coder", "stream": True, "keep_alive": 1800}
        options = {"num_predict": 64, "stop": ["<EOT>"], "num_ctx": 2048, "mirostat": None, "num_thread": None}
        hole = {**common, "prompt": "def f(", "suffix": "return", "options": options}
        *parts, last = await r.lines("/api/generate", hole)
        assert "".join(part["response"] for part in parts) == "def f( " and last["done"] is True
        raw = {**common, "prompt": "<PRE> a <SUF> b", "raw": True, "options": options}
        *_, last = await r.lines("/api/generate", raw)
        assert last["done"] is True and "context" not in last
        *_, last = await r.lines("/api/chat", {**common, "messages": [USER], "options": options})
        assert last["done_reason"] == "stop"
        (loaded,) = (await r.http.get("/api/ps")).json()["models"]
        assert loaded["context_length"] == 2048
        assert (await r.http.get("/api/tags")).json()["models"][0]["name"] == "coder:latest"


async def test_claude_code(running: Running, add_model: Add) -> None:
    add_model("m", jinja=TOOLS_JINJA)
    cached = {"cache_control": {"type": "ephemeral"}}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {}}}
    body = {
        "model": "m",
        "max_tokens": 32000,
        "stream": True,
        "system": [{"type": "text", "text": "You are a tool."}, {"type": "text", "text": "# Rules", **cached}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"}]}],
        "tools": [{"name": "add", "description": "adds", "input_schema": schema}],
        "metadata": {"user_id": "user_0"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
    }
    body["messages"][0]["content"].append({"type": "text", "text": "!think:hm !call", **cached})
    async with running() as r:
        r.http.headers.update({"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"})
        r.http.headers.update({"x-api-key": "sk-any", "x-app": "cli"})
        counted = await r.post(
            "/v1/messages/count_tokens?beta=true", {k: v for k, v in body.items() if k != "max_tokens"}
        )
        assert counted.json()["input_tokens"] > 0
        response = await r.post("/v1/messages?beta=true", body)
        found = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        blocks = [event["content_block"] for event in found if event["type"] == "content_block_start"]
        assert [block["type"] for block in blocks] == ["text", "thinking", "tool_use"]
        assert found[-2]["delta"]["stop_reason"] == "tool_use" and found[-1] == {"type": "message_stop"}

        result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": "no such file", "is_error": True}
        said = [{**blocks[1], "thinking": "hm"}, {**blocks[-1], "input": {"a": 1}}]
        body["messages"] += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": [{**result, **cached}]},
        ]
        again = (await r.post("/v1/messages?beta=true", {**body, "stream": False})).json()
        assert again["content"] == [{"type": "text", "text": "Error: no such file "}]
        models = (await r.http.get("/v1/models?limit=1000")).json()
        assert [model["id"] for model in models["data"]] == ["m:latest"] and models["has_more"] is False
