"""The chat on a terminal, driven through a pseudo-terminal and read back through an emulator."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localllm.cli.history import MAX_ENTRIES, HistoryFile

Start = Callable[..., Any]
ENTER, BACKSPACE, LEFT, UP = "\r", "\x7f", "\x1b[D", "\x1b[A"
CTRL_C, CTRL_D, CTRL_J = "\x03", "\x04", "\n"


def chat(terminal: Start, columns: int = 80, *flags: str) -> Any:
    """A REPL that waits for its first line."""
    screen = terminal(columns, "run", "m", *flags)
    screen.wait_for(lambda: any(row.startswith(">>>") for row in screen.rows()))
    return screen


def say(screen: Any, daemon: Any, text: str) -> str:
    """Types a line and waits until it has been answered; returns the message that the server got."""
    before = screen.rows().count("ok")
    screen.type(text + ENTER)
    screen.wait_for(lambda: screen.rows().count("ok") > before)
    return str(daemon.bodies("/api/chat")[-1]["messages"][-1]["content"])


def command(screen: Any, text: str, answer: str) -> None:
    """Types a command and waits for its answer."""
    screen.type(text + ENTER)
    screen.wait_for_text(answer)


def leave(screen: Any) -> None:
    screen.type(CTRL_D)
    assert screen.wait_for_exit() == 0


def test_a_chat_remembers_its_messages(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal)
    assert "Send a message (/? for help)" in screen.text()
    say(screen, daemon, "one")
    say(screen, daemon, "two")
    leave(screen)
    assert daemon.bodies("/api/chat")[-1] == {
        "model": "m",
        "options": {},
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "two"},
        ],
        "progress": True,
    }
    assert [row for row in screen.rows() if row] == [">>> one", "ok", ">>> two", "ok", ">>>"]


@pytest.mark.parametrize("columns", [8, 20, 21])
def test_wide_characters_are_erased_whole(daemon: Any, terminal: Start, columns: int) -> None:
    screen = chat(terminal, columns)
    screen.type("明早七点有潮汐")
    screen.wait_for_text("汐")
    for _ in range(7):
        screen.type(BACKSPACE)
    screen.wait_for(lambda: not any(wide in screen.text() for wide in "明早七点有潮汐"))
    assert say(screen, daemon, "hi") == "hi"
    leave(screen)


def test_a_line_longer_than_the_terminal_can_be_edited(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal, 20)
    screen.type("\x1b[200~" + "明早七点有潮汐" * 3 + "\x1b[201~")
    screen.type(LEFT * 2 + "X")
    screen.wait_for_text("X潮汐")
    text = "".join(screen.rows()).replace(" ", "")
    assert text.startswith(">>>" + "明早七点有潮汐" * 2 + "明早七点有X潮汐")
    assert say(screen, daemon, "") == "明早七点有潮汐" * 2 + "明早七点有X潮汐"
    leave(screen)


def test_pasted_lines_and_new_lines_are_one_message(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal)
    assert say(screen, daemon, "\x1b[200~/* a */\nb\n\n  c\x1b[201~") == "/* a */\nb\n\n  c"
    assert say(screen, daemon, f"x{CTRL_J}y\x1b{ENTER}z") == "x\ny\nz"
    leave(screen)


def test_a_block_in_quotes_is_one_message(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal)
    screen.type('"""first' + ENTER)
    screen.wait_for_text("...")
    screen.type("/bye" + ENTER)
    assert say(screen, daemon, 'last"""') == "first\n/bye\nlast"
    assert say(screen, daemon, '"""one line"""') == "one line"
    leave(screen)


def test_interrupt_stops_the_answer_and_keeps_the_chat(daemon: Any, terminal: Start) -> None:
    slow = [{"message": {"content": f"w{n} "}} for n in range(3)]
    daemon.replies["/api/chat"] = 200, [*slow, *([0.05, {"message": {"content": ""}}] * 400)]
    screen = chat(terminal)
    screen.type("go" + ENTER)
    screen.wait_for_text("w1")
    screen.type(CTRL_C)
    screen.wait_for(lambda: sum(row.startswith(">>>") for row in screen.rows()) == 2)
    del daemon.replies["/api/chat"]
    say(screen, daemon, "again")
    leave(screen)
    contents = [message["content"] for message in daemon.bodies("/api/chat")[-1]["messages"]]
    assert (len(contents), contents[0], contents[2]) == (3, "go", "again")
    assert "w0 w1 w2 ".startswith(contents[1]) and contents[1].startswith("w0 w1 ")


def test_interrupt_clears_the_line(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal)
    screen.type("draft" + CTRL_C)
    screen.wait_for(lambda: sum(row.startswith(">>>") for row in screen.rows()) == 2)
    assert "/bye to exit" not in screen.text()
    screen.type(CTRL_C)
    screen.wait_for_text("Use Ctrl + d or /bye to exit.")
    assert say(screen, daemon, "hi") == "hi"
    leave(screen)


