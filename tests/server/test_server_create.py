"""/api/create: models of other models, of files, of conversions (by tests/fixtures/fake_maker.py), and refusals."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from localllm.modelfile import parse, read
from localllm.server import creation, lookup, making
from registry.errors import NotInSourceError
from registry.names import parse_name
from registry.progress import PULLING_MANIFEST, SUCCESS
from registry.store import Store

pytestmark = pytest.mark.anyio
Running = Callable[..., Any]
Add = Callable[..., None]

FAKE_MAKER = Path(__file__).parents[1] / "fixtures/fake_maker.py"


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """maker("copy:<path>"): what the makers of this test do; maker(): the jobs that they were given."""
    log = tmp_path / "maker.log"
    monkeypatch.setattr(making, "COMMAND", (sys.executable, str(FAKE_MAKER)))
    monkeypatch.setenv("FAKE_MAKER_LOG", str(log))

    def script(what: str = "") -> list[dict[str, Any]]:
        if what:
            monkeypatch.setenv("FAKE_MAKER", what)
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    return script


@pytest.fixture
def put(store: Store) -> Callable[[bytes], str]:
    """put(content): the digest of a blob with that content, in the store."""
    return lambda content: store.blobs.put(content)[0]


@pytest.fixture
def gguf(tiny_models: ModuleType, tmp_path: Path) -> Callable[..., bytes]:
    """gguf(tensor, key=text or number, …): the bytes of a GGUF with one tensor."""

    def make(tensor: str = "token_embd.weight", **texts: Any) -> bytes:
        tiny = tiny_models
        kinds = {str: tiny.STRING, int: tiny.U32}
        texts.setdefault("general.architecture", "llama")
        keys = [(key, kinds[type(value)], value) for key, value in texts.items()]
        path = tmp_path / "made.gguf"
        tiny.write_gguf(path, keys, [(tensor, tiny.np.ones((2, 32)))])
        return path.read_bytes()

    return make


async def statuses(r: Any, body: dict[str, Any]) -> list[str]:
    return [line.get("status", line) for line in await r.lines("/api/create", body)]


# ---- of another model


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
            "renderer": "r",
            "parser": "p",
            "requires": "v0.14.0",
        }
        lines = await r.lines("/api/create", body)
        assert [line["status"] for line in lines][-2:] == ["writing manifest", "success"]
        shown = (await r.post("/api/show", {"model": "child"})).json()
        assert shown["system"] == "new" and shown["license"] == "MIT\nApache"
        assert shown["messages"] == body["messages"]
        assert (shown["renderer"], shown["parser"], shown["requires"]) == ("r", "p", "0.14.0")
        assert shown["details"]["parent_model"] == "parent:latest"
        assert {line.split()[0]: line.split()[1] for line in shown["parameters"].splitlines()} == {
            "top_k": "3",
            "seed": "7",
            "stop": '"x"',
        }
        parent = (await r.post("/api/show", {"model": "parent"})).json()
        assert parent["system"] == "old"


async def test_every_stop_has_a_line_of_its_own(running: Running, add_model: Add) -> None:
    add_model("parent")
    async with running() as r:
        await r.lines("/api/create", {"model": "two", "from": "parent", "parameters": {"stop": ["aa", "bb"]}})
        lines = (await r.post("/api/show", {"model": "two"})).json()["modelfile"].splitlines()
        assert [line for line in lines if line.startswith("PARAMETER")] == ["PARAMETER stop aa", "PARAMETER stop bb"]


async def test_what_is_not_said_is_the_parents(running: Running, add_model: Add) -> None:
    add_model("parent", system="old", params={"top_k": 3}, template="{{ .Prompt }}", config={"renderer": "r"})
    async with running() as r:
        body = {"model": "child", "from": "parent", "stream": False, "system": "", "template": "", "messages": []}
        answer = await r.post("/api/create", body)
        assert answer.json() == {"status": "success"}
        parent, child = [(await r.post("/api/show", {"model": name})).json() for name in ("parent", "child")]
        for part in ("system", "parameters", "template", "model_info", "capabilities", "renderer"):
            assert child.get(part) == parent.get(part)


async def test_files_of_the_parent_are_inherited(
    running: Running, add_model: Add, store: Store, put: Any, gguf: Any
) -> None:
    adapter = put(gguf(**{"general.type": "adapter", "adapter.type": "lora"}))
    projector = put(gguf(**{"general.architecture": "clip"}))
    add_model("parent", adapters=[adapter], projectors=[projector], drafts=[put(gguf(x="draft"))])
    async with running() as r:
        assert (await statuses(r, {"model": "child", "from": "parent"}))[-1] == "success"
    parent, child = (store.resolve(parse_name(name)) for name in ("parent", "child"))
    for files in ("model_paths", "adapter_paths", "projector_paths", "draft_paths"):
        assert getattr(child, files) == getattr(parent, files) != ()
    assert {layer.from_model for layer in child.manifest.layers if layer.kind in ("model", "adapter")} == {
        "parent:latest"
    }
    (told,) = lookup.model_spec(child).adapters
    assert told == {"path": str(child.adapter_paths[0]), "digest": adapter[7:], "scale": 1.0}


async def test_a_parent_that_is_not_here_is_pulled(running: Running, add_model: Add) -> None:
    def pull(reference: str, cancel: Any, access: Any) -> Any:
        yield PULLING_MANIFEST
        if reference != "far:1b":
            raise NotInSourceError(reference)
        add_model(reference)
        yield SUCCESS

    async with running(pull=pull) as r:
        events = await statuses(r, {"model": "c", "from": "far:1b"})
        assert events[0] == "pulling manifest" and events.count("success") == 1 and events[-1] == "success"
        events = await statuses(r, {"model": "c", "from": "nobody"})
        assert events == ["pulling manifest", {"error": "pull model manifest: file does not exist"}]
        body = {"model": "c", "from": "nobody", "stream": False}
        answer = await r.post("/api/create", body)
        assert (answer.status_code, answer.json()) == (500, {"error": "pull model manifest: file does not exist"})


async def test_unknown_parameters_are_not_stored(running: Running, add_model: Add) -> None:
    add_model("parent", params={"top_k": 3, "of_another_program": 1})
    async with running() as r:
        body = {"model": "c", "from": "parent", "stream": False, "parameters": {"seed": 1, "temprature": 0.5}}
        answer = await r.post("/api/create", body)
        assert answer.status_code == 400
        assert answer.json() == {"error": "unknown parameter 'temprature'", "hint": "did you mean `temperature`?"}
        body["parameters"] = {"low_vram": True, "logit_bias": {"1": -1}}
        assert (await r.post("/api/create", body)).json() == {"status": "success"}


# ---- of files


async def test_a_model_of_a_gguf(running: Running, store: Store, put: Any, gguf_of: Any) -> None:
    digest = put(gguf_of("script", "{{ messages }}"))
    async with running() as r:
        for name in ("m.gguf", "sha256-0123"):
            events = await statuses(r, {"model": "m", "files": {name: digest}, "system": "s"})
            assert events[0] == "parsing GGUF" and events[1] == f"using existing layer {digest}"
            assert events[-2:] == ["writing manifest", "success"]
        shown = (await r.post("/api/show", {"model": "m"})).json()
        assert (shown["system"], shown["details"]["family"], shown["details"]["quantization_level"]) == (
            "s", "llama", "F32",
        )  # fmt: skip
        assert shown["details"]["parent_model"] == ""
    assert store.resolve(parse_name("m")).model_paths == (store.blobs.path(digest),)


async def test_split_ggufs_are_put_in_order(running: Running, store: Store, put: Any, gguf: Any) -> None:
    def part(i: int) -> str:
        return str(put(gguf(f"blk.{i}.w", **{"split.no": i, "split.count": 2, "split.tensors.count": 2})))

    parts = [part(0), part(1)]
    async with running() as r:
        events = await statuses(r, {"model": "m", "files": {"b.gguf": parts[1], "c.gguf": parts[0]}})
        assert events[-1] == "success"
        model = store.resolve(parse_name("m"))
        assert model.model_paths == tuple(map(store.blobs.path, parts))
        events = await statuses(r, {"model": "n", "files": {"b.gguf": parts[0]}})
        assert events[-1]["error"].startswith("b.gguf: ") and "part 1 of 2" in events[-1]["error"]


async def test_a_projector_among_the_files(running: Running, store: Store, put: Any, gguf: Any) -> None:
    files = {"mmproj.gguf": put(gguf(**{"general.architecture": "clip", "clip.x": 1})), "m.gguf": put(gguf())}
    async with running() as r:
        assert (await statuses(r, {"model": "m", "files": files}))[-1] == "success"
        shown = (await r.post("/api/show", {"model": "m"})).json()
        assert shown["projector_info"]["clip.x"] == 1 and shown["details"]["families"] == ["llama", "clip"]
        lines = shown["modelfile"].splitlines()
        assert [line.split()[0] for line in lines[4:]] == ["FROM", "FROM"]
        assert lines[4].endswith(files["m.gguf"][7:]) and lines[5].endswith(files["mmproj.gguf"][7:])
        assert (await statuses(r, {"model": "n", "from": "m", "files": {"p.gguf": files["mmproj.gguf"]}}))[
            -1
        ] == "success"


async def test_an_adapter(running: Running, store: Store, put: Any, gguf: Any, add_model: Add) -> None:
    add_model("base")
    lora = {"a.gguf": put(gguf(**{"general.type": "adapter", "adapter.type": "lora"}))}
    other = {"a.gguf": put(gguf(**{"general.type": "adapter", "general.architecture": "gemma2"}))}
    async with running() as r:
        events = await statuses(r, {"model": "m", "from": "base", "adapters": lora})
        assert events[0] == "parsing GGUF" and events[-1] == "success"
        assert store.resolve(parse_name("m")).adapter_paths == (store.blobs.path(lora["a.gguf"]),)
        modelfile = (await r.post("/api/show", {"model": "m"})).json()["modelfile"]
        assert f"\nADAPTER {store.blobs.path(lora['a.gguf'])}\n" in modelfile
        for adapters, error in (
            (other, 'the adapter is made for "gemma2", and the model is "llama"'),
            ({"a": put(gguf())}, "the adapter is no LoRA adapter: its general.type is not adapter"),
            ({**lora, "b.gguf": lora["a.gguf"]}, "only one adapter is currently supported"),
            ({"a.gguf": put(b"no GGUF")}, "supplied file was not in GGUF format"),
        ):
            answer = await r.post("/api/create", {"model": "x", "from": "base", "adapters": adapters, "stream": False})
            assert (answer.status_code, answer.json()["error"]) == (400, error)


async def test_a_draft(running: Running, store: Store, put: Any, gguf: Any, add_model: Add) -> None:
    add_model("base")
    draft = put(gguf())
    async with running() as r:
        assert (await statuses(r, {"model": "m", "from": "base", "draft_files": {"d.gguf": draft}}))[-1] == "success"
        assert store.resolve(parse_name("m")).draft_paths == (store.blobs.path(draft),)


# ---- what is made


SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


async def test_safetensors_are_converted_and_quantized(
    running: Running, store: Store, put: Any, gguf_of: Any, maker: Any, tmp_path: Path
) -> None:
    result = tmp_path / "converted.gguf"
    result.write_bytes(gguf_of("script", "{{ messages }}"))
    maker(f"copy:{result}")
    files = {"model.safetensors": put(SAFETENSORS), "config.json": put(b"{}"), "sub/x.json": put(b"1")}
    imatrix = put(b"matrix")
    async with running() as r:
        body = {"model": "m", "files": files, "quantize": "q4_k", "imatrix": imatrix}
        lines = await r.lines("/api/create", body)
        assert lines[:3] == [
            {"status": "converting model"},
            {"status": "converting model", "total": 10, "completed": 5},
            {"status": "converting model", "total": 10, "completed": 10},
        ]
        quantizing = {"status": "quantizing F32 model to Q4_K_M", "digest": "0" * 19}
        assert lines[3:6] == [
            {"status": "verifying conversion"},
            quantizing,
            {**quantizing, "total": 10, "completed": 5},
        ]
        assert lines[8]["status"].startswith("creating new layer sha256:") and lines[-1] == {"status": "success"}
    convert, quantize = maker()
    assert convert["files"] == {"config.json": "{}", "model.safetensors": SAFETENSORS.decode(), "sub/x.json": "1"}
    assert quantize["preset"] == "Q4_K_M" and quantize["imatrix"] == str(store.blobs.path(imatrix))
    assert quantize["sources"] == [str(store.resolve(parse_name("m")).model_paths[0])]
    assert list(store.blobs.directory.glob(".staging*")) == []


async def test_an_adapter_is_converted_for_its_base(
    running: Running, store: Store, put: Any, gguf: Any, add_model: Add, maker: Any, tmp_path: Path
) -> None:
    add_model("base")
    result = tmp_path / "converted.gguf"
    result.write_bytes(gguf(**{"general.type": "adapter"}))
    maker(f"copy:{result}")
    files = {"adapter_model.safetensors": put(SAFETENSORS), "adapter_config.json": put(b"{}")}
    async with running() as r:
        events = await statuses(r, {"model": "m", "from": "base", "adapters": files})
        assert events[0] == "converting adapter" and events[-1] == "success"
    (job,) = maker()
    assert job["base"] == str(store.resolve(parse_name("base")).model_paths[0])
    assert len(store.resolve(parse_name("m")).adapter_paths) == 1


async def test_what_is_of_the_type_already_stays(running: Running, add_model: Add, maker: Any) -> None:
    add_model("base")
    async with running() as r:
        assert (await statuses(r, {"model": "m", "from": "base", "quantize": "F32"}))[-1] == "success"
    assert maker() == []


@pytest.mark.parametrize(
    ("what", "error", "status"),
    [
        ("refuse", {"error": 'unsupported architecture "X"', "hint": "another one"}, 400),
        (
            "crash",
            {
                "error": "conversion failed: the process that converts ended unexpectedly (exit status 3)",
                "hint": "Traceback / ValueError: of a test",
            },
            500,
        ),
    ],
)
async def test_a_conversion_that_fails_leaves_nothing(
    running: Running, store: Store, add_model: Add, maker: Any, what: str, error: dict[str, str], status: int
) -> None:
    add_model("base")
    maker(what)
    before = {path.name for path in store.blobs.directory.iterdir()}
    async with running() as r:
        lines = await r.lines("/api/create", {"model": "m", "from": "base", "quantize": "Q8_0"})
        assert lines[-1] == error
        answer = await r.post("/api/create", {"model": "m", "from": "base", "quantize": "Q8_0", "stream": False})
        assert (answer.status_code, answer.json()) == (status, error)
    assert {path.name for path in store.blobs.directory.iterdir()} == before
    assert store.find(parse_name("m")) is None


async def test_a_client_that_goes_away_ends_the_maker(
    running: Running, store: Store, add_model: Add, maker: Any, until: Any
) -> None:
    add_model("base")
    maker("hang")
    before = {path.name for path in store.blobs.directory.iterdir()}
    async with running() as r:
        body = {"model": "m", "from": "base", "quantize": "Q8_0"}
        request = asyncio.create_task(r.post("/api/create", body))
        await until(maker)
        (job,) = maker()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await until(lambda: not psutil.pid_exists(job["pid"]))
        await until(lambda: {path.name for path in store.blobs.directory.iterdir()} == before)
    assert store.find(parse_name("m")) is None


async def test_a_maker_whose_result_is_no_gguf(
    running: Running, store: Store, add_model: Add, maker: Any, tmp_path: Path
) -> None:
    add_model("base")
    (tmp_path / "bad").write_bytes(b"GGU")
    maker(f"copy:{tmp_path / 'bad'}")
    async with running() as r:
        answer = await r.post("/api/create", {"model": "m", "from": "base", "quantize": "Q8_0", "stream": False})
        assert answer.status_code == 500 and "truncated GGUF" in answer.json()["error"]
    assert list(store.blobs.directory.glob(".staging*")) == []


async def test_a_client_that_goes_away_while_files_are_laid_out(
    running: Running, store: Store, put: Any, maker: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(blob: Path, path: Path) -> None:
        begun.set()
        go_on.wait(10)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"late")

    monkeypatch.setattr(creation, "_link", slow)
    files = {"model.safetensors": put(b"x"), "config.json": put(b"{}")}
    async with running() as r:
        request = asyncio.create_task(r.post("/api/create", {"model": "m", "files": files}))
        await until(begun.is_set)
        request.cancel()
        await asyncio.sleep(0.2)
        go_on.set()
        await asyncio.gather(request, return_exceptions=True)
    assert list(store.blobs.directory.glob(".staging*")) == []


@pytest.mark.parametrize("name", ["a" * 256, "/".join("a" * 9), "é" * 128])
async def test_names_of_files_that_no_folder_can_have(running: Running, put: Any, name: str) -> None:
    async with running() as r:
        answer = await r.post("/api/create", {"model": "m", "files": {name: put(b"x")}})
        assert (answer.status_code, answer.json()["error"]) == (400, "file path must be relative")


async def test_a_file_that_is_a_folder_as_well(running: Running, put: Any) -> None:
    async with running() as r:
        files = {"a.safetensors": put(b"x"), "a.safetensors/b.json": put(b"{}")}
        answer = await r.post("/api/create", {"model": "m", "files": files})
        assert (answer.status_code, answer.json()["error"]) == (400, '"a.safetensors" cannot be a file and a folder')


# ---- refusals

NOWHERE = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"model": "c"}, 400, "neither 'from' or 'files' was specified"),
        ({"model": "a b", "from": "parent"}, 400, "invalid model name"),
        (
            {"model": "c", "from": "parent", "template": "{{ .Prompt"},
            400,
            "template error: template: :1: unclosed action",
        ),
        (
            {"model": "c", "from": "parent", "quantize": "Q9_X"},
            400,
            "unsupported quantization type Q9_X - supported types are ",
        ),
        ({"model": "c", "from": "parent", "imatrix": NOWHERE}, 400, "imatrix is for quantizing: quantize is missing"),
        ({"model": "c", "files": {"a": "sha256:0"}}, 400, "invalid digest format"),
        ({"model": "c", "files": {"/a": NOWHERE}}, 400, "file path must be relative"),
        ({"model": "c", "files": {"a/../../b": NOWHERE}}, 400, "file path must be relative"),
        ({"model": "c", "files": {"C:\\b": NOWHERE}}, 400, "file path must be relative"),
        ({"model": "c", "files": {"": NOWHERE}}, 400, "file path must be relative"),
        ({"model": "a b", "files": {"/a": NOWHERE}}, 400, "file path must be relative"),
        ({"model": "c", "from": "parent", "adapters": {"/a": NOWHERE}}, 400, "file path must be relative"),
        ({"model": "c", "from": "parent", "draft_files": {"a": ""}}, 400, "invalid digest format"),
        ({"model": "c", "files": {}}, 400, "no files provided to convert"),
        ({"model": "c", "files": {"a.gguf": NOWHERE}}, 400, f'blob "{NOWHERE}" of "a.gguf" does not exist'),
        ({"model": "c", "from": "parent", "parameters": {"top_k": "x"}}, 400, 'option "top_k" must be of type integer'),
        ({"model": "c", "from": "parent", "requires": "x"}, 400, "requires must be a valid semver (e.g. 0.14.0)"),
        ({"model": "c", "from": "parent", "remote_host": "x"}, 400, "remote_host is not supported"),
        (
            {"model": "c", "from": "parent", "messages": [{"role": "tool", "content": "x"}]},
            400,
            'message role must be one of "system", "user", or "assistant"',
        ),
        (
            {"model": "c", "files": {"a": 1}},
            400,
            "json: cannot unmarshal number into Go struct field CreateRequest.files of type string",
        ),
        ({"model": "c", "from": "m:cloud"}, 403, "ollama cloud is disabled: remote model is unavailable"),
    ],
)
async def test_refusals(running: Running, add_model: Add, body: dict[str, Any], status: int, error: str) -> None:
    add_model("parent")
    async with running() as r:
        answer = await r.post("/api/create", {**body, "stream": False})
        assert answer.status_code == status and answer.json()["error"].startswith(error)
        assert len((await r.http.get("/api/tags")).json()["models"]) == 1


async def test_files_that_are_no_models(running: Running, put: Any, gguf: Any, add_model: Add, maker: Any) -> None:
    add_model("parent")
    text, model = put(b"text"), put(gguf())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"files": {"a.txt": text}}, "unknown type"),
        ({"files": {"pytorch_model.bin": text}}, "unknown type"),
        ({"files": {"a.gguf": text}}, "supplied file was not in GGUF format"),
        ({"files": {"a.gguf": put(gguf()[:100])}}, "a.gguf: truncated or corrupt GGUF file"),
        ({"files": {"a.gguf": model, "b.gguf": put(gguf(x="y"))}}, "several models were given: a.gguf, b.gguf"),
        ({"files": {"a.gguf": put(gguf(**{"general.type": "adapter"}))}}, "the files hold no model"),
        ({"files": {"a.gguf": model}, "from": "parent"}, "both 'from' and 'files' bring a model"),
        (
            {"files": {"a.gguf": put(gguf(**{"general.file_type": 2}))}, "quantize": "Q8_0"},
            "quantization is only supported for F16, BF16 and F32 models",
        ),
    ]
    async with running() as r:
        for body, error in cases:
            answer = await r.post("/api/create", {"model": "c", "stream": False, **body})
            assert answer.status_code == 400 and answer.json()["error"].startswith(error), body
        assert len((await r.http.get("/api/tags")).json()["models"]) == 1
    assert maker() == []


async def test_files_of_this_machine_are_not_for_others(running: Running) -> None:
    async with running() as r:
        body = {"model": "c", "from": "file:/etc/x.gguf", "stream": False}
        answer = await r.http.post("/api/create", json=body, headers={"X-Forwarded-For": "192.0.2.7"})
        assert answer.status_code == 403


# ---- templates

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


# ---- what show prints can be created again


NASTY = [
    "plain",
    " blanks ",
    '"',
    '""',
    '"""',
    'a"""\nb',
    '"quoted"',
    'He said "go", then\n  left.  ',
    "\r\n",
    "one\u200dtwo\u00a0three\f",
    "# no comment\nFROM x",
    "\\",
    "'",
    "\ttab",
    "\u2028",
    "\ud800".encode("utf-8", "replace").decode(),
]


