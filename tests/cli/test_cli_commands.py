"""The commands other than `run`: what they print, what they send, how they fail."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import localllm
from localllm import env

Cli = Callable[..., Any]
DIGEST = "0123456789abcdef" * 4


def moment(**ago: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(**ago)).isoformat().replace("+00:00", "Z")


def columns(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line) for line in text.splitlines()]


@pytest.fixture
def store(daemon: Any) -> Any:
    daemon.replies["/api/tags"] = (
        200,
        [
            {
                "models": [
                    {
                        "name": "Llama3.2:latest",
                        "digest": DIGEST,
                        "size": 2_019_393_189,
                        "modified_at": moment(days=2.1),
                    },
                    {
                        "name": "smollm2:135m",
                        "digest": "f" * 64,
                        "size": 270_898_672,
                        "modified_at": moment(seconds=90),
                    },
                ]
            }
        ],
    )
    return daemon


@pytest.mark.parametrize("command", ["list", "ls"])
def test_list(store: Any, cli: Cli, command: str) -> None:
    result = cli(command)
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "NAME               ID              SIZE      MODIFIED\n"
        "Llama3.2:latest    0123456789ab    2.0 GB    2 days ago\n"
        "smollm2:135m       ffffffffffff    270 MB    About a minute ago\n"
    )


def test_list_filters_by_prefix_in_any_letter_case(store: Any, cli: Cli) -> None:
    assert [row[0] for row in columns(cli("list", "llama").out)] == ["NAME", "Llama3.2:latest"]


def test_list_of_nothing_is_the_header(daemon: Any, cli: Cli) -> None:
    assert cli("list").out == "NAME    ID    SIZE    MODIFIED\n"


def test_ps(daemon: Any, cli: Cli) -> None:
    model = {"name": "m:latest", "digest": DIGEST, "size": 100, "size_vram": 0, "context_length": 4096}
    daemon.replies["/api/ps"] = (
        200,
        [
            {
                "models": [
                    model | {"expires_at": moment(days=-300 * 365)},
                    model | {"expires_at": moment(seconds=-290), "size_vram": 52},
                    model | {"expires_at": moment(seconds=1), "size_vram": 100},
                ]
            }
        ],
    )
    rows = columns(cli("ps").out)
    assert rows[0] == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"]
    assert [(row[3], row[5]) for row in rows[1:]] == [
        ("100% CPU", "Forever"),
        ("48%/52% CPU/GPU", "4 minutes from now"),
        ("100% GPU", "Stopping..."),
    ]


SHOWN = {
    "license": "Apache License\nVersion 2.0\n\nTERMS",
    "modelfile": "FROM m\n",
    "parameters": 'stop                           "<|im_end|>"\ntemperature                    0.7',
    "system": "You are terse.",
    "template": "{{ .Prompt }}",
    "details": {"family": "llama", "parameter_size": "134.52M", "quantization_level": "Q8_0"},
    "model_info": {
        "general.architecture": "llama",
        "general.parameter_count": 134515008,
        "llama.context_length": 8192,
        "llama.embedding_length": 576,
        "tokenizer.ggml.tokens": ["a", "b", "c", "d", "e", "f", "g"],
    },
    "tensors": [{"name": "output.weight", "type": "F32", "shape": [576, 49152]}],
    "capabilities": ["completion", "tools"],
}


def test_show(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/show"] = 200, [SHOWN]
    assert cli("show", "m").out == (
        "  Model\n"
        "    architecture        llama\n"
        "    parameters          134.52M\n"
        "    context length      8192\n"
        "    embedding length    576\n"
        "    quantization        Q8_0\n"
        "\n"
        "  Capabilities\n"
        "    completion\n"
        "    tools\n"
        "\n"
        "  Parameters\n"
        '    stop           "<|im_end|>"\n'
        "    temperature    0.7\n"
        "\n"
        "  System\n"
        "    You are terse.\n"
        "\n"
        "  License\n"
        "    Apache License\n"
        "    Version 2.0\n"
        "    ...\n"
        "\n"
    )


def test_show_verbose_adds_metadata_and_tensors(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/show"] = 200, [SHOWN]
    out = cli("show", "m", "-v").out
    assert "    tokenizer.ggml.tokens      [a, b, c, d, e, ...+2 more]\n" in out
    assert "  Tensors\n    output.weight    F32    [576, 49152]\n" in out
    assert daemon.bodies("/api/show") == [{"model": "m", "verbose": True}]


@pytest.mark.parametrize("selector", ["license", "modelfile", "parameters", "system", "template"])
def test_show_of_one_part(daemon: Any, cli: Cli, selector: str) -> None:
    daemon.replies["/api/show"] = 200, [SHOWN]
    assert cli("show", "m", f"--{selector}").out == f"{SHOWN[selector]}\n"


def test_show_of_two_parts_is_refused(daemon: Any, cli: Cli) -> None:
    result = cli("show", "m", "--license", "--system")
    assert (result.code, result.err) == (
        1,
        "Error: only one of '--license', '--modelfile', '--parameters', '--system', or '--template' can be specified\n",
    )


def test_cp_rm_and_stop(daemon: Any, cli: Cli) -> None:
    assert cli("cp", "a", "b").out == "copied 'a' to 'b'\n"
    assert cli("rm", "a", "b").out == "deleted 'a'\ndeleted 'b'\n"
    assert (cli("stop", "c").code, cli("stop", "c").out) == (0, "")
    assert daemon.bodies("/api/copy") == [{"source": "a", "destination": "b"}]
    assert daemon.bodies("/api/delete") == [{"model": "a"}, {"model": "b"}]
    assert all(body["keep_alive"] == 0 for body in daemon.bodies("/api/generate"))


def test_rm_ends_at_the_first_failure(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/delete"] = lambda body: (
        (404, [{"error": "model 'b' not found"}]) if body["model"] == "b" else (200, b"")
    )
    result = cli("rm", "a", "b", "c")
    assert (result.code, result.out, result.err) == (1, "deleted 'a'\n", "Error: model 'b' not found\n")


def test_stop_of_an_unknown_model(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/generate"] = 404, [{"error": "model 'x' not found"}]
    result = cli("stop", "x")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith('Error: couldn\'t find model "x" to stop\n')


def test_pull_prints_steps_and_passes_errors_on(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/pull"] = 200, [{"status": "pulling manifest"}, {"status": "success"}]
    result = cli("pull", "m")
    assert (result.code, result.out, result.err) == (0, "", "pulling manifest\nsuccess\n")
    daemon.replies["/api/pull"] = 400, [{"error": "invalid model name"}]
    assert cli("pull", "m:::").err == "Error: invalid model name\n"


def test_versions(daemon: Any, cli: Cli) -> None:
    for flag in ("-v", "--version"):
        assert cli(flag).out == f"localllm version is 9.9.9\nWarning: client version is {localllm.__version__}\n"
    daemon.replies["/api/version"] = 200, [{"version": "0.33.0", "localllm": localllm.__version__}]
    assert cli("-v").out == f"localllm version is {localllm.__version__}\n"


def test_version_without_a_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOST", "127.0.0.1:9")
    result = cli("--version")
    assert (result.code, result.out.splitlines()) == (
        0,
        [
            "Warning: could not connect to a running localllm instance",
            f"Warning: client version is {localllm.__version__}",
        ],
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["show"], "accepts 1 arg(s), received 0"),
        (["pull", "a", "b"], "accepts 1 arg(s), received 2"),
        (["stop"], "accepts 1 arg(s), received 0"),
        (["cp", "a"], "accepts 2 arg(s), received 1"),
        (["rm"], "requires at least 1 arg(s), only received 0"),
        (["shwo", "m"], 'unknown command "shwo" for "localllm"'),
        (["list", "--every"], "no such option: --every"),
        (["--all"], "no such option: --all"),
    ],
)
def test_wrong_use(daemon: Any, cli: Cli, arguments: list[str], error: str) -> None:
    result = cli(*arguments)
    assert (result.code, result.out, result.err.splitlines()[0]) == (1, "", f"Error: {error}")
    assert daemon.requests == []


def test_a_mistyped_command_gets_a_hint(cli: Cli) -> None:
    assert cli("shwo").err.splitlines()[1] == "hint: did you mean `localllm show`?"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert (result.code, result.err) == (0, "")
    for command in ("serve", "run", "pull", "list", "ps", "show", "stop", "cp", "rm", "help"):
        assert f"\n  {command} " in result.out


@pytest.mark.parametrize("command", ["run", "pull", "list", "ps", "show", "stop", "cp", "rm"])
def test_help_of_a_command_names_its_environment(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: localllm {command} [OPTIONS]")
    assert "Environment Variables:\n  LOCALLLM_HOST " in result.out
    assert cli("help", command).out == result.out


def test_help_of_serve_names_every_variable(cli: Cli) -> None:
    out = cli("serve", "--help").out
    assert all(env.PREFIX + variable.name in out for variable in env.VARIABLES)


def test_help_of_an_unknown_command(cli: Cli) -> None:
    result = cli("help", "nope")
    assert (result.code, result.err.splitlines()[0]) == (1, 'Error: unknown command "nope" for "localllm"')


def test_a_wrong_setting_is_an_error_with_a_hint(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOST", "localhost:port")
    result = cli("list")
    assert result.code == 1
    assert result.err.startswith("Error: LOCALLLM_HOST='localhost:port' cannot be used")
    assert "hint: " in result.err
