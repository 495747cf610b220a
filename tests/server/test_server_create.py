"""/api/create from a model in the store: what `/save` in the chat uses."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Add = Callable[..., None]


async def test_a_model_with_another_system_text_and_parameters(running: Running, add_model: Add) -> None:
    add_model("parent", system="old", params={"top_k": 3, "seed": 1}, licenses=["MIT"])
    async with running() as r:
        body = {
            "model": "child",
            "from": "parent",
            "system": "new",
            "parameters": {"seed": 7, "stop": ["x"]},
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
            "license": "Apache",
        }
        lines = await r.lines("/api/create", body)
        assert [line["status"] for line in lines][-2:] == ["writing manifest", "success"]
        shown = (await r.post("/api/show", {"model": "child"})).json()
        assert shown["system"] == "new" and shown["license"] == "MIT\nApache"
        assert shown["messages"] == body["messages"]
        assert {line.split()[0]: line.split()[1] for line in shown["parameters"].splitlines()} == {
            "top_k": "3",
            "seed": "7",
            "stop": '"x"',
        }
        parent = (await r.post("/api/show", {"model": "parent"})).json()
        assert parent["system"] == "old"


async def test_what_is_not_said_is_the_parents(running: Running, add_model: Add) -> None:
    add_model("parent", system="old", params={"top_k": 3})
    async with running() as r:
        answer = await r.post("/api/create", {"model": "child", "from": "parent", "stream": False})
        assert answer.json() == {"status": "success"}
        parent, child = [(await r.post("/api/show", {"model": name})).json() for name in ("parent", "child")]
        for part in ("system", "parameters", "template", "model_info", "capabilities"):
            assert child.get(part) == parent.get(part)


async def test_unknown_parameters_are_not_stored(running: Running, add_model: Add) -> None:
    add_model("parent", params={"top_k": 3, "of_another_program": 1})
    async with running() as r:
        body = {"model": "c", "from": "parent", "stream": False, "parameters": {"seed": 1, "temprature": 0.5}}
        answer = await r.post("/api/create", body)
        assert answer.status_code == 400
        assert answer.json() == {"error": "unknown parameter 'temprature'", "hint": "did you mean `temperature`?"}
        body["parameters"] = {"low_vram": True, "logit_bias": {"1": -1}}
        assert (await r.post("/api/create", body)).json() == {"status": "success"}


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"model": "c"}, 400, "neither 'from' or 'files' was specified"),
        ({"model": "a b", "from": "parent"}, 400, "invalid model name"),
        ({"model": "c", "from": "nobody"}, 404, "model 'nobody' not found"),
        (
            {"model": "c", "from": "parent", "template": "{{ .Prompt"},
            400,
            "template error: template: :1: unclosed action",
        ),
        ({"model": "c", "from": "parent", "quantize": "Q4_0"}, 400, "quantize is not supported yet"),
        ({"model": "c", "from": "parent", "files": {"a": "sha256:0"}}, 400, "files is not supported yet"),
        ({"model": "c", "from": "parent", "parameters": {"top_k": "x"}}, 400, 'option "top_k" must be of type integer'),
    ],
)
async def test_refusals(running: Running, add_model: Add, body: dict[str, Any], status: int, error: str) -> None:
    add_model("parent")
    async with running() as r:
        answer = await r.post("/api/create", body)
        assert answer.status_code == status and answer.json()["error"].startswith(error)
        assert len((await r.http.get("/api/tags")).json()["models"]) == 1


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def test_a_known_template_of_the_gguf_gives_its_parameters(running: Any, add_model: Any) -> None:
    add_model("known", jinja=CHATML)
    add_model("stops", jinja=CHATML, params={"stop": ["x"]})
    add_model("broken", jinja=CHATML + "{% unknown %}")
    async with running() as r:
        events = await r.lines("/api/create", {"model": "n", "from": "known"})
        assert events[0] == {"status": "using autodetected template chatml"}
        shown = (await r.post("/api/show", {"model": "n"})).json()
        assert "<|im_end|>" in shown["parameters"] and shown["template"] == CHATML
        await r.post("/api/create", {"model": "n", "from": "stops"})
        assert "im_end" not in (await r.post("/api/show", {"model": "n"})).json()["parameters"]
        await r.post("/api/create", {"model": "n", "from": "broken"})
        shown = (await r.post("/api/show", {"model": "n"})).json()
        assert shown["template"].startswith("{{ range") and "<|im_start|>user" in shown["template"]
        events = await r.lines("/api/create", {"model": "n", "from": "known", "template": "{{ .Prompt }}"})
        assert "autodetected" not in str(events)
