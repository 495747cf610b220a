"""Answers in channels. gpt-oss: analysis is thinking, commentary to a function a call, the rest content; Glimmer: what
is said to itself is thinking, and calls are written in a way of their own.

It finds the messages in the text of an answer, and adapts earlier ones; it renders nothing and knows no tokens.
"""

from __future__ import annotations

import re

from localllm.chat.conversation import BETWEEN_TURNS, Message, normalised, with_one_call_each
from localllm.chat.parts import Part, Text, Thinking, joined, overlap
from localllm.chat.tools.declared import Tools
from localllm.chat.tools.json_text import Spans, parsed
from localllm.chat.tools.reader import CallReader

CHANNEL, MESSAGE, START, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>", START, CHANNEL)
TO_SELF = "to=self"
FINAL, ANALYSIS = f"{CHANNEL}final{MESSAGE}", f"{CHANNEL}analysis{MESSAGE}"
NEXT = f"<|end|>{START}assistant"

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_HEADERS = (CHANNEL, START, MESSAGE, CONSTRAIN, "to=", f"assistant{CHANNEL}", f"assistant{MESSAGE}", "assistant to=")
_NO_TOOLS = Tools([])


def is_harmony(source: str) -> bool:
    """Whether a template's source is one of channels."""
    return START in source and MESSAGE in source and (CHANNEL in source or TO_SELF in source)


def has_json_calls(source: str) -> bool:
    """Whether what is said to a function are its arguments, as gpt-oss has it."""
    return CHANNEL in source


def history(messages: list[Message]) -> list[Message]:
    """The conversation as gpt-oss's own template takes it: each call with its result after it, and what was said before
    a call joined to the thinking, since it refuses to write both."""
    return [_with_one_text(message) for message in with_one_call_each(normalised(messages))]


def _with_one_text(message: Message) -> Message:
    thinking, content = message.get("thinking"), message["content"]
    if not (thinking and content and message.get("tool_calls")):
        return message
    joined = f"{thinking}{BETWEEN_TURNS}{content}"
    return {**message, "content": "", "thinking": joined, "reasoning_content": joined}


class HarmonyReader:
    """Tells thinking, content and calls apart.

    A call of a tool that is not declared, or whose arguments are no JSON object, is content: its arguments' text.
    Commentary to nobody is meant for the user, hence content, in which `calls` looks for calls of another kind.
    `is_final`: the prompt ended inside the final channel.
    """

    tags = (CONSTRAIN, MESSAGE, *ENDS)

    def __init__(self, tools: Tools | None = None, is_final: bool = False, calls: CallReader | None = None) -> None:
        self._tools = tools or _NO_TOOLS
        self._calls = calls
        self._spans = Spans()
        self._held = ""
        self._body: type[Text] | type[Thinking] | None = Text if is_final else None  # None: in a header
        self._recipient: str | None = None
        self._is_called = False  # the arguments of this message were complete
        self._is_first = True  # no header has been read

    @property
    def n_held(self) -> int:
        return len(self._held) + (self._calls.n_held if self._calls else 0)

    def feed(self, text: str) -> list[Part]:
        self._held += text
        return self._drain(is_end=False)

    def flush(self) -> list[Part]:
        parts = self._drain(is_end=True)
        if self._is_short_answer():
            parts += self._shown(self._held)
        self._held = ""
        return joined([*parts, *self._rest()])

    def _is_short_answer(self) -> bool:
        """What is held is no header that was cut, but all of an answer without channels, which could have been one."""
        is_header = self._held.lstrip().startswith(("to=", "assistant", *self.tags))
        return self._body is None and self._is_first and not is_header

    def _drain(self, is_end: bool) -> list[Part]:
        parts: list[Part] = []
        while self._held or (is_end and self._recipient):
            step = self._read_header() if self._body is None else self._read_body(is_end)
            if step is None:
                break
            parts += step
        return joined(parts)

    def _read_header(self) -> list[Part] | None:
        at = self._held.find(MESSAGE)
        begun = self._held.lstrip()
        if not any(begun.startswith(h) or h.startswith(begun) for h in _HEADERS):
            self._body = Text  # an answer without channels
            return []
        if at < 0:
            return None
        header, self._held = self._held[:at], self._held[at + len(MESSAGE) :]
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._recipient = self._tools.name(recipient[1]) if recipient else None
        is_thinking = TO_SELF in header or (channel is not None and channel[1] == "analysis" and recipient is None)
        self._body, self._is_called = Thinking if is_thinking else Text, False
        self._is_first = False
        return []

    def _read_body(self, is_end: bool) -> list[Part] | None:
        found = [(at, tag) for tag in ENDS if (at := self._held.find(tag)) >= 0]
        at, tag = min(found, default=(len(self._held), ""))
        if self._recipient:
            return self._read_call(at, tag, is_end)
        if tag:
            return self._ended(self._shown(self._held[:at]), at, tag)
        n = at if is_end else at - overlap(self._held, ENDS)
        part = self._shown(self._held[:n])
        self._held = self._held[n:]
        return part if n else None

    def _read_call(self, at: int, tag: str, is_end: bool) -> list[Part] | None:
        """The arguments: a call as soon as they are complete; text if they end before, or are none."""
        assert self._recipient
        begun = self._held[:at].lstrip()
        start = at - len(begun)
        is_over = bool(tag) or is_end
        end = (
            self._spans.end(self._held[:at], start) if begun.startswith("{") else at if is_over and not begun else None
        )
        may_go_on = begun.startswith("{") or any(end_tag.startswith(begun) for end_tag in ENDS)
        if end is None and may_go_on and not is_over:
            return None
        arguments = parsed(self._held[start:end]) if begun else {}
        call = None if end is None else self._tools.call(self._recipient, arguments)
        self._recipient = None
        if call is None:
            return []  # its text follows as content
        self._held, self._is_called = self._held[end:], True
        return [call]

    def _shown(self, text: str) -> list[Part]:
        if self._body is Thinking:
            return [Thinking(text)]
        if self._is_called:
            text = text.lstrip()
            self._is_called = not text
        return self._calls.feed(text) if self._calls else [Text(text)]

    def _rest(self) -> list[Part]:
        return self._calls.flush() if self._calls else []

    def _ended(self, parts: list[Part], at: int, tag: str) -> list[Part]:
        self._held = self._held[at if tag == CHANNEL else at + len(tag) :]
        self._body, self._is_called = None, False
        return [*parts, *self._rest()]