@pytest.mark.parametrize("text", NASTY)
async def test_what_show_prints_is_created_again(running: Running, add_model: Add, text: str) -> None:
    params = {"stop": [text, "x"], "temperature": 0.25, "top_k": 3, "ignore_eos": True, "logit_bias": {"1": False}}
    call = {"id": "", "function": {"index": 0, "name": text, "arguments": {}}}
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "ok", "tool_calls": [call]}]
    add_model("m-1", template=text, system=text, licenses=[text, text], params=params, messages=messages)
    async with running() as r:
        first = (await r.post("/api/show", {"model": "m-1"})).json()
        made = read(parse(first["modelfile"]))
        body = {
            "model": "m-2",
            "from": "m-1",
            "template": made.template,
            "system": made.system,
            "stream": False,
            "license": made.licenses,
            "parameters": made.parameters,
            "messages": made.messages,
        }
        (path,) = made.sources
        body["files"] = {"m.gguf": f"sha256:{path[-64:]}"}
        del body["from"]
        assert (await r.post("/api/create", body)).json() == {"status": "success"}
        second = (await r.post("/api/show", {"model": "m-2"})).json()
    for key in ("template", "system", "license", "parameters", "messages"):
        assert second[key] == first[key], key
    assert second["modelfile"].replace("m-2", "m-1") == first["modelfile"]
    assert made.parameters == params and made.messages == messages and made.licenses == [text, text]


async def test_the_modelfile_of_a_foreign_model_says_what_it_cannot(running: Running, add_model: Add) -> None:
    messages = [{"role": "tool", "content": "t"}, {"role": "assistant", "content": "a", "thinking": "b\n"}]
    params = {"of_another_program": 1, "stop": "x", "seed": None, "temperature": 1.0, "low_vram": True}
    add_model("m", params=params, messages=messages, config={"requires": "0.14.0"})
    async with running() as r:
        lines = (await r.post("/api/show", {"model": "m"})).json()["modelfile"].splitlines()
    assert lines[3:6] == [
        "# not known here: of_another_program 1",
        '# not known here: message {"role": "tool", "content": "t"}',
        "",
    ]
    assert lines[7:] == [
        "REQUIRES 0.14.0",
        "PARAMETER stop x",
        "PARAMETER temperature 1",
        "PARAMETER low_vram true",
        '# localllm:exactly {"content": "a", "thinking": "b\\n"}',
        "MESSAGE assistant a",
    ]
