"""Languages as expressions of a grammar: their UTF-8, or the JSON text of their strings."""

from __future__ import annotations

import functools
import json

from localllm.grammar.dfa import Dfa
from localllm.grammar.expressions import NEVER, Expression, Literal, Repeat, Sequence, Terminal
from localllm.grammar.regular import automaton, charsets
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.encoding import json_dfa, utf8_dfa
from localllm.grammar.regular.free_strings import free_string_dfa
from localllm.grammar.regular.language import MAX_REMEMBERED, Language, Power, Words
from localllm.grammar.regular.memory import Memory

# Powers with bounds beyond this become counts; below it states are cheaper.
MAX_UNROLLED = 32

JSON_CHARACTER: Dfa = json_dfa(automaton.of_power(charsets.EVERYTHING, 1, 1), is_quoted=False)
FREE_STRING: Dfa = free_string_dfa()

_QUOTE = Literal(b'"')
_FREE_STRING = Terminal(FREE_STRING)
_JSON_CHARACTER = Terminal(JSON_CHARACTER)


def json_string(language: Language) -> Expression:
    """The JSON text of a language's strings, with the quotes, in canonical spelling.

    Every character stands for itself, but `"`, a backslash and controls, which have their short escapes or, where there
    is none, \\u00XX. The language of all strings is free in its spelling.

    Raises: TooComplexError.
    """
    return _WRITTEN.get((language.key, True), lambda: _json_string(language))


def _json_string(language: Language) -> Expression:
    if language.is_any:
        return _FREE_STRING
    if language.bounds[0].is_empty:
        return NEVER
    form = language.form
    word = _only(language)
    if word is not None:
        text = json.dumps(word, ensure_ascii=False)
        if "\\u" not in text:
            return Literal(text.encode())
    if isinstance(form, Power) and _is_counted(form):
        return Sequence((_QUOTE, Repeat(_json_character(form.charset), form.least, form.most), _QUOTE))
    return Terminal(json_dfa(language.automaton))


def utf8(language: Language) -> Expression:
    """A language's strings themselves.

    Raises: TooComplexError.
    """
    return _WRITTEN.get((language.key, False), lambda: _utf8(language))


def _utf8(language: Language) -> Expression:
    if language.bounds[0].is_empty:
        return NEVER
    form = language.form
    word = _only(language)
    if word is not None:
        return Literal(word.encode())
    if isinstance(form, Power) and _is_counted(form):
        return Repeat(Terminal(utf8_dfa(automaton.of_power(form.charset, 1, 1))), form.least, form.most)
    return Terminal(utf8_dfa(language.automaton))


def _size(expression: Expression) -> int:
    return expression.dfa.n_states if isinstance(expression, Terminal) else 1


_WRITTEN: Memory[Expression] = Memory(MAX_REMEMBERED, _size)


def _only(language: Language) -> str | None:
    """The word of a language of one."""
    form = language.form
    return next(iter(form.words)) if isinstance(form, Words) and not form.negated and len(form.words) == 1 else None


def _is_counted(power: Power) -> bool:
    return power.charset == charsets.EVERYTHING or (power.most or power.least) > MAX_UNROLLED


@functools.lru_cache(maxsize=256)
def _json_character(charset: Charset) -> Terminal:
    if charset == charsets.EVERYTHING:
        return _JSON_CHARACTER
    return Terminal(json_dfa(automaton.of_power(charset, 1, 1), is_quoted=False))
