"""The chat on a terminal: reads a line, answers it or runs it as a command; it knows nothing of HTTP."""

import sys
from typing import Any

from localllm import env
from localllm.cli.answer import AnswerPrinter, notes_on_losses, print_answer, print_notes, print_timings
from localllm.cli.daemon import ensure_running
from localllm.cli.line_input import BLOCK_QUOTE, LineInput
from localllm.cli.session import Session, begin_answer
from localllm.cli.slash import Chat, find_command
from localllm.client import Client, ClientError
from localllm.errors import LocalLLMError


def chat(client: Client, session: Session) -> None:
    """Runs the REPL until Ctrl-D or /bye; the model is in memory already, the terminal quiet."""
    state = Chat(client, session, LineInput(env.state_dir() / "history", keep_history=not env.nohistory()))
    _print_model_messages(state)
    while not state.is_over:
        try:
            _take_line(state, state.lines.read())
        except EOFError:
            state.is_over = True
        except KeyboardInterrupt:
            if state.lines.was_empty:
                print("Use Ctrl + d or /bye to exit.")


def _print_model_messages(state: Chat) -> None:
    """The messages that the Modelfile puts before every chat."""
    for message in state.client.show(state.session.model).get("messages") or []:
        mark = ">>> " if message.get("role") == "user" else ""
        print(f"{mark}{message.get('content', '')}\n")


def _take_line(state: Chat, line: str) -> None:
    command = find_command(line)
    if command is not None:
        command(state, line)
        return
    begin, quote, rest = line.partition(BLOCK_QUOTE)
    message = state.lines.read_block(rest) if quote and not begin.strip() else line.strip("\n")
    if message.strip():
        _answer(state, message)


def _answer(state: Chat, message: str) -> None:
    """One turn. A turn that fails or is stopped before any text leaves no trace in the messages."""
    session = state.session
    session.messages.append({"role": "user", "content": message})
    printer = AnswerPrinter(sys.stdout, wrap=session.word_wrap, hide_thinking=session.hide_thinking)
    try:
        ensure_running(state.client)
        last_chunk = print_answer(begin_answer(state.client.chat, session.chat_body()), printer)
    except KeyboardInterrupt:
        last_chunk = {}
        if not printer.text:
            print()
    except ClientError as error:
        last_chunk = {}
        _print_error(error)
    if not printer.text:
        session.messages.pop()
        return
    session.messages.append(_assistant_message(printer))
    _tell_losses(session, last_chunk)
    if session.verbose:
        print_timings(last_chunk)


def _tell_losses(session: Session, last_chunk: dict[str, Any]) -> None:
    """Say what the model did not read, and what it cannot, but not again what was said before."""
    lost = last_chunk.get("truncated") or {}
    n_left_out, shortened_ctx = lost.get("messages") or 0, last_chunk.get("context_length") or 0
    if n_left_out != session.n_left_out or lost.get("shifted") or shortened_ctx not in (0, session.shortened_ctx):
        hint = "" if session.n_left_out or shortened_ctx else "`/set parameter num_ctx N` sets the context to N tokens"
        print_notes(notes_on_losses(last_chunk), hint)
    session.n_left_out, session.shortened_ctx = n_left_out, shortened_ctx


def _assistant_message(printer: AnswerPrinter) -> dict[str, str]:
    message = {"role": "assistant", "content": printer.text}
    return message | ({"thinking": printer.thinking} if printer.thinking else {})


def _print_error(error: LocalLLMError) -> None:
    print(f"Error: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
