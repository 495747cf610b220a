"""The REPL's input line: editing, history, multi-line blocks; it knows nothing of commands or models."""

import os
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from localllm import env
from localllm.cli.history import HistoryFile

PROMPT, CONTINUATION = ">>> ", "... "
PLACEHOLDER = "Send a message (/? for help)"
BLOCK_QUOTE = '"""'


class LineInput:
    """Reads lines from the terminal. Raises from its methods: EOFError on Ctrl-D, KeyboardInterrupt on Ctrl-C."""

    def __init__(self, history_path: Path, keep_history: bool) -> None:
        # The terminal's answers to cursor queries would mix with what is typed while a model answers.
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
        if env.editor():
            os.environ["VISUAL"] = env.editor()
        self.history = HistoryFile(history_path, keep_history)
        self._session: PromptSession[str] = PromptSession(
            history=self.history,
            key_bindings=_key_bindings(),
            prompt_continuation=_continuation,
            enable_suspend=True,
            tempfile_suffix=".md",
        )

    @property
    def was_empty(self) -> bool:
        """Whether nothing had been typed when Ctrl-C ended the last line."""
        return not self._session.default_buffer.text

    def read(self) -> str:
        """The next line; it holds line feeds if they were pasted or typed with Ctrl-J."""
        return self._session.prompt(PROMPT, placeholder=_placeholder)

    def read_block(self, first: str) -> str:
        """The text of a block whose opening quotes stand before `first`: all lines up to closing quotes."""
        lines = [first]
        while not lines[-1].endswith(BLOCK_QUOTE):
            lines.append(self._session.prompt(CONTINUATION, placeholder=""))
        return "\n".join(lines).removesuffix(BLOCK_QUOTE)


def _placeholder() -> StyleAndTextTuples:
    """Shown while the line is empty, where it fits; it does not stay on the screen when the line is done."""
    application = get_app()
    fits = application.output.get_size().columns > len(PROMPT) + len(PLACEHOLDER)
    return [("ansibrightblack", PLACEHOLDER)] if fits and not application.is_done else []


def _continuation(width: int, line_number: int, is_soft_wrap: int) -> str:
    return "" if is_soft_wrap else CONTINUATION


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-j")
    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-g")
    def _open_editor(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    return bindings
