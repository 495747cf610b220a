"""/api/tags, ps, show, copy, delete and pull."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kernels_cpu.cache_files import packed_path
from localllm.scheduler.budget import Budget
from localllm.server.app import create_app
from registry import Store, parse_name
from registry.errors import NotInSourceError
from registry.progress import PULLING_MANIFEST, SUCCESS, Progress, pulling

pytestmark = pytest.mark.anyio

Running = Callable[..., Any]
Add = Callable[..., None]


async def test_empty_lists(running: Running, add_model: Add) -> None:
    async with running() as r:
        for _ in range(2):
            assert (await r.http.get("/api/tags")).json() == {"models": []}
            assert (await r.http.get("/api/ps")).json() == {"models": []}
            await asyncio.to_thread(add_model)
            assert len((await r.http.get("/api/tags")).json()["models"]) == 1
            assert (await r.post("/api/delete", {"model": "m"}, "DELETE")).content == b""


async def test_tags_tell_capabilities_of_all_but_damaged_models(running: Running, add_model: Add, store: Store) -> None:
    tools = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    add_model("tools", jinja=tools + "{{ messages[0].tool_calls }}")
    add_model("bert", kind="bert")
    add_model("broken", jinja="{{ messages }}")
    add_model("gone", jinja="{{ messages }}!")
    path = store.resolve(parse_name("broken")).model_paths[0]
    n_bytes = path.stat().st_size
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:64].ljust(n_bytes, b"\xff"))
    store.resolve(parse_name("gone")).model_paths[0].unlink()
    async with running() as r:
        tags = (await r.http.get("/api/tags")).json()["models"]
        told = {tag["name"]: tag.get("capabilities", "left out") for tag in tags}
        assert told == {
            "tools:latest": ["completion", "tools"],
            "bert:latest": ["embedding"],
            "broken:latest": "left out",
            "gone:latest": "left out",
        }
        shown = (await r.post("/api/show", {"model": "tools"})).json()
        assert shown["capabilities"] == told["tools:latest"]


async def test_tags_and_ps(running: Running, add_model: Add) -> None:
    add_model("a")
    time.sleep(0.01)
    add_model("Other/b:7B")
    async with running() as r:
        tags = (await r.http.get("/api/tags")).json()["models"]
        assert [tag["name"] for tag in tags] == ["Other/b:7B", "a:latest"]
        (tag,) = [tag for tag in tags if tag["name"] == "a:latest"]
        assert tag["model"] == tag["name"] and len(tag["digest"]) == 64 and tag["size"] > 10_000
        details = {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "134.52M",
            "quantization_level": "F32",
        }
        assert tag["details"] == details
        await r.post("/api/generate", {"model": "a"})
        (loaded,) = (await r.http.get("/api/ps")).json()["models"]
        assert loaded["name"] == loaded["model"] == "a:latest" and loaded["digest"] == tag["digest"]
        assert loaded["details"] == details and loaded["size"] == 1000 and loaded["size_vram"] == 0
        assert loaded["context_length"] == 4096


async def test_show(running: Running, add_model: Add) -> None:
    add_model(
        system="be brief",
        params={"stop": ["<|im_end|>", "b"], "temperature": 0.7},
        licenses=["MIT"],
        messages=[{"role": "user", "content": "q"}],
    )
    async with running() as r:
        shown = (await r.post("/api/show", {"name": "m"})).json()
        assert shown["system"] == "be brief" and shown["license"] == "MIT"
        assert shown["messages"] == [{"role": "user", "content": "q"}]
        assert "m.content" in shown["template"] and shown["details"]["family"] == "llama"
        assert shown["parameters"].splitlines() == [
            'stop                           "<|im_end|>"',
            'stop                           "b"',
            "temperature                    0.7",
        ]
        info = shown["model_info"]
        assert info["general.architecture"] == "llama" and info["llama.context_length"] == 4096
        assert info["tokenizer.ggml.tokens"] == [] and info["tokenizer.ggml.merges"] == ["h e", "l l"]
        assert "general.name" not in info and "tokenizer.chat_template" not in info
        assert info["general.parameter_count"] > 0 and shown["capabilities"] == ["completion"]
        assert {"name": "token_embd.weight", "type": "F32"}.items() <= shown["tensors"][0].items()
        lines = shown["modelfile"].splitlines()
        assert lines[2] == "# FROM m:latest" and lines[4].startswith("FROM /")
        assert "PARAMETER stop <|im_end|>" in lines and "SYSTEM be brief" in lines and "MESSAGE user q" in lines
        verbose = (await r.post("/api/show", {"model": "m", "verbose": True})).json()
        assert len(verbose["model_info"]["tokenizer.ggml.tokens"]) > 256


async def test_copy_and_delete(running: Running, add_model: Add) -> None:
    add_model("a")
    async with running() as r:
        response = await r.post("/api/copy", {"source": "a", "destination": "B:x"})
        assert (response.status_code, response.content) == (200, b"")
        assert (await r.post("/api/delete", {"model": "A:latest"}, "DELETE")).status_code == 200
        assert [tag["name"] for tag in (await r.http.get("/api/tags")).json()["models"]] == ["B:x"]
        assert (await r.post("/api/generate", {"model": "b:X", "prompt": "hi", "stream": False})).status_code == 200


async def test_repacked_weights_go_with_the_last_name_of_their_file(
    running: Running, add_model: Add, store: Store, tmp_path: Path
) -> None:
    add_model("a")
    digest = store.resolve(parse_name("a")).model_digest
    packed = packed_path(tmp_path / "cache", digest)
    packed.parent.mkdir(parents=True)
    packed.touch()
    async with running(cache_dir=tmp_path / "cache") as r:
        await r.post("/api/copy", {"source": "a", "destination": "b"})
        assert (await r.post("/api/delete", {"model": "a"}, "DELETE")).status_code == 200
        assert packed.exists()
        assert (await r.post("/api/delete", {"model": "b"}, "DELETE")).status_code == 200
        assert not packed.exists()


async def test_deleting_a_loaded_model_unloads_it_when_idle(running: Running, add_model: Add, until: Any) -> None:
    add_model()
    async with running() as r:
        stream = asyncio.create_task(r.lines("/api/generate", {"model": "m", "prompt": "a !sleep:0.5 b"}))
        await until(r.daemon.scheduler.running)
        assert (await r.post("/api/delete", {"model": "m"}, "DELETE")).status_code == 200
        assert (await stream)[-1]["done"] is True
        assert (await r.http.get("/api/ps")).json() == {"models": []}
        assert (await r.post("/api/generate", {"model": "m", "prompt": "x"})).status_code == 404


def scripted_pull(reference: str, cancel: threading.Event, access: Any) -> Iterator[Progress]:
    yield PULLING_MANIFEST
    if reference == "missing":
        raise NotInSourceError(reference, hint="known models: none")
    for completed in (0, 50, 100):
        yield pulling("sha256:" + "ab" * 32, 100, completed)
    yield SUCCESS


async def test_pull(running: Running) -> None:
    async with running(pull=scripted_pull) as r:
        assert await r.lines("/api/pull", {"name": "some"}) == [
            {"status": "pulling manifest"},
            *(
                {"status": f"pulling {'ab' * 6}", "digest": "sha256:" + "ab" * 32, "total": 100, **completed}
                for completed in ({}, {"completed": 50}, {"completed": 100})
            ),
            {"status": "success"},
        ]
        assert (await r.post("/api/pull", {"model": "some", "stream": False})).json() == {"status": "success"}
        lines = await r.lines("/api/pull", {"model": "missing"})
        assert lines[0] == {"status": "pulling manifest"}
        assert lines[1]["error"] == "pull model manifest: file does not exist"
        response = await r.post("/api/pull", {"model": "missing", "stream": False})
        assert response.status_code == 500 and response.json()["error"] == "pull model manifest: file does not exist"


@pytest.mark.parametrize(("client", "status"), [("127.0.0.1", 200), ("::1", 200), ("203.0.113.5", 403)])
async def test_files_of_this_machine_are_for_its_own_clients(running: Running, client: str, status: int) -> None:
    async with running(pull=scripted_pull) as r:
        transport = httpx.ASGITransport(create_app(r.daemon), client=(client, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:11434") as http:
            for reference in ("file:/etc/hostname", "pip:six"):
                response = await http.post("/api/pull", json={"model": reference, "stream": False})
                assert response.status_code == status
            assert (await http.post("/api/pull", json={"model": "some", "stream": False})).status_code == 200


async def test_a_pull_is_canceled_when_the_daemon_stops(running: Running) -> None:
    ended = threading.Event()

    def endless(reference: str, cancel: threading.Event, access: Any) -> Iterator[Progress]:
        yield PULLING_MANIFEST
        cancel.wait(20)
        ended.set()

    async with running(pull=endless) as r:
        task = asyncio.create_task(r.post("/api/pull", {"model": "x"}))
        await asyncio.sleep(0.2)
        r.daemon.cancel_pulls()
        response = await asyncio.wait_for(task, 5)
        assert json.loads(response.text.splitlines()[0]) == {"status": "pulling manifest"}
    assert ended.is_set()


async def test_real_pull_of_a_file(
    store: Any, tmp_path: Any, tiny_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localllm.server.process import make_daemon

    monkeypatch.setenv("LOCALLLM_MODELS", str(store.root))
    monkeypatch.setenv("LOCALLLM_STATE_DIR", str(tmp_path))
    from localllm.server import create_app

    tiny_models.random_model(tmp_path / "tiny.gguf")
    app = create_app(make_daemon("127.0.0.1"))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            response = await http.post("/api/pull", json={"model": f"file:{tmp_path}/tiny.gguf"})
            assert json.loads(response.text.splitlines()[-1]) == {"status": "success"}
            (tag,) = (await http.get("/api/tags")).json()["models"]
            assert tag["details"]["family"] == "llama" and tag["details"]["quantization_level"] == "F32"
            shown = (await http.post("/api/show", json={"model": tag["name"]})).json()
            assert shown["model_info"]["general.architecture"] == "llama"


async def test_show_says_which_context_a_model_would_get_and_ps_which_it_has(running: Running, add_model: Add) -> None:
    add_model("plain")
    add_model("short", params={"num_ctx": 512, "kv_cache_type": "q8_0"})
    add_model("longer", params={"num_ctx": 100_000})
    add_model("broken", params={"num_ctx": "x"})
    small = Budget(lambda: 5000, lambda: 1 << 40, lambda pid: 0)
    async with running(scheduler={"budget": small}) as r:
        names = ("plain", "short", "longer", "broken")
        shown = {name: (await r.post("/api/show", {"model": name})).json() for name in names}
        found = {name: answer.get("default_context_length") for name, answer in shown.items()}
        assert found == {"plain": 2048, "short": 512, "longer": 4096, "broken": None}
        await r.post("/api/generate", {"model": "short"})
        (loaded,) = (await r.http.get("/api/ps")).json()["models"]
        assert (loaded["context_length"], loaded["kv_cache_type"]) == (512, "q8_0")


@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions"])
async def test_a_context_that_memory_cannot_hold_is_the_clients_to_mend(
    running: Running, add_model: Add, path: str
) -> None:
    add_model()
    body = {"model": "m", "prompt": "hi", "stream": False, "options": {"num_ctx": 4096}}
    async with running(scheduler={"budget": Budget(lambda: 4000, lambda: 1 << 40, lambda pid: 0)}) as r:
        response = await r.post(path, body)
        assert response.status_code == 400 and "the largest num_ctx that fits is 2976" in response.text
        fits = await r.post(path, {**body, "options": {"num_ctx": 2976}})
        assert fits.status_code == 200 and (await r.http.get("/api/ps")).json()["models"][0]["context_length"] == 2976


async def test_a_model_that_memory_cannot_hold_is_an_error_of_the_server(running: Running, add_model: Add) -> None:
    add_model()
    async with running(scheduler={"budget": Budget(lambda: 2000, lambda: 1 << 40, lambda pid: 0)}) as r:
        response = await r.post("/api/generate", {"model": "m", "prompt": "hi", "stream": False})
        assert response.status_code == 500 and "requires more system memory" in response.json()["error"]
        assert "LOCALLLM_MAX_MEMORY" in response.json()["hint"]
