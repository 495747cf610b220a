"""From the grammar of content, and of calls, to that of a whole answer; it knows nothing of schemas and requests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from localllm.chat.harmony import CHANNEL, CONSTRAIN, ENDS, MESSAGE, START
from localllm.chat.tools.detect import PROBE_ID
from localllm.grammar.expressions import EMPTY, Choice, Expression, Grammar, Literal, Repeat, choice, optional, sequence
from localllm.runner.constraints.call_forms import CallForm, Elements, Parts
from localllm.runner.constraints.element_arguments import Argument
from localllm.runner.constraints.frame import Frame
from localllm.runner.constraints.free_text import Marks, blanks, one_of, text_without
from localllm.runner.constraints.rules import Rules

ID_LENGTH = len(PROBE_ID)
_DIGITS = b"0123456789"
_ALPHANUMERIC = _DIGITS + bytes(range(65, 91)) + bytes(range(97, 123))
# An id that the model makes up; Kimi numbers calls after the name.
_MADE_UP = re.compile(rf"({PROBE_ID}|(?<=^:)0(?=\D))")


@dataclass(frozen=True)
class Calls:
    """The calls that an answer may have: for each name a grammar of the arguments, or the arguments one by one.

    `is_required`: it consists of them; else it may be other text. `is_single`: there is at most one.
    """

    arguments: dict[str, Grammar | tuple[Argument, ...]]
    form: CallForm | None
    is_required: bool
    is_single: bool


def answer_grammar(marks: Marks, frame: Frame, content: Grammar | None, calls: Calls | None) -> Grammar:
    """All that a model may write. Without `content` any text is content."""
    if content is not None and calls is None and not (frame.tags or frame.has_channels):
        return content
    return _Builder(marks, frame, content, calls).grammar()


class _Builder:
    def __init__(self, marks: Marks, frame: Frame, content: Grammar | None, calls: Calls | None) -> None:
        self._marks, self._frame, self._calls = marks, frame, calls
        self._rules = Rules()
        self._content = None if content is None else self._rules.add(content)
        arguments = calls.arguments if calls else {}
        self._arguments = {name: self._made_arguments(made) for name, made in arguments.items()}

    def grammar(self) -> Grammar:
        root = self._in_channels() if self._frame.has_channels else sequence(self._thinking(), self._body())
        return self._rules.grammar(root)

    def _thinking(self) -> Expression:
        """Thinking at the beginning, and the blanks and wrappers after it."""
        tags, frame = self._frame.tags, self._frame
        if tags is None or frame.begun or not (frame.may_think or frame.is_thinking):
            return EMPTY
        wrappers = [Repeat(Choice(tuple(self._marks.expression(w) for w in tags.wrappers)), 0, len(tags.wrappers))]
        rest = [self._marks.up_to(tags.close), blanks(), *(wrappers if tags.wrappers else ()), blanks()]
        opened = [blanks(), self._marks.expression(tags.open)]
        if frame.is_thinking:
            return sequence(optional(sequence(*opened)), *rest)
        return optional(sequence(*opened, *rest))

    def _body(self) -> Expression:
        calls = self._calls
        if calls is None:
            assert self._content is not None, "there is something to constrain"
            return self._content
        written = self._written_calls(calls)
        if calls.is_required:
            return written
        if self._content is not None:
            return choice([self._content, written])
        form = calls.form
        assert form is not None, "calls are written in a form"
        text = text_without(form.openers, form.first_openers)
        return sequence(text, optional(written)) if form.is_anywhere else choice([text, written])

    def _written_calls(self, calls: Calls) -> Expression:
        form = calls.form
        assert form is not None, "calls are written in a form"
        first = self._call(form.parts, form.parts.before)
        if calls.is_single:
            return first
        return sequence(first, Repeat(sequence(blanks(2), self._call(form.parts, form.again)), 0, None))

    def _call(self, parts: Parts, before: str) -> Expression:
        middle = self._made(parts.middle)
        named = [
            sequence(Literal((json.dumps(name)[1:-1] if parts.is_name_json else name).encode()), middle, arguments)
            for name, arguments in self._arguments.items()
        ]
        return sequence(self._made(before), choice(named), self._made(parts.after))

    def _made_arguments(self, arguments: Grammar | tuple[Argument, ...]) -> Expression:
        if isinstance(arguments, Grammar):
            return self._rules.add(arguments)
        assert self._calls is not None and self._calls.form is not None
        elements = self._calls.form.parts.elements
        assert elements is not None, "arguments are written one by one"
        return sequence(*(self._argument(elements, argument) for argument in arguments))

    def _argument(self, elements: Elements, argument: Argument) -> Expression:
        mark = self._marks.expression
        begin = sequence(mark(elements.before), Literal(argument.key.encode()), mark(elements.middle))
        if argument.grammar is not None:
            whole = sequence(begin, self._rules.add(argument.grammar), mark(elements.after))
        else:
            close = elements.after.strip()
            rest = elements.after[elements.after.index(close) + len(close) :]
            whole = sequence(begin, self._marks.up_to(close), mark(rest))
        return whole if argument.is_required else optional(whole)

    def _made(self, text: str) -> Expression:
        """A text, with any id where there is one."""
        parts = _MADE_UP.split(text)
        items: list[Expression] = []
        for i, part in enumerate(parts):
            if i % 2 == 0:
                items += [self._marks.expression(part)] if part else []
            elif part == PROBE_ID:
                items.append(Repeat(one_of(_ALPHANUMERIC), ID_LENGTH, ID_LENGTH))
            else:
                items.append(Repeat(one_of(_DIGITS), 1, 3))
        return sequence(*items)

    def _in_channels(self) -> Expression:
        """Analysis, as often as the model likes, then a message in the final channel, or a call."""
        if self._frame.begun:
            return self._final()
        mark = self._marks.expression
        analysis = sequence(
            mark(f"{CHANNEL}analysis{MESSAGE}"), self._marks.up_to("<|end|>"), mark(f"{START}assistant")
        )
        constrained = optional(sequence(optional(Literal(b" ")), mark(f"{CONSTRAIN}json")))
        header = sequence(mark(f"{CHANNEL}final"), constrained, mark(MESSAGE))
        endings: list[Expression] = []
        if self._calls is None or not self._calls.is_required:
            endings.append(sequence(header, self._final()))
        if self._calls is not None:
            endings.append(self._call_in_channel())
        return sequence(Repeat(analysis, 0, None), choice(endings))

    def _final(self) -> Expression:
        return text_without(ENDS) if self._content is None else self._content

    def _call_in_channel(self) -> Expression:
        mark = self._marks.expression
        head = mark(f"{CHANNEL}commentary to=functions.")
        middle = mark(f" {CONSTRAIN}json{MESSAGE}")
        named = [sequence(Literal(name.encode()), middle, arguments) for name, arguments in self._arguments.items()]
        return sequence(head, choice(named))
