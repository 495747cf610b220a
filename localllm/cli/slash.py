"""The REPL's commands (`/set`, `/show`, ...); it knows nothing of how lines are read or answers printed.

To add a command: a function and its row in COMMANDS; likewise a setting in SETTINGS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localllm.cli.arguments import model_reference
from localllm.cli.columns import format_columns
from localllm.cli.line_input import BLOCK_QUOTE, LineInput
from localllm.cli.list import print_models
from localllm.cli.progress import show_progress
from localllm.cli.session import THINK_LEVELS, Session, load, parse_format
from localllm.cli.show import format_model
from localllm.client import Client, ClientError
from localllm.errors import LocalLLMError
from localllm.options import OPTIONS, parse_parameter


@dataclass
class Chat:
    """What the commands work on: the connection, the session, the input line."""

    client: Client
    session: Session
    lines: LineInput
    is_over: bool = False


Command = Callable[[Chat, str], None]


def find_command(line: str) -> Command | None:
    """The command that a line starts with, one that complains for an unknown one, None for a message.

    Pasted text of several lines that happens to begin with a slash is a message.
    """
    if not line.startswith("/"):
        return None
    for name, command, _, _ in COMMANDS:
        if line.startswith(name):
            return command
    return None if "\n" in line else _unknown


def _unknown(chat: Chat, line: str) -> None:
    print(f"Unknown command '{line.split()[0]}'. Type /? for help")


def _bye(chat: Chat, line: str) -> None:
    chat.is_over = True


def _clear(chat: Chat, line: str) -> None:
    system = chat.session.system
    chat.session.messages = [{"role": "system", "content": system}] if system else []
    print("Cleared session context")


def _list(chat: Chat, line: str) -> None:
    try:
        print_models(chat.client)
    except ClientError as error:
        print(f"Error: {error}")


def _load(chat: Chat, line: str) -> None:
    words = line.split()
    if len(words) != 2:
        print("Usage:\n  /load <modelname>")
        return
    previous = chat.session.model
    chat.session.model = model_reference(words[1])
    print(f"Loading model '{words[1]}'")
    try:
        load(chat.client, chat.session)
    except ClientError as error:
        chat.session.model = previous
        print(f"Couldn't find model '{words[1]}'" if error.status == 404 else f"Couldn't load model: {error}")
        return
    chat.session.messages = []


def _save(chat: Chat, line: str) -> None:
    words = line.split()
    if len(words) != 2:
        print("Usage:\n  /save <modelname>")
        return
    session = chat.session
    body: dict[str, Any] = {
        "model": words[1],
        "from": session.model,
        "system": session.system,
        "parameters": session.options,
        "messages": [message for message in session.messages if message["role"] != "system"],
    }
    try:
        show_progress(chat.client.create({name: value for name, value in body.items() if value}), transient=True)
    except ClientError as error:
        print(f"Couldn't save model: {error}")
        return
    print(f"Created new model '{words[1]}'")


def _show(chat: Chat, line: str) -> None:
    words = line.split()
    if len(words) < 2 or words[1] not in _SHOWN:
        if len(words) > 1:
            print(f"Unknown command '/show {words[1]}'. Type /? for help")
        else:
            _print_rows("Available Commands:", _SHOW_HELP)
        return
    try:
        answer = chat.client.show(chat.session.model)
    except ClientError as error:
        print(f"Error: {error}")
        return
    if words[1] == "info":
        print(format_model(answer))
    elif words[1] == "parameters":
        _show_parameters(chat.session, str(answer.get("parameters") or ""))
    else:
        own = chat.session.system if words[1] == "system" else ""
        print(f"{own or answer.get(words[1]) or _SHOWN[words[1]]}\n")


def _show_parameters(session: Session, of_model: str) -> None:
    if of_model:
        print("Model defined parameters:")
        print(format_columns([line.split(None, 1) for line in of_model.splitlines() if line.strip()], indent="  "))
    if session.options:
        print("User defined parameters:")
        rows = [(name, _join_value(value)) for name, value in session.options.items()]
        print(format_columns(rows, indent="  "))
    if not of_model and not session.options:
        print("No parameters were specified for this model.\n")


def _join_value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _set(chat: Chat, line: str) -> None:
    words = line.split(None, 2)
    if len(words) < 2:
        _print_rows("Available Commands:", [(f"/set {usage}", text) for _, _, usage, text in SETTINGS])
        return
    for name, setting, _, _ in SETTINGS:
        if name == words[1]:
            setting(chat, words[2] if len(words) > 2 else "")
            return
    print(f"Unknown command '/set {words[1]}'. Type /? for help")


def _set_parameter(chat: Chat, text: str) -> None:
    name, *values = text.split() or [""]
    if not values:
        _print_rows("Available Parameters:", [(f"/set parameter {o.name} <{o.type}>", o.meaning) for o in OPTIONS])
        return
    try:
        chat.session.options[name] = parse_parameter(name, values)
    except LocalLLMError as error:
        print(f'Couldn\'t set parameter: "{error}"' + (f"\nhint: {error.hint}" if error.hint else ""))
        return
    print(f"Set parameter '{name}' to '{', '.join(values)}'")


def _set_system(chat: Chat, text: str) -> None:
    if not text:
        print("Usage:\n  /set system <message>")
        return
    if text.startswith(BLOCK_QUOTE):
        text = chat.lines.read_block(text.removeprefix(BLOCK_QUOTE))
    session = chat.session
    session.system = text
    if session.messages and session.messages[-1]["role"] == "system":
        session.messages.pop()
    session.messages.append({"role": "system", "content": text})
    print("Set system message.")


def _set_format(chat: Chat, text: str) -> None:
    try:
        wanted = parse_format(text)
    except LocalLLMError as error:
        print(f'Couldn\'t set format: "{error}"')
        return
    if wanted != "json" and not isinstance(wanted, dict):
        print("Invalid or missing format. For 'json' mode use '/set format json'")
        return
    chat.session.format = wanted
    print("Set format to 'json' mode." if wanted == "json" else "Set format to a JSON Schema.")


def _set_noformat(chat: Chat, text: str) -> None:
    chat.session.format = None
    print("Disabled format.")


def _set_think(chat: Chat, text: str) -> None:
    if text and text not in THINK_LEVELS:
        print(f"Invalid think level '{text}'. Use {', '.join(THINK_LEVELS)}, or none")
        return
    chat.session.think = text or True
    _warn_unless_thinking(chat)
    print(f"Set 'think' mode to '{text}'." if text else "Set 'think' mode.")


def _set_nothink(chat: Chat, text: str) -> None:
    chat.session.think = False
    print("Set 'nothink' mode.")


def _warn_unless_thinking(chat: Chat) -> None:
    try:
        capabilities = chat.client.show(chat.session.model).get("capabilities") or []
    except ClientError as error:
        print(f"Error: {error}")
        return
    if "thinking" not in capabilities:
        print(f"warning: model '{chat.session.model}' does not support thinking")


def _switch(attribute: str, value: bool, mode: str) -> Command:
    """A setting that turns one flag of the session on or off and says so."""

    def switch(chat: Chat, text: str) -> None:
        setattr(chat.session, attribute, value)
        print(f"Set '{mode}' mode.")

    return switch


def _switch_history(value: bool) -> Command:
    def switch(chat: Chat, text: str) -> None:
        chat.lines.history.enabled = value

    return switch


def _help(chat: Chat, line: str) -> None:
    topic = line.split()[1:2]
    if topic == ["set"] or topic == ["/set"]:
        _set(chat, "/set")
    elif topic == ["show"] or topic == ["/show"]:
        _show(chat, "/show")
    elif topic == ["shortcuts"]:
        _print_rows("Available keyboard shortcuts:", SHORTCUTS)
    else:
        _print_rows("Available Commands:", [(usage, text) for _, _, usage, text in COMMANDS if usage])
        print(f"Use {BLOCK_QUOTE} to begin a message of several lines.\n")


def _print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    print(title)
    print(format_columns(rows, indent="  "))


# (name, what it runs, usage, help); a usage of "" is left out of the help.
COMMANDS: tuple[tuple[str, Command, str, str], ...] = (
    ("/list", _list, "/list", "List the models on this machine"),
    ("/load", _load, "/load <model>", "Load another model and start afresh"),
    ("/save", _save, "/save <model>", "Save the session as a new model"),
    ("/clear", _clear, "/clear", "Forget the messages so far"),
    ("/set", _set, "/set", "Set session variables"),
    ("/show", _show, "/show", "Show model information"),
    ("/bye", _bye, "/bye", "Leave"),
    ("/exit", _bye, "", ""),
    ("/help", _help, "", ""),
    ("/?", _help, "/?, /help", "Help about a command"),
    ("/? shortcuts", _help, "/? shortcuts", "Help about the keyboard"),
)

SETTINGS: tuple[tuple[str, Command, str, str], ...] = (
    ("parameter", _set_parameter, "parameter <name> <value>", "Set a parameter"),
    ("system", _set_system, "system <message>", "Set the system message"),
    ("history", _switch_history(True), "history", "Keep a history of prompts"),
    ("nohistory", _switch_history(False), "nohistory", "Keep no history of prompts"),
    ("wordwrap", _switch("word_wrap", True, "wordwrap"), "wordwrap", "Wrap rows at words"),
    ("nowordwrap", _switch("word_wrap", False, "nowordwrap"), "nowordwrap", "Do not wrap rows"),
    ("format", _set_format, "format json", "Answer in JSON, or by a schema: its text, or a file"),
    ("noformat", _set_noformat, "noformat", "Answer in any form"),
    ("verbose", _switch("verbose", True, "verbose"), "verbose", "Print timings after each answer"),
    ("quiet", _switch("verbose", False, "quiet"), "quiet", "Print no timings"),
    ("think", _set_think, "think [level]", "Let the model think (high, medium, low, max)"),
    ("nothink", _set_nothink, "nothink", "Do not let the model think"),
)

_SHOWN = {
    "info": "",
    "license": "No license was specified for this model.",
    "modelfile": "No Modelfile is known for this model.",
    "parameters": "",
    "system": "No system message was specified for this model.",
    "template": "No prompt template was specified for this model.",
}
_SHOW_HELP = [
    ("/show info", "What is known of the model"),
    ("/show license", "The licence"),
    ("/show modelfile", "The Modelfile"),
    ("/show parameters", "The parameters of the model and of this session"),
    ("/show system", "The system message"),
    ("/show template", "The prompt template"),
]

SHORTCUTS = [
    ("Ctrl + a / e", "To the beginning / end of the line (Home, End)"),
    ("Ctrl + b / f", "Back / forward one character (Left, Right)"),
    ("Alt + b / f", "Back / forward one word"),
    ("Ctrl + k / u", "Delete to the end / beginning of the line"),
    ("Ctrl + w", "Delete the word before the cursor"),
    ("Ctrl + p / n", "Previous / next line of the history (Up, Down)"),
    ("Ctrl + j", "New line (also Alt + Enter)"),
    ("Ctrl + g", "Edit the message in an editor"),
    ("Ctrl + l", "Clear the screen"),
    ("Ctrl + c", "Stop the answer, or clear the line"),
    ("Ctrl + z", "Suspend"),
    ("Ctrl + d", "Leave (/bye)"),
]
