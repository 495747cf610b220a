"""The three forms of languages, and which of them a language has; how languages are combined they do not know.

Words are finitely many, or all but finitely many; a power is from so many to so many characters of one set; all else is
an automaton. What a language is decides its form, so that equal ones have the same: an automaton with few words becomes
words, and one that only counts a power.
"""

from __future__ import annotations

from typing import TypeAlias

from localllm.grammar.dfa import DEAD
from localllm.grammar.regular import automaton as automata
from localllm.grammar.regular import charsets
from localllm.grammar.regular.automaton import Automaton
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.measures import count_words, words_of

# Automata of no more words than these become words.
MAX_WORDS = 64


class Words:
    """Finitely many words, or, `negated`, all others."""

    def __init__(self, words: frozenset[str], negated: bool = False) -> None:
        self.words = words
        self.negated = negated


class Power:
    """From `least` to `most` letters of a charset."""

    def __init__(self, charset: Charset, least: int, most: int | None) -> None:
        self.charset = charset
        self.least = least
        self.most = most


Form: TypeAlias = Words | Power | Automaton

NO_WORDS = Words(frozenset())


def normal(form: Power | Automaton) -> Form:
    """The form that the language of a form has."""
    if isinstance(form, Automaton):
        return _normal_automaton(form)
    if (form.most is not None and form.most < form.least) or (form.least and not form.charset):
        return NO_WORDS
    if form.most == 0 or not form.charset:
        return Words(frozenset([""]))
    if form.charset == charsets.EVERYTHING and form.most is None and form.least <= 1:
        return Words(frozenset([""] * form.least), True)
    if _has_few_words(form):
        return _normal_automaton(automata.of_power(form.charset, form.least, form.most))
    return form


def _has_few_words(power: Power) -> bool:
    n = charsets.size(power.charset)
    return (
        power.most is not None
        and max(n, power.most) <= MAX_WORDS
        and sum(n**k for k in range(power.least, power.most + 1)) <= MAX_WORDS
    )


def _normal_automaton(automaton: Automaton) -> Form:
    if automaton.is_empty:
        return NO_WORDS
    if count_words(automaton, MAX_WORDS) <= MAX_WORDS:
        return Words(frozenset(words_of(automaton)))
    if _may_be_cofinite(automaton):
        others = automata.complement(automaton)
        if count_words(others, MAX_WORDS) <= MAX_WORDS:
            return Words(frozenset(words_of(others)), True)
    return _as_power(automaton) or automaton


def _as_power(automaton: Automaton) -> Power | None:
    """The power that a minimal automaton is, if it is one."""
    n = automaton.n_states
    live = [c for c, targets in enumerate(zip(*automaton.rows, strict=True)) if any(t != DEAD for t in targets)]
    if len(live) != 1:
        return None
    follow = [row[live[0]] for row in automaton.rows]
    if follow[:-1] != list(range(1, n)) or follow[-1] not in (DEAD, n - 1):
        return None
    least = automaton.accepting.index(True)
    if not all(automaton.accepting[least:]):
        return None
    return Power(automaton.charsets[live[0]], least, n - 1 if follow[-1] == DEAD else None)


def _may_be_cofinite(automaton: Automaton) -> bool:
    """Whether no beginning of a word is refused."""
    return all(DEAD not in row for row in automaton.rows)
