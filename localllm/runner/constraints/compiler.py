"""Compiles what requests ask for, once for each model and wish; it knows nothing of logits and batches.

Nothing is generated freely that was asked to be constrained: what cannot be compiled is an error of its request.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from kernels_cpu.compile import compile_all, constraint_kernels
from localllm.errors import RequestError
from localllm.grammar.constraint import Constraint
from localllm.grammar.errors import TooComplexError
from localllm.grammar.expressions import Grammar
from localllm.grammar.lazy import read_triggers
from localllm.grammar.vocabulary import Vocabulary
from localllm.messages import GenerateRequest
from localllm.runner.checks import function_of, is_strict, shown_tools
from localllm.runner.constraints.answers import Calls, answer_grammar
from localllm.runner.constraints.call_forms import CallForm, call_form
from localllm.runner.constraints.compiled import Compiled
from localllm.runner.constraints.element_arguments import Argument, element_arguments
from localllm.runner.constraints.frame import Frame
from localllm.runner.constraints.free_text import Marks
from localllm.runner.constraints.lazy_matcher import LazyConstraint
from localllm.runner.constraints.vocabulary import vocabulary_of
from localllm.runner.constraints.wanted import ANY_OBJECT, Wanted, wanted_of_format, wanted_of_gbnf, wanted_of_schema
from localllm.tokenizer import Tokenizer

# A constraint takes 1 to 3 MB with a vocabulary of 128k tokens, and 32 MB at most beside its masks.
MAX_KEPT = 32


class Constraints:
    """The constraints of one model's requests; those used last are kept."""

    def __init__(self, name: str, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._marks = Marks(tokenizer)
        self._ends = tuple(tokenizer.piece(t, special=True).decode(errors="replace") for t in sorted(tokenizer.eog_ids))
        self._vocabulary = lru_cache(1)(self._make_vocabulary)
        self._schema = lru_cache(MAX_KEPT)(_wanted_of_schema_text)
        self._compiled = lru_cache(MAX_KEPT)(self._compile)

    def of(self, request: GenerateRequest, frame: Frame) -> Compiled | None:
        """What constrains a request's answer, None where nothing does.

        Raises:
            RequestError: it cannot be compiled or enforced; the text says where the fault is.
        """
        if not _asks_for_constraint(request):
            return None
        wish = {
            "format": _format_of(request),
            "grammar": request.grammar,
            "triggers": request.grammar_triggers if request.grammar_lazy else None,
            "tools": shown_tools(request) or [],
            "tool_choice": None if request.tool_choice in ("auto", "none") else request.tool_choice,
            "is_single": not request.parallel_tool_calls,
        }
        text = json.dumps(wish, ensure_ascii=False)
        # What has been begun differs from one conversation to the next, and changes nothing but where to start.
        constraint, warnings = self._compiled(text, replace(frame, begun="begun" if frame.begun else ""))
        return Compiled(constraint, warnings, frame.begun.encode("utf-8", "replace"))

    def _compile(self, text: str, frame: Frame) -> tuple[Constraint | LazyConstraint, tuple[str, ...]]:
        wish = json.loads(text)
        try:
            wanted = self._content(wish)
            calls, warnings = self._calls(wish, frame)
            if frame.problem:
                raise RequestError(frame.problem)
            if wish["triggers"] is not None:
                frame = Frame()
            grammar = answer_grammar(self._marks, frame, wanted.grammar if wanted else None, calls)
            constraint = Constraint(grammar, vocabulary := self._vocabulary())
            # What the first token needs is made here too, and not in the thread of the steps.
            constraint.matcher().fill_mask(words := np.zeros(vocabulary.n_words, np.uint32))
            if not words.any():
                raise RequestError("the constraint cannot begin: no token of the vocabulary fits")
            if wish["triggers"] is not None:
                return self._lazy(wish, calls, constraint), ()
            return constraint, (*(wanted.warnings if wanted else ()), *warnings)
        except RecursionError:
            raise TooComplexError("the constraint is nested too deeply") from None

    def _lazy(self, wish: dict[str, Any], calls: Calls | None, constraint: Constraint) -> LazyConstraint:
        """A grammar that begins at its triggers, before which an answer is free."""
        if wish["grammar"] is None or calls is not None:
            raise RequestError("grammar_lazy: expected a grammar, and no tools beside it")
        triggers = read_triggers(wish["triggers"])
        for word in (trigger.value for trigger in triggers if trigger.kind == "word"):
            if not self._begins_with(constraint, word):
                shown = json.dumps(word, ensure_ascii=False)
                raise RequestError(f"grammar_triggers: the grammar does not take {shown}")
        return LazyConstraint(constraint, triggers, self._shown_piece)

    def _begins_with(self, constraint: Constraint, word: str) -> bool:
        """Whether a word can begin a text, as bytes or as tokens of the vocabulary."""
        tokens = self._tokenizer.encode(word, add_special=False, is_continuation=True)
        has_bytes = constraint.matcher().accept_bytes(word.encode("utf-8", "replace"))
        return has_bytes or constraint.matcher().n_accepted(tokens) == len(tokens)

    def _shown_piece(self, token: int) -> bytes:
        return self._tokenizer.piece(token, special=True)

    def _content(self, wish: dict[str, Any]) -> Wanted | None:
        """What the text of an answer must be, None for any. Raises: RequestError."""
        if wish["format"] is not None and wish["grammar"] is not None:
            raise RequestError("format and grammar exclude each other")
        if wish["grammar"] is not None:
            return wanted_of_gbnf(wish["grammar"], self._token_id)
        return None if wish["format"] is None else wanted_of_format(wish["format"], self._token_id)

    def _token_id(self, text: str) -> int | None:
        tokens = self._tokenizer.encode(text, add_special=False, is_continuation=True)
        is_one = len(tokens) == 1 and self._tokenizer.piece(tokens[0], special=True) == text.encode()
        return tokens[0] if is_one else None

    def _calls(self, wish: dict[str, Any], frame: Frame) -> tuple[Calls | None, tuple[str, ...]]:
        choice, functions = wish["tool_choice"], [function_of(tool) for tool in wish["tools"]]
        if not functions:
            return None, ()
        if isinstance(choice, dict):
            functions = [function for function in functions if function.get("name") == choice["name"]]
        names = [str(function.get("name")) for function in functions]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise RequestError(f'tools: "{twice}" is the name of several, so its calls cannot be constrained')
        strict = [str(function_of(tool).get("name")) for tool in wish["tools"] if is_strict(tool)]
        form = None
        if not frame.has_channels:
            if frame.template is None:
                raise RequestError("tools: a raw prompt tells of none, so calls cannot be constrained")
            form = call_form(frame.template, frame.call_begun, self._ends)
            if form is None or (form.parts.before == "" and not choice):
                what = (
                    'tool_choice: "required" or a function' if choice else 'tools: "strict", or `format` beside tools,'
                )
                raise RequestError(
                    f'{what} is not supported with "{self._name}", which writes calls in a way of its own'
                )
        arguments: dict[str, Grammar | tuple[Argument, ...]] = {}
        warnings: list[str] = []
        for function in functions:
            name = str(function.get("name"))
            obeys = choice is not None or name in strict
            schema = function.get("parameters") if obeys else None
            schema = {} if schema is None else schema
            arguments[name], told = self._arguments(name, schema, name in strict, form)
            warnings += [f"tools.{name}.parameters: {warning}" for warning in told]
        is_required = choice is not None
        is_single = wish["is_single"] or isinstance(choice, dict)
        return Calls(arguments, form, is_required, is_single), tuple(warnings)

    def _arguments(
        self, name: str, schema: Any, is_strict: bool, form: CallForm | None
    ) -> tuple[Grammar | tuple[Argument, ...], tuple[str, ...]]:
        """The arguments of a tool, and warnings. Those that need not obey their schema, and cannot, are any object."""
        try:
            if not isinstance(schema, dict) or schema.get("type", "object") != "object":
                raise RequestError("expected a schema of an object")
            if form is not None and form.parts.elements:
                return element_arguments(schema, self._schema_of)
            wanted = self._schema_of({**schema, "type": "object"})
            return wanted.grammar, wanted.warnings
        except RequestError as error:
            if is_strict:
                raise RequestError(f"tools.{name}.parameters: {error}") from error
            if form is not None and form.parts.elements:
                keys = schema.get("properties") or {} if isinstance(schema, dict) else {}
                return tuple(Argument(key, False, None) for key in keys), (str(error),)
            return self._schema_of(ANY_OBJECT).grammar, (str(error),)

    def _schema_of(self, schema: dict[str, Any]) -> Wanted:
        return self._schema(json.dumps(schema, ensure_ascii=False))

    def _make_vocabulary(self) -> Vocabulary:
        compile_all(constraint_kernels())  # here, not in the thread of the steps
        return vocabulary_of(self._name, self._tokenizer, self._n_vocab)


def _asks_for_constraint(request: GenerateRequest) -> bool:
    has_choice = request.tool_choice not in (None, "auto", "none")
    is_any_strict = any(is_strict(tool) for tool in shown_tools(request) or [])
    return _format_of(request) is not None or request.grammar is not None or has_choice or is_any_strict


def _format_of(request: GenerateRequest) -> Any:
    """What is asked for; an empty text is nothing, but an empty schema is any JSON."""
    return None if request.format == "" else request.format


def _wanted_of_schema_text(text: str) -> Wanted:
    return wanted_of_schema(json.loads(text))
