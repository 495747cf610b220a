"""`create`: what a Modelfile names is found, brought to the server, and asked for."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
CONTENT = b"GGUF of a test"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


DIGEST = digest_of(CONTENT)


@pytest.fixture
def blobs(daemon: Any) -> dict[str, bytes | str]:
    """What the daemon has: bytes that were sent, and paths that were named."""
    kept: dict[str, bytes | str] = {}
    daemon.blobs = kept
    daemon.replies["/api/create"] = 200, [{"status": "parsing GGUF"}, {"status": "success"}]
    return kept


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "proj"
    for name in ("models", "sub"):
        (folder / name).mkdir(parents=True)
    (folder / "models/my model.gguf").write_bytes(CONTENT)
    (folder / "sub/m.gguf").write_bytes(CONTENT)
    return folder


def test_everything_that_a_modelfile_says(daemon: Any, blobs: Any, cli: Cli, project: Path) -> None:
    (project / "lora.gguf").write_bytes(b"GGUF lora")
    (project / "draft.gguf").write_bytes(b"GGUF draft")
    (project / "matrix.dat").write_bytes(b"matrix")
    (project / "Modelfile").write_text(
        "FROM sub/m.gguf\nADAPTER lora.gguf\nDRAFT draft.gguf\nTEMPLATE t\nSYSTEM s\nRENDERER r\n"
        "PARSER p\nREQUIRES v0.14\n"
        "LICENSE a\nLICENSE b\nPARAMETER stop x\nPARAMETER stop y\nPARAMETER top_k 3\nPARAMETER low_vram true\n"
        "MESSAGE user hi\n"
    )
    result = cli(
        *("create", "m", "-f", str(project / "Modelfile"), "-q", "q4_k_m", "--draft-quantize", "Q8_0"),
        *("--imatrix", str(project / "matrix.dat")),
    )
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines()[0] == "warning: parameter low_vram is deprecated"
    assert result.err.splitlines()[-2:] == ["parsing GGUF", "success"]
    assert daemon.bodies("/api/create") == [
        {
            "model": "m",
            "files": {"m.gguf": DIGEST},
            "adapters": {"lora.gguf": digest_of(b"GGUF lora")},
            "draft_files": {"draft.gguf": digest_of(b"GGUF draft")},
            "imatrix": digest_of(b"matrix"),
            "quantize": "q4_k_m",
            "draft_quantize": "Q8_0",
            "template": "t",
            "system": "s",
            "renderer": "r",
            "parser": "p",
            "requires": "0.14",
            "license": ["a", "b"],
            "parameters": {"stop": ["x", "y"], "top_k": 3, "low_vram": True},
            "messages": [{"role": "user", "content": "hi"}],
        }
    ]
    assert set(blobs.values()) == {CONTENT, b"GGUF lora", b"GGUF draft", b"matrix"}


def test_progress_and_files_that_are_there(daemon: Any, blobs: Any, cli: Cli, project: Path) -> None:
    (project / "Modelfile").write_text("FROM sub/m.gguf")
    first, second = [cli("create", "m", "-f", str(project / "Modelfile")).err.splitlines() for _ in range(2)]
    assert first == ["gathering model components", f"copying file {DIGEST} (14 B)", "parsing GGUF", "success"]
    assert second == ["gathering model components", "parsing GGUF", "success"]
    asked = [method for method, path, _ in daemon.requests if path == f"/api/blobs/{DIGEST}"]
    assert asked == ["HEAD", "POST", "HEAD"]


def test_a_daemon_of_ours_is_only_told_the_path(daemon: Any, blobs: Any, cli: Cli, project: Path) -> None:
    daemon.replies["/api/version"] = 200, [{"version": "1", "localllm": "1"}]
    (project / "Modelfile").write_text('FROM "models/my model.gguf"')
    assert cli("create", "m", "-f", str(project / "Modelfile")).code == 0
    assert blobs == {DIGEST: str(project / "models/my%20model.gguf")}


def test_a_daemon_that_cannot_share_gets_the_bytes(daemon: Any, blobs: Any, cli: Cli, project: Path) -> None:
    daemon.replies["/api/version"] = 200, [{"version": "1", "localllm": "1"}]
    daemon.shares = False
    (project / "Modelfile").write_text("FROM sub/m.gguf")
    assert cli("create", "m", "-f", str(project / "Modelfile")).code == 0
    assert blobs == {DIGEST: CONTENT}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('"../models/my model.gguf"', "my model.gguf"),
        ("../models/my model.gguf", "my model.gguf"),
        ("../models/my model.gguf \t ", "my model.gguf"),
        ("m.gguf", "m.gguf"),
        ("{home}/m.gguf", "m.gguf"),
        ("{absolute}/m.gguf", "m.gguf"),
        (".", "m.gguf"),
    ],
)
@pytest.mark.parametrize("place", ["", "sub", ".."])
def test_paths_are_relative_to_the_modelfile(
    daemon: Any,
    blobs: Any,
    cli: Cli,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    name: str,
    place: str,
) -> None:
    monkeypatch.setenv("HOME", str(project.parent))
    source = source.format(home="~/proj/sub", absolute=project / "sub")
    (project / "sub/Modelfile").write_text(f"FROM {source}\n")
    monkeypatch.chdir(project / place)
    file = os.path.relpath(project / "sub/Modelfile")
    assert cli("create", "m", "-f", file).code == 0
    assert daemon.bodies("/api/create")[0]["files"] == {name: DIGEST}


@pytest.mark.parametrize(
    "source", ["base:v1  ", "hf.co/a/b:c.gguf", "https://example.org/x.gguf", "host:5000/n/m:t", "llama3.2", "pip:x"]
)
def test_names_are_the_servers_to_find(daemon: Any, blobs: Any, cli: Cli, tmp_path: Path, source: str) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {source}\nSYSTEM s")
    assert cli("create", "m", "-f", str(tmp_path / "Modelfile")).code == 0
    assert daemon.bodies("/api/create") == [{"model": "m", "from": source.strip(), "system": "s"}]


@pytest.mark.parametrize(
    "source", ["./missing.gguf", "missing.GGUF", "~/missing", "/no/missing", "../missing", "C:\\missing"]
)
def test_what_looks_like_a_path_is_never_asked_for(daemon: Any, cli: Cli, tmp_path: Path, source: str) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {source}\n")
    result = cli("create", "m", "-f", str(tmp_path / "Modelfile"))
    assert result.code == 1 and "does not exist" in result.err and "missing" in result.err
    assert daemon.requests == []


@pytest.mark.skipif(os.name == "nt", reason="devices of POSIX")
@pytest.mark.parametrize("keyword", ["FROM", "FROM m\nADAPTER"])
def test_what_has_no_end_is_not_read(daemon: Any, cli: Cli, tmp_path: Path, keyword: str) -> None:
    (tmp_path / "Modelfile").write_text(f"{keyword} /dev/zero\n")
    result = cli("create", "m", "-f", str(tmp_path / "Modelfile"))
    assert result.code == 1 and '"/dev/zero" is no file and no folder' in result.err
    assert daemon.requests == []


@pytest.mark.skipif(os.name == "nt", reason="devices of POSIX")
def test_a_modelfile_has_an_end(daemon: Any, cli: Cli) -> None:
    result = cli("create", "m", "-f", "/dev/zero")
    assert result.code == 1 and '"/dev/zero" is longer than 16 MiB' in result.err
    result = cli("create", "m", "-f", "-", stdin=b"#" * ((16 << 20) + 1))
    assert result.code == 1 and "standard input is longer than 16 MiB" in result.err
    assert daemon.requests == []


def test_a_family(daemon: Any, blobs: Any, cli: Cli) -> None:
    assert cli("create", "m", "-f", "llama3.1").code == 0
    (body,) = daemon.bodies("/api/create")
    assert (body["model"], body["from"]) == ("m", "llama3.1") and "<|eot_id|>" in body["parameters"]["stop"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("PARAMETR x 1", '(line 1): command must be one of "from", '),
        (
            "FROM m\nPARAMETER temprature 1",
            "unknown parameter 'temprature'\nhint: in line 2: did you mean `temperature`?",
        ),
        ("SYSTEM x", "no FROM line"),
        ("FROM a\nFROM b", "FROM names several models: a, b"),
        ("FROM a\nADAPTER b", '"{folder}/b" does not exist'),
        ("FROM .", "no Modelfile or safetensors files found"),
    ],
)
def test_modelfiles_that_cannot_be_read(daemon: Any, cli: Cli, tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "Modelfile").write_text(text)
    result = cli("create", "m", "-f", str(tmp_path / "Modelfile"))
    assert result.code == 1 and result.err.startswith(f"Error: {error.format(folder=tmp_path)}")
    assert daemon.requests == []


def test_without_a_modelfile_the_folder_is_taken(
    daemon: Any, blobs: Any, cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "sub")
    assert cli("create", "m").code == 0
    assert daemon.bodies("/api/create") == [{"model": "m", "files": {"m.gguf": DIGEST}}]
    result = cli("create", "m", "-f", "nowhere")
    assert (result.code, result.err) == (1, 'Error: specified Modelfile wasn\'t found: "nowhere"\n')
    assert cli("create", "m", "-f", "-", stdin=b"FROM ./m.gguf\n").code == 0


def test_a_folder_of_safetensors(daemon: Any, blobs: Any, cli: Cli, tmp_path: Path) -> None:
    weights = (2).to_bytes(8, "little") + b"{}"
    folder = tmp_path / "hf"
    (folder / "2_Dense").mkdir(parents=True)
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "2_Dense/model.safetensors"):
        (folder / name).write_bytes(weights)
    for name in ("config.json", "tokenizer.json", "2_Dense/config.json", "README.md", "tokenizer.model", "x.gguf"):
        (folder / name).write_text("{}")
    (tmp_path / "Modelfile").write_text("FROM hf")
    assert cli("create", "m", "-f", str(tmp_path / "Modelfile")).code == 0
    assert sorted(daemon.bodies("/api/create")[0]["files"]) == [
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "tokenizer.json",
        "tokenizer.model",
    ]


def test_all_parts_of_a_split_model(daemon: Any, blobs: Any, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM x-00002-of-00002.gguf")
    (tmp_path / "x-00002-of-00002.gguf").write_bytes(b"GGUF 2")
    result = cli("create", "m", "-f", str(tmp_path / "Modelfile"))
    assert result.code == 1 and "x-00001-of-00002.gguf" in result.err
    (tmp_path / "x-00001-of-00002.gguf").write_bytes(b"GGUF 1")
    assert cli("create", "m", "-f", str(tmp_path / "Modelfile")).code == 0
    assert list(daemon.bodies("/api/create")[0]["files"]) == ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]


def test_encodings_and_line_ends(daemon: Any, blobs: Any, cli: Cli, project: Path) -> None:
    text = 'FROM ./m.gguf\nPARAMETER num_ctx 512\nPARAMETER stop "###"\nSYSTEM You are a tide table.\n'
    files = [
        b"\xff\xfe" + text.encode("utf-16-le"),
        b"\xfe\xff" + text.encode("utf-16-be"),
        b"\xef\xbb\xbf" + text.encode(),
        text.replace("\n", "\r\n").encode(),
    ]
    for content in files:
        (project / "sub/Modelfile").write_bytes(content)
        assert cli("create", "m", "-f", str(project / "sub/Modelfile")).code == 0
    assert daemon.bodies("/api/create") == 4 * [
        {
            "model": "m",
            "files": {"m.gguf": DIGEST},
            "system": "You are a tide table.",
            "parameters": {"num_ctx": 512, "stop": ["###"]},
        }
    ]


def test_errors_of_the_server(daemon: Any, blobs: Any, cli: Cli, project: Path) -> None:
    daemon.replies["/api/create"] = 200, [{"status": "parsing GGUF"}, {"error": "unknown type", "hint": "another"}]
    (project / "Modelfile").write_text("FROM sub/m.gguf")
    result = cli("create", "m", "-f", str(project / "Modelfile"))
    assert result.code == 1 and result.err.endswith("Error: unknown type\nhint: another\n")
