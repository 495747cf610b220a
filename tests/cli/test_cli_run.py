"""`run` with a prompt: what is asked, what is printed, what happens to a model that is missing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., Any]


def asked(daemon: Any) -> dict[str, Any]:
    """The one request that was made."""
    posts = [(path, body) for method, path, body in daemon.requests if method == "POST"]
    assert [path for path, _ in posts] == ["/api/generate"]
    return dict(posts[0][1])


@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        (["what is this?"], 'line one\n\n  "quoted" \\n 漢字🦙\n'.encode(), None),
        ([], b"a\nb\n", "a\nb"),
        (["two", "words"], b"", "two words"),
        ([], b"q\r\nr\r\n", "q\r\nr"),
        ([""], b"", ""),
        ([], b"", ""),
        ([], b"/bye\n", "/bye"),
        ([], b'"""\nnot a block\n', '"""\nnot a block'),
        (["x"], b"\xff\xfe bad", "\ufffd\ufffd bad x"),
        (["--", "--think"], b"", "--think"),
    ],
)
def test_standard_input_is_one_prompt_before_the_arguments(
    daemon: Any, cli: Cli, arguments: list[str], stdin: bytes, prompt: str | None
) -> None:
    result = cli("run", "m", *arguments, stdin=stdin)
    assert (result.code, result.out, result.err) == (0, "ok\n", "")
    expected = stdin.decode() + " what is this?" if prompt is None else prompt
    assert asked(daemon)["prompt"] == expected


def test_three_megabytes_arrive_whole(daemon: Any, run_process: Callable[..., Any]) -> None:
    result = run_process("run", "m", "sum", stdin=b"x" * 3_000_000)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"ok\n", b"")
    assert asked(daemon)["prompt"] == "x" * 3_000_000 + " sum"


def test_an_argument_that_is_not_utf8_is_sent_as_valid_text(daemon: Any, run_process: Callable[..., Any]) -> None:
    result = run_process("run", "m", os.fsdecode(b"caf\xe9"), stdin=b"")
    assert (result.returncode, result.stderr) == (0, b"")
    assert asked(daemon)["prompt"] == "caf?"


def test_the_answer_is_printed_unchanged_to_a_pipe(daemon: Any, cli: Cli) -> None:
    daemon.pieces = ["  a long line " * 20, "\x1b[1m", "\u2028", "end\n"]
    assert cli("run", "m", "x").out == "  a long line " * 20 + "\x1b[1m\u2028end\n"


def test_an_empty_answer_prints_nothing(daemon: Any, cli: Cli) -> None:
    daemon.pieces = []
    assert cli("run", "m", "x").out == ""


def test_options_of_the_command_reach_the_request(daemon: Any, cli: Cli) -> None:
    cli("run", "m", "hi", "--format", "json", "--keepalive", "1m30s", "--think=high")
    body = asked(daemon)
    assert (body["format"], body["keep_alive"], body["think"]) == ("json", "1m30s", "high")


@pytest.mark.parametrize(("given", "sent"), [("-1", -1.0), ("0", 0.0), ("2.5", 2.5), ("24h", "24h")])
def test_keepalive_takes_seconds_and_durations(daemon: Any, cli: Cli, given: str, sent: Any) -> None:
    cli("run", "m", "hi", f"--keepalive={given}")
    assert asked(daemon)["keep_alive"] == sent


def test_a_schema_is_sent_as_an_object(daemon: Any, cli: Cli, tmp_path: Path) -> None:
    cli("run", "m", "hi", "--format", '{"type": "object"}')
    assert asked(daemon)["format"] == {"type": "object"}
    (tmp_path / "schema.json").write_text('{"type": "array"}')
    cli("run", "m", "hi", "--format", str(tmp_path / "schema.json"))
    assert daemon.bodies("/api/generate")[-1]["format"] == {"type": "array"}
    (tmp_path / "list.json").write_text("[]")
    result = cli("run", "m", "hi", "--format", str(tmp_path / "list.json"))
    assert result.code == 1 and "list.json: expected an object" in result.err


def test_unset_options_are_not_sent(daemon: Any, cli: Cli) -> None:
    cli("run", "m", "hi")
    assert asked(daemon).keys() == {"model", "prompt", "options"}


def test_think_never_swallows_the_prompt(daemon: Any, cli: Cli) -> None:
    cli("run", "m", "--think", "why?")
    assert (asked(daemon)["think"], asked(daemon)["prompt"]) == (True, "why?")


def test_thinking_is_shown_apart_or_hidden(daemon: Any, cli: Cli) -> None:
    daemon.thinking, daemon.pieces = ["so", " much"], ["\n\nfour"]
    assert cli("run", "m", "hi").out == "Thinking...\nso much\n...done thinking.\n\nfour\n"
    assert cli("run", "m", "hi", "--hidethinking").out == "\n\nfour\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "requires at least 1 arg(s), only received 0"),
        (
            ["run", "m", "--think=x", "hi"],
            'invalid value for --think: "x" (must be true, false, high, medium, low, or max)',
        ),
        (["run", "m", "--format", "{x", "hi"], "invalid format: "),
        (["run", "m", "--keepalive", "5", "--keepalive", "soon", "hi"], 'time: invalid duration "soon"'),
        (["run", "m", "--dimensions", "x", "hi"], 'invalid value for --dimensions: "x" (must be a count)'),
        (["run", "m", "--nope"], "no such option: --nope"),
    ],
)
def test_wrong_command_lines_ask_nothing(daemon: Any, cli: Cli, arguments: list[str], message: str) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"Error: {message}")
    assert daemon.requests == []


def test_timings_go_to_standard_error(daemon: Any, cli: Cli) -> None:
    daemon.final = {
        "total_duration": 1_234_567_000,
        "load_duration": 25_900_000,
        "prompt_eval_count": 126,
        "prompt_eval_cached_count": 100,
        "prompt_eval_duration": 325_953_000,
        "eval_count": 290,
        "eval_duration": 4_709_213_000,
        "draft_count": 120,
        "draft_accepted_count": 97,
    }
    result = cli("run", "m", "--verbose", "hi")
    assert result.out == "ok\n"
    assert result.err.splitlines() == [
        "total duration:       1.234567s",
        "load duration:        25.9ms",
        "prompt eval count:    126 token(s)",
        "prompt eval cached:   100 token(s)",
        "prompt eval duration: 325.953ms",
        "prompt eval rate:     79.77 tokens/s",
        "eval count:           290 token(s)",
        "eval duration:        4.709213s",
        "eval rate:            61.58 tokens/s",
        "draft count:          120 token(s), 97 accepted",
    ]


def test_a_context_that_is_shorter_than_wanted_is_told(daemon: Any, cli: Cli) -> None:
    daemon.final = {"context_length": 8192}
    result = cli("run", "m", "hi")
    assert result.err.splitlines() == ["note: the context has 8192 tokens, the model was trained for no more"]


@pytest.mark.parametrize(
    ("lost", "notes"),
    [
        ({"tokens": 7}, ["note: the prompt is longer than the context: 7 tokens of it were left out"]),
        (
            {"messages": 1, "tokens": 7},
            ["note: the chat has outgrown the context: its oldest message (7 tokens) was left out"],
        ),
        (
            {"messages": 2, "tokens": 7, "shifted": 9},
            [
                "note: the chat has outgrown the context: its 2 oldest messages (7 tokens) were left out",
                "note: the answer has outgrown the context: 9 tokens before it were dropped on the way",
            ],
        ),
        ({}, []),
    ],
)
def test_what_the_model_did_not_read_is_told(daemon: Any, cli: Cli, lost: dict[str, int], notes: list[str]) -> None:
    daemon.final = {"truncated": lost}
    result = cli("run", "m", "hi")
    assert (result.out, result.err.splitlines()) == ("ok\n", notes)


@pytest.mark.parametrize(("flags", "sent"), [([], None), (["--truncate"], True), (["--no-truncate"], False)])
def test_whether_a_prompt_may_be_cut(daemon: Any, cli: Cli, flags: list[str], sent: bool | None) -> None:
    cli("run", "m", "hi", *flags)
    assert asked(daemon).get("truncate") is sent


def test_a_terminal_shows_how_much_of_a_prompt_is_read(daemon: Any, terminal: Callable[..., Any]) -> None:
    steps = [{"response": "", "progress": {"total": 4000, "processed": n}, "done": False} for n in (512, 4000)]
    daemon.replies["/api/generate"] = 200, [steps[0], 1.0, steps[1], {"response": "read", "done": True}]
    screen = terminal(80, "run", "m", "go")
    screen.wait_for_text("reading the prompt: 512/4000 tokens")
    assert screen.wait_for_exit() == 0
    assert [row for row in screen.rows() if row] == ["read"]
    assert daemon.bodies("/api/generate")[-1]["progress"] is True


def test_a_missing_model_is_pulled_first(daemon: Any, cli: Cli) -> None:
    def generate(body: Any) -> Any:
        if not daemon.bodies("/api/pull"):
            return 404, [{"error": "model 'm' not found"}]
        return 200, [{"response": "pulled", "done": True}]

    layer = {"status": "pulling 0123456789ab", "digest": "sha256:0", "total": 2_000_000}
    daemon.replies["/api/generate"] = generate
    daemon.replies["/api/pull"] = (
        200,
        [
            {"status": "pulling manifest"},
            layer,
            layer | {"completed": 2_000_000},
            {"status": "success"},
        ],
    )
    result = cli("run", "m", "hi", "--insecure")
    assert (result.code, result.out) == (0, "pulled\n")
    assert result.err == "pulling manifest\npulling 0123456789ab (2 MB)\nsuccess\n"
    assert daemon.bodies("/api/pull") == [{"model": "m", "insecure": True, "stream": True}]


def test_a_failed_pull_is_the_error(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/generate"] = 404, [{"error": "model 'm' not found"}]
    daemon.replies["/api/pull"] = (
        200,
        [{"status": "pulling manifest"}, {"error": "pull model manifest: file does not exist"}],
    )
    result = cli("run", "m", "hi")
    assert result.code == 1
    assert result.err == "pulling manifest\nError: pull model manifest: file does not exist\n"


def test_an_error_in_the_stream_follows_what_was_printed(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/generate"] = (
        200,
        [{"response": "half"}, {"error": "out of memory", "hint": "take a smaller one"}],
    )
    result = cli("run", "m", "hi")
    assert (result.code, result.out) == (1, "half\n")
    assert result.err == "Error: out of memory\nhint: take a smaller one\n"


def test_a_stream_without_an_end_is_an_error(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/generate"] = 200, [{"response": "half", "done": False}]
    result = cli("run", "m", "hi")
    assert (result.code, result.out) == (1, "half\n")
    assert result.err.startswith("Error: the server closed the answer before it was complete\n")


@pytest.mark.parametrize("text", ["some text", ""])
def test_an_embedding_model_prints_its_vector(daemon: Any, cli: Cli, text: str) -> None:
    daemon.replies["/api/generate"] = 400, [{"error": '"m" does not support generate'}]
    daemon.replies["/api/show"] = 200, [{"capabilities": ["embedding"]}]
    daemon.replies["/api/embed"] = 200, [{"embeddings": [[0.5, -0.25]]}]
    result = cli("run", "m", text, "--dimensions", "2", "--truncate")
    if not text:
        assert result.err.startswith("Error: embedding models require input text. Usage: localllm run m ")
        return
    assert result.out == "[0.5,-0.25]\n"
    sent = daemon.bodies("/api/embed")[0]
    assert (sent["input"], sent["dimensions"], sent["truncate"]) == ("some text", 2, True)


def test_other_refusals_are_shown_as_they_are(daemon: Any, cli: Cli) -> None:
    daemon.replies["/api/generate"] = 400, [{"error": '"m" does not support thinking'}]
    result = cli("run", "m", "hi", "--think")
    assert (result.code, result.err) == (1, 'Error: "m" does not support thinking\n')


def test_interrupt_stops_the_answer_and_exits_well(daemon: Any) -> None:
    daemon.replies["/api/generate"] = 200, [{"response": "begun "}, *([0.05, {"response": "x"}] * 400)]
    process = subprocess.Popen(
        [sys.executable, "-m", "localllm", "run", "m", "hi"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(6) == b"begun "
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, b"")
    assert out.endswith(b"\n")
    deadline = time.monotonic() + 10
    while not daemon.gone:
        assert time.monotonic() < deadline, "the request was not cancelled"
        time.sleep(0.05)


def test_a_reader_that_goes_away_gives_no_traceback(daemon: Any) -> None:
    daemon.pieces = ["line\n"] * 20_000
    command = f"{sys.executable} -m localllm run m hi < /dev/null | head -n 1"
    result = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, timeout=60)
    assert (result.stdout, result.stderr) == (b"line\n", b"")


ANSWER = ["今天天气很好", "我们一起去", "公园散步然后", "回家吃饭", " ok", " 🦙🦙", " end"]


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("columns", [8, 20, 21, 200])
def test_wide_characters_wrap_without_loss(daemon: Any, terminal: Callable[..., Any], columns: int) -> None:
    daemon.pieces = ANSWER
    screen = terminal(columns, "run", "m", "go")
    assert screen.wait_for_exit() == 0
    assert squeezed(screen.text()) == squeezed("".join(ANSWER))
    for word in ("ok", "🦙🦙", "end"):
        assert any(word in row for row in screen.rows())


def test_without_word_wrap_no_line_feed_is_added(daemon: Any, terminal: Callable[..., Any]) -> None:
    daemon.pieces = ANSWER
    screen = terminal(20, "run", "m", "go", "--nowordwrap")
    assert screen.wait_for_exit() == 0
    assert "".join(ANSWER) in screen.raw.decode()


def test_a_model_cannot_steer_the_terminal(daemon: Any, terminal: Callable[..., Any]) -> None:
    daemon.pieces = ["a\x1b]52;c;eA==\x07b", "\x1b[2J\rc\x9b1m"]
    screen = terminal(80, "run", "m", "go", "--nowordwrap")
    assert screen.wait_for_exit() == 0
    assert b"a]52;c;eA==b[2Jc1m" in screen.raw


def test_on_a_terminal_loading_is_shown_and_thinking_is_grey(daemon: Any, terminal: Callable[..., Any]) -> None:
    steps = [{"status": "compiling kernels", "completed": n, "total": 14} for n in range(14)]
    daemon.replies["/api/load"] = 200, [0.6, *steps[:7], 0.4, *steps[7:], {"status": "success"}]
    daemon.thinking = ["hm"]
    screen = terminal(80, "run", "m", "go")
    screen.wait_for_text("compiling kernels")
    screen.wait_for_text("/14")
    assert screen.wait_for_exit() == 0
    assert [row for row in screen.rows() if row] == ["Thinking...", "hm", "...done thinking.", "ok"]
    assert b"\x1b[90mThinking...\r\nhm\r\n...done thinking.\r\n\x1b[0m\r\nok" in screen.raw
    assert daemon.bodies("/api/load") == [{"model": "m", "options": {}}]


def test_a_server_without_the_load_endpoint_is_used_all_the_same(daemon: Any, terminal: Callable[..., Any]) -> None:
    daemon.replies["/api/load"] = 404, b"404 page not found"
    screen = terminal(80, "run", "m", "go")
    assert screen.wait_for_exit() == 0
    assert [row for row in screen.rows() if row] == ["ok"]
    assert [body["prompt"] for body in daemon.bodies("/api/generate")] == ["", "go"]


def test_a_missing_model_is_pulled_with_bars(daemon: Any, terminal: Callable[..., Any]) -> None:
    def load(body: Any) -> Any:
        return (
            (200, [{"status": "success"}]) if daemon.bodies("/api/pull") else (404, [{"error": "model 'm' not found"}])
        )

    layer = {"status": "pulling 0123456789ab", "digest": "sha256:0", "total": 2_000_000_000}
    daemon.replies["/api/load"] = load
    daemon.replies["/api/pull"] = (
        200,
        [
            {"status": "pulling manifest"},
            layer | {"completed": 1_000_000_000},
            0.3,
            layer | {"completed": 2_000_000_000},
            {"status": "success"},
        ],
    )
    screen = terminal(100, "run", "m", "go")
    screen.wait_for_text(" 50% 1 GB/2 GB")
    assert screen.wait_for_exit() == 0
    rows = [row for row in screen.rows() if row]
    assert [squeezed(row)[:20] for row in rows] == ["pullingmanifest", "pulling0123456789ab━", "success", "ok"]
    assert rows[1].endswith("100% 2 GB")


def test_requests_and_answers_are_json_that_any_server_reads(daemon: Any, cli: Cli) -> None:
    cli("run", "m", "é\u2028\ud83d\ude00")
    assert json.dumps(asked(daemon)["prompt"]) == json.dumps("é\u2028??")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("m:latest", "m:latest"),
        ("dir/m.gguf", "file:{cwd}/dir/m.gguf"),
        ("./dir/m.gguf", "file:{cwd}/dir/m.gguf"),
        ("{cwd}/dir/m.gguf", "file:{cwd}/dir/m.gguf"),
        ("file:dir/new.gguf", "file:{cwd}/dir/new.gguf"),
        ("file:///x/m.gguf", "file:///x/m.gguf"),
        ("user/name.gguf", "user/name.gguf"),
        ("pip:some-wheel", "pip:some-wheel"),
    ],
)
def test_paths_of_files_are_made_absolute(
    daemon: Any, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, sent: str
) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    cli("run", given.format(cwd=tmp_path), "hi")
    assert asked(daemon)["model"] == sent.format(cwd=tmp_path)
