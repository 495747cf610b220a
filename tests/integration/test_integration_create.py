"""Models made with the command line against the real daemon: what Modelfiles say is what models then do."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
GO = "{{ range .Messages }}<|{{ .Role }}|>{{ .Content }}<|end|>{{ end }}<|assistant|>"
Localllm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def localllm(server: Any, serve_env: dict[str, str], tmp_path: Path) -> Localllm:
    """localllm("create", …, cwd=…): the command line, as a client of `server`."""
    env = {**serve_env, "LOCALLLM_HOST": server.url, "LOCALLLM_MODELS": str(server.models), "HOME": str(tmp_path)}

    def run(*arguments: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "localllm", *arguments]
        return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=200)

    return run


@pytest.fixture
def create(localllm: Localllm, tmp_path: Path) -> Callable[..., str]:
    """create(name, text or bytes of a Modelfile, flags…): the name; the Modelfile lies in a folder with `m.gguf`."""

    def make(name: str, modelfile: str | bytes, *flags: str, cwd: Path = tmp_path) -> str:
        path = tmp_path / "Modelfile"
        path.write_bytes(modelfile if isinstance(modelfile, bytes) else modelfile.encode())
        done = localllm("create", name, "-f", str(path), *flags, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return name

    return make


def shown(server: Any, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = server.http.post("/api/show", json={"model": name}).json()
    return answer


def body_of(modelfile: str) -> str:
    """A Modelfile without the comments that name its model."""
    return modelfile.split("\n\n", 1)[1]


def test_encodings_and_line_ends(server: Any, create: Any, gguf: Any, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf("random").read_bytes())
    text = 'FROM ./m.gguf\nPARAMETER num_ctx 512\nPARAMETER stop "###"\nSYSTEM You are a tide table.\n'
    files = [
        b"\xff\xfe" + text.encode("utf-16-le"),
        b"\xfe\xff" + text.encode("utf-16-be"),
        b"\xef\xbb\xbf" + text.encode(),
        text.replace("\n", "\r\n").encode(),
    ]
    answers = [shown(server, create(f"enc-{i}", content)) for i, content in enumerate(files)]
    for answer in answers:
        assert answer["system"] == "You are a tide table."
        assert sorted(line.split(None, 1) for line in answer["parameters"].splitlines()) == [
            ["num_ctx", "512"],
            ["stop", '"###"'],
        ]
        assert answer["template"] == answers[0]["template"] and body_of(answer["modelfile"]) == body_of(
            answers[0]["modelfile"]
        )


def test_what_show_prints_can_be_created_again(
    server: Any, create: Any, localllm: Any, gguf: Any, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf("random").read_bytes())
    create(
        "round-1",
        f'FROM ./m.gguf\nTEMPLATE """{GO}"""\nSYSTEM """He said "go", then\n  left.  """\n'
        'LICENSE """Line one\n"quoted" line two"""\nMESSAGE user """write\na limerick"""\n'
        'MESSAGE assistant """There once was "Pete",\n# not a comment\nFROM nowhere"""\n'
        'PARAMETER stop " END "\nPARAMETER stop "\\"\nPARAMETER temperature 0.25\n',
    )
    first = localllm("show", "--modelfile", "round-1").stdout
    create("round-2", first)
    assert body_of(localllm("show", "--modelfile", "round-2").stdout) == body_of(first)
    for name in ("round-1", "round-2"):
        answer = shown(server, name)
        assert answer["system"] == 'He said "go", then\n  left.  ' and answer["template"] == GO
        assert answer["license"] == 'Line one\n"quoted" line two'
        assert answer["messages"] == [
            {"role": "user", "content": "write\na limerick"},
            {"role": "assistant", "content": 'There once was "Pete",\n# not a comment\nFROM nowhere'},
        ]
        values = [json.loads(line.split(None, 1)[1]) for line in answer["parameters"].splitlines()]
        assert values == [" END ", "\\", 0.25]
    lines = first.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("LICENSE", "MESSAGE", "PARAMETER"))] == [
        *3 * ["PARAMETER"],
        "LICENSE",
        *2 * ["MESSAGE"],
    ]


def test_stops_in_every_form(server: Any, create: Any, tiny_models: ModuleType, tmp_path: Path) -> None:
    tiny_models.script_model(tmp_path / "m.gguf", ["hey", "<|im_end|>", "tail"])
    for written, stop in (
        ('stop "<|im_end|>"', "<|im_end|>"),
        ("stop <|im_end|>", "<|im_end|>"),
        ('stop "### User: "', "### User: "),
        ('stop """### User:"""', "### User:"),
        ("stop '### U'", "'### U'"),
    ):
        create("last", f"FROM ./m.gguf\nPARAMETER {written}")
        assert json.loads(shown(server, "last")["parameters"].split(None, 1)[1]) == stop
        if stop == "<|im_end|>":
            messages = [{"role": "user", "content": "x"}]
            answer = server.post("/api/chat", {"model": "last", "messages": messages, "options": {"temperature": 0}})
            assert (answer["message"]["content"], answer["done_reason"]) == ("hey", "stop")
    create("last", "FROM ./m.gguf\nPARAMETER num_ctx 128")
    assert ["num_ctx", "128"] in [line.split() for line in shown(server, "last")["parameters"].splitlines()]
    server.post("/api/generate", {"model": "last", "keep_alive": 0})