def test_keys_typed_during_an_answer_wait_unseen(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/chat"] = 200, [{"message": {"content": "begun "}}, 0.6, {"message": {}, "done": True}]
    screen = chat(terminal)
    screen.type("go" + ENTER)
    screen.wait_for(lambda: len(daemon.bodies("/api/chat")) == 1)
    screen.type("next")
    screen.wait_for(lambda: any(row == ">>> next" for row in screen.rows()))
    assert "next" not in screen.text().partition(">>> next")[0]
    screen.type(ENTER)
    screen.wait_for(lambda: len(daemon.bodies("/api/chat")) == 2)


def test_keys_typed_while_the_model_loads_wait_for_the_first_line(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/load"] = 200, [{"status": "reading model"}, 1.5, {"status": "success"}]
    screen = terminal(80, "run", "m")
    screen.wait_for_text("reading model")
    screen.type("hi" + ENTER)
    screen.wait_for_text("ok")
    leave(screen)
    assert [row for row in screen.rows() if row] == [">>> hi", "ok", ">>>"]
    assert daemon.bodies("/api/chat")[0]["messages"] == [{"role": "user", "content": "hi"}]


def test_a_failed_turn_leaves_no_trace(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/chat"] = 500, [{"error": "model runner has unexpectedly stopped"}]
    screen = chat(terminal)
    command(screen, "lost", "Error: model runner has unexpectedly stopped")
    del daemon.replies["/api/chat"]
    say(screen, daemon, "hi")
    leave(screen)
    assert daemon.bodies("/api/chat")[-1]["messages"] == [{"role": "user", "content": "hi"}]


def test_what_a_chat_has_lost_is_told_once(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal, 120)
    for n_lost in (0, 2, 2, 4):
        daemon.final = {"truncated": {"messages": n_lost, "tokens": 10 * n_lost, "shifted": 0}}
        say(screen, daemon, f"lost {n_lost}")
    leave(screen)
    assert [row for row in screen.rows() if row] == [
        *(">>> lost 0", "ok", ">>> lost 2", "ok"),
        "note: the chat has outgrown the context: its 2 oldest messages (20 tokens) were left out",
        "hint: `/set parameter num_ctx N` sets the context to N tokens",
        *(">>> lost 2", "ok", ">>> lost 4", "ok"),
        "note: the chat has outgrown the context: its 4 oldest messages (40 tokens) were left out",
        ">>>",
    ]


def test_a_context_that_is_shorter_than_wanted_is_told_once(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal, 120)
    for n_ctx in (8192, 8192, 0, 4096):
        daemon.final = {"context_length": n_ctx} if n_ctx else {}
        say(screen, daemon, f"ctx {n_ctx}")
    leave(screen)
    assert [row for row in screen.rows() if row.startswith(("note", "hint"))] == [
        f"note: the context has {n_ctx} tokens, the model was trained for no more" for n_ctx in (8192, 4096)
    ]


def test_the_models_own_messages_are_shown(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/show"] = (
        200,
        [{"messages": [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "me"}]}],
    )
    screen = terminal(80, "run", "m")
    screen.wait_for_text("me>>>")
    assert [row for row in screen.rows() if row][:2] == [">>> who?", "me"]


def test_settings_reach_the_requests(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/show"] = 200, [{"capabilities": ["completion", "thinking"]}]
    screen = chat(terminal)
    command(screen, "/set parameter temperature 0.5", "Set parameter 'temperature' to '0.5'")
    command(screen, "/set parameter stop a b", "Set parameter 'stop' to 'a, b'")
    command(screen, "/set parameter temprature 1", "Couldn't set parameter: \"unknown parameter 'temprature'\"")
    command(screen, "/set system Be brief.", "Set system message.")
    command(screen, "/set format nosuch", "Invalid or missing format.")
    command(screen, '/set format {"type": ', "Couldn't set format:")
    command(screen, '/set format {"type": "array"}', "Set format to a JSON Schema.")
    command(screen, "/set format json", "Set format to 'json' mode.")
    command(screen, "/set think high", "Set 'think' mode to 'high'.")
    say(screen, daemon, "hi")
    body = daemon.bodies("/api/chat")[-1]
    assert body == {
        "model": "m",
        "options": {"temperature": 0.5, "stop": ["a", "b"]},
        "format": "json",
        "think": "high",
        "progress": True,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    }
    command(screen, "/set noformat", "Disabled format.")
    command(screen, "/set nothink", "Set 'nothink' mode.")
    command(screen, "/clear", "Cleared session context")
    say(screen, daemon, "again")
    body = daemon.bodies("/api/chat")[-1]
    assert "format" not in body and body["think"] is False
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    leave(screen)


def test_a_system_message_may_be_a_block_and_replaces_the_last(daemon: Any, terminal: Start) -> None:
    screen = chat(terminal)
    command(screen, "/set system old", "Set system message.")
    screen.type('/set system """new' + ENTER)
    screen.wait_for_text("...")
    command(screen, 'lines"""', "Set system message.>>>")
    say(screen, daemon, "hi")
    assert daemon.bodies("/api/chat")[-1]["messages"][0] == {"role": "system", "content": "new\nlines"}


def test_switches_say_what_they_do(daemon: Any, terminal: Start) -> None:
    daemon.final = {"eval_count": 3, "eval_duration": 10**9}
    screen = chat(terminal)
    for mode in ("wordwrap", "nowordwrap", "quiet", "verbose"):
        command(screen, f"/set {mode}", f"Set '{mode}' mode.")
    say(screen, daemon, "hi")
    screen.wait_for_text("eval rate:            3.00 tokens/s")
    command(screen, "/set think", "warning: model 'm' does not support thinkingSet 'think' mode.")
    leave(screen)


def test_show(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/show"] = (
        200,
        [{"details": {"family": "llama"}, "parameters": 'stop    "x"', "license": "MIT", "template": "{{ .Prompt }}"}],
    )
    screen = chat(terminal)
    command(screen, "/show info", "architecture    llama")
    command(screen, "/show license", "MIT")
    command(screen, "/show template", "{{ .Prompt }}")
    command(screen, "/show system", "No system message was specified for this model.")
    command(screen, "/set parameter seed 7", "Set parameter 'seed' to '7'")
    command(screen, "/show parameters", "seed    7")
    assert "Model defined parameters:" in screen.text() and "User defined parameters:" in screen.text()
    command(screen, "/show nothing", "Unknown command '/show nothing'. Type /? for help")
    leave(screen)


def test_load_and_save(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/load"] = lambda body: (
        (404, [{"error": "model 'lost' not found"}]) if body["model"] == "lost" else (200, [{"status": "success"}])
    )
    screen = chat(terminal)
    say(screen, daemon, "hi")
    command(screen, "/set parameter seed 7", "Set parameter 'seed' to '7'")
    command(screen, "/set parameter stop aa bb", "Set parameter 'stop' to 'aa, bb'")
    command(screen, "/set system Be brief.", "Set system message.")
    command(screen, "/load lost", "Couldn't find model 'lost'")
    command(screen, "/save mine", "Created new model 'mine'")
    assert daemon.bodies("/api/create") == [
        {
            "model": "mine",
            "from": "m",
            "system": "Be brief.",
            "parameters": {"seed": 7, "stop": ["aa", "bb"]},
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}],
        }
    ]
    command(screen, "/load other", "Loading model 'other'")
    say(screen, daemon, "there")
    body = daemon.bodies("/api/chat")[-1]
    assert (body["model"], body["options"]) == ("other", {"seed": 7, "stop": ["aa", "bb"]})
    assert [message["content"] for message in body["messages"]] == ["there"]
    daemon.replies["/api/create"] = 404, b"404 page not found"
    command(screen, "/save mine", "Couldn't save model: the server does not offer POST /api/create")
    leave(screen)


def test_help_list_and_unknown_commands(daemon: Any, terminal: Start) -> None:
    daemon.replies["/api/tags"] = 200, [{"models": [{"name": "m:latest", "digest": "0" * 64, "size": 5}]}]
    screen = chat(terminal)
    command(screen, "/?", 'Use """ to begin a message of several lines.')
    command(screen, "/? shortcuts", "Ctrl + d")
    command(screen, "/help set", "/set parameter <name> <value>")
    command(screen, "/set", "/set nothink")
    command(screen, "/set parameter", "/set parameter temperature <float32>")
    command(screen, "/show", "/show template")
    command(screen, "/list", "m:latest")
    command(screen, "/nope now", "Unknown command '/nope'. Type /? for help")
    command(screen, "/set nope", "Unknown command '/set nope'. Type /? for help")
    screen.type("/bye" + ENTER)
    assert screen.wait_for_exit() == 0
    assert daemon.bodies("/api/chat") == []


def test_history_survives_the_session(daemon: Any, terminal: Start, tmp_path: Path) -> None:
    screen = chat(terminal)
    say(screen, daemon, "first")
    command(screen, "/set nohistory", ">>> /set nohistory>>>")
    say(screen, daemon, "secret")
    leave(screen)
    path = tmp_path / "state" / "history"
    assert path.read_text() == "first\n/set nohistory\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    screen = chat(terminal)
    screen.type(UP + UP)
    screen.wait_for_text(">>> first")
    screen.type(CTRL_C)
    leave(screen)


def test_no_history_is_kept_on_request(
    daemon: Any, terminal: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALLLM_NOHISTORY", "1")
    screen = chat(terminal)
    say(screen, daemon, "first")
    leave(screen)
    assert not (tmp_path / "state" / "history").exists()


def test_the_history_file_keeps_the_last_hundred_of_both_sessions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history"
    one, other = HistoryFile(path, True), HistoryFile(path, True)
    for number in range(MAX_ENTRIES):
        one.store_string(f"line {number}")
    other.store_string("a \\n b\nc\\")
    entries = list(HistoryFile(path, True).load_history_strings())
    assert (len(entries), entries[0], entries[-1]) == (MAX_ENTRIES, "a \\n b\nc\\", "line 1")
    assert list(path.parent.iterdir()) == [path]


def test_a_history_that_cannot_be_written_does_not_end_the_chat(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    history = HistoryFile(tmp_path / "file" / "history", True)
    history.store_string("line")
    assert list(history.load_history_strings()) == []