def test_files_are_shared_and_not_copied(server: Any, create: Any, gguf: Any, tmp_path: Path) -> None:
    path = tmp_path / "my model.gguf"
    path.write_bytes(gguf("other").read_bytes())
    (tmp_path / "sub").mkdir()
    found = set()
    for source in ('"./my model.gguf"', "./my model.gguf \t", "my model.gguf", str(path)):
        for place in (tmp_path, tmp_path / "sub", Path("/")):
            create("place", f"FROM {source}\n", cwd=place)
            found.add(next(m["digest"] for m in server.http.get("/api/tags").json()["models"] if "place" in m["name"]))
    assert len(found) == 1
    blob = server.models / "blobs" / f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"
    # A hard link, where blocks cannot be shared; both lie in one folder of temporary files.
    assert os.stat(blob).st_nlink == 2 or _clones_files(path)


def _clones_files(path: Path) -> bool:
    command = ["cp", "--reflink=always", str(path), f"{path}.clone"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_path_at_which_nothing_is(localllm: Any, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM ./missing.gguf\n")
    done = localllm("create", "x", "-f", "Modelfile")
    assert done.returncode == 1 and "missing.gguf" in done.stderr and "pulling" not in done.stderr


def test_a_quantized_model_answers(server: Any, create: Any, tiny_models: ModuleType, tmp_path: Path) -> None:
    tiny_models.script_model(tmp_path / "m.gguf", ["Once", " upon", " a", " time"])
    create("small", f'FROM ./m.gguf\nTEMPLATE """{GO}"""\n', "-q", "q8_0")
    answer = shown(server, "small")
    assert answer["details"]["quantization_level"] == "Q8_0"
    assert {tensor["type"] for tensor in answer["tensors"] if len(tensor["shape"]) > 1} == {"Q8_0"}
    chat = {"model": "small", "messages": [{"role": "user", "content": "x"}], "options": {"temperature": 0}}
    assert server.post("/api/chat", chat)["message"]["content"] == "Once upon a time"
    error = server.refused("/api/create", {"model": "x", "from": "small", "quantize": "Q4_0"}, 400)
    assert error == "quantization is only supported for F16, BF16 and F32 models"
    server.post("/api/generate", {"model": "small", "keep_alive": 0})


def test_a_folder_of_safetensors_and_an_adapter_for_it(server: Any, create: Any, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    models, tokenizers = (_fixture(name) for name in ("hf_models", "hf_tokenizers"))
    folder = models.make("llama", tmp_path / "hf", "F32")
    config = json.loads((folder / "config.json").read_text())
    tokenizers.write(models.models()["llama"]["tokenizer"], config["vocab_size"], folder)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    n_out, n_in = weights[name].shape
    (tmp_path / "lora").mkdir()
    stem = f"base_model.model.{name.removesuffix('.weight')}"
    lora = {f"{stem}.lora_A.weight": np.ones((2, n_in), "f4"), f"{stem}.lora_B.weight": np.ones((n_out, 2), "f4")}
    save_file(lora, tmp_path / "lora/adapter_model.safetensors")
    (tmp_path / "lora/adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')

    create("hf-base", "FROM ./hf\n", "-q", "f16")
    create("hf-lora", "FROM hf-base\nADAPTER ./lora\n")
    answer = shown(server, "hf-lora")
    assert answer["details"]["quantization_level"] == "F16" and answer["details"]["parent_model"] == "hf-base:latest"
    assert "\nADAPTER " in answer["modelfile"]
    body = {"prompt": "a", "raw": True, "options": {"temperature": 0, "num_predict": 4}}
    plain, adapted = (server.post("/api/generate", {"model": model, **body}) for model in ("hf-base", "hf-lora"))
    assert plain["eval_count"] > 0 and adapted["eval_count"] > 0
    for model in ("hf-base", "hf-lora"):
        server.post("/api/generate", {"model": model, "keep_alive": 0})


def _fixture(stem: str) -> Any:
    path = Path(__file__).parents[1] / f"fixtures/{stem}.py"
    spec = importlib.util.spec_from_file_location(f"localllm_test_{stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_store_made_by_hand(start_server: Any, gguf: Any, tmp_path: Path) -> None:
    """As Ollama lays it out, with the bytes that it writes."""
    models = tmp_path / "models"
    (models / "blobs").mkdir(parents=True)

    def blob(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (models / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"mediaType": f"application/vnd.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    config = {"model_format": "gguf", "model_family": "llama", "model_families": ["llama"], "model_type": "612K",
              "file_type": "F32", "architecture": "amd64", "os": "linux",
              "rootfs": {"type": "layers", "diff_ids": []}}  # fmt: skip
    layers = [
        blob("ollama.image.model", gguf("story").read_bytes()),
        blob("ollama.image.template", GO.encode()),
        blob("ollama.image.system", b"You are a test."),
        blob("ollama.image.params", b'{"stop":["!"],"temperature":0}'),
        blob("ollama.image.license", b"MIT"),
    ]
    document = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
                "config": blob("docker.container.image.v1+json", json.dumps(config).encode()),
                "layers": layers}  # fmt: skip
    manifest = models / "manifests/registry.ollama.ai/library/by-hand/1b"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(json.dumps(document, separators=(",", ":")).encode())
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}

    server = start_server(models=models)
    (model,) = server.http.get("/api/tags").json()["models"]
    assert (model["name"], model["digest"]) == ("by-hand:1b", hashlib.sha256(manifest.read_bytes()).hexdigest())
    answer = shown(server, "BY-HAND:1b")
    assert (answer["system"], answer["license"], answer["template"]) == ("You are a test.", "MIT", GO)
    chat = {"model": "by-hand:1b", "messages": [{"role": "user", "content": "x"}]}
    assert server.post("/api/chat", chat)["message"]["content"] == "Once upon a time"
    after = {path: path.read_bytes() for path in models.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert after == before
