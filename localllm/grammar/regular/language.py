"""Regular languages of strings: made, combined, compared; what is written of them it does not know.

A language is kept in one of three forms: words (finitely many, or all but finitely many), a power (from so many to so
many characters of one set), or an automaton. What a language is decides its form, so that equal ones have equal keys,
but for finite ones of many words.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from typing import TypeAlias

from localllm.grammar.dfa import DEAD
from localllm.grammar.regular import automaton as automata
from localllm.grammar.regular import charsets
from localllm.grammar.regular.automaton import Automaton
from localllm.grammar.regular.charsets import Charset
from localllm.grammar.regular.compile import compile_tree
from localllm.grammar.regular.memory import Memory
from localllm.grammar.regular.parser import parse

# Automata of no more words than these become words.
MAX_WORDS = 64

# States, of eight classes each, that all remembered languages have together.
MAX_REMEMBERED = 300_000

# Letters of so many words are made an automaton to be compared with others.
MAX_COMPARED = 4000

_SURROGATE = re.compile("[\ud800-\udfff]")


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


class Language:
    """An immutable regular set of strings of Unicode code points, none of which holds a surrogate."""

    __slots__ = ("__dict__", "form")

    def __init__(self, form: Form) -> None:
        """Of a normal form: see `_normal`."""
        self.form = form

    @staticmethod
    def any() -> Language:
        """All strings."""
        return _ANY

    @staticmethod
    def none() -> Language:
        """No string."""
        return _NONE

    @staticmethod
    def of_strings(strings: Iterable[str]) -> Language:
        """Exactly these; those with surrogates are left out."""
        return Language(Words(frozenset(text for text in strings if not _SURROGATE.search(text))))

    @staticmethod
    def of_regex(pattern: str, *, anchored: bool = False) -> Language:
        """The strings that hold a match of an ECMA-262 pattern, or, `anchored`, that it matches as a whole.

        Raises: PatternError for what is malformed or unsupported, TooComplexError.
        """
        return _PATTERNS.get((pattern, anchored), lambda: _of_regex(pattern, anchored))

    @staticmethod
    def of_format(name: str) -> Language | None:
        """The strings of a format of JSON Schema; None where it has none that could be enforced."""
        from localllm.grammar.regular.formats import language_of

        return language_of(name)

    @staticmethod
    def of_length(least: int, most: int | None) -> Language:
        """All strings from `least` to `most` characters."""
        return _normal(Power(charsets.EVERYTHING, least, most))

    # Combined

    def __or__(self, other: Language) -> Language:
        if self is other or other.is_empty or self.is_any:
            return self
        if self.is_empty or other.is_any:
            return other
        return (
            (self.complement() & other.complement()).complement()
            if _is_words(self, other)
            else _joined(self, other, "union")
        )

    def __and__(self, other: Language) -> Language:
        if self is other or self.is_empty or other.is_any:
            return self
        if other.is_empty or self.is_any:
            return other
        one, two = self.form, other.form
        if isinstance(one, Words) and not one.negated:
            return Language.of_strings(filter(other.contains, one.words))
        if isinstance(two, Words) and not two.negated:
            return Language.of_strings(filter(self.contains, two.words))
        if isinstance(one, Words) and isinstance(two, Words):
            return Language(Words(one.words | two.words, True))
        for words, rest in ((one, other), (two, self)):
            if isinstance(words, Words) and not any(map(rest.contains, words.words)):
                return rest
        if isinstance(one, Power) and isinstance(two, Power):
            bounds = [most for most in (one.most, two.most) if most is not None]
            charset = charsets.intersection(one.charset, two.charset)
            return _normal(Power(charset, max(one.least, two.least), min(bounds, default=None)))
        for power, rest in ((one, other), (two, self)):
            if isinstance(power, Power) and power.charset == charsets.EVERYTHING:
                least, most = rest.length_bounds()
                if least >= power.least and (power.most is None or (most is not None and most <= power.most)):
                    return rest
        return _joined(self, other, "intersection")

    def __sub__(self, other: Language) -> Language:
        if isinstance(self.form, Words) or isinstance(other.form, Words):
            return self & other.complement()
        return _NONE if self is other else _joined(self, other, "difference")

    def complement(self) -> Language:
        """All other strings."""
        return self._complement

    @functools.cached_property
    def _complement(self) -> Language:
        if isinstance(self.form, Words):
            return Language(Words(self.form.words, not self.form.negated))
        return _normal(automata.complement(self.automaton))

    def concat(self, other: Language) -> Language:
        """A string of this one followed by one of the other."""
        if self.is_empty or other.is_empty:
            return _NONE
        return _normal(automata.concatenation(self.automaton, other.automaton))

    # Asked

    @property
    def is_empty(self) -> bool:
        return isinstance(self.form, Words) and not self.form.words and not self.form.negated

    @property
    def is_any(self) -> bool:
        return isinstance(self.form, Words) and not self.form.words and self.form.negated

    @functools.cached_property
    def is_finite(self) -> bool:
        if isinstance(self.form, Words):
            return not self.form.negated
        return self.length_bounds()[1] is not None

    def strings(self, limit: int) -> list[str] | None:
        """All strings, sorted, if there are at most `limit` of them."""
        if isinstance(self.form, Words):
            return None if self.form.negated or len(self.form.words) > limit else sorted(self.form.words)
        if not self.is_finite or count_words(self.automaton, limit) > limit:
            return None
        return sorted(_words(self.automaton))

    def contains(self, text: str) -> bool:
        """Whether a string is in it."""
        form = self.form
        if isinstance(form, Words):
            return (text in form.words) != form.negated and not _SURROGATE.search(text)
        if isinstance(form, Automaton):
            return form.contains(text)
        if len(text) < form.least or (form.most is not None and len(text) > form.most) or _SURROGATE.search(text):
            return False
        return form.charset == charsets.EVERYTHING or all(
            charsets.holds(form.charset, charsets.letter(ord(c))) for c in text
        )

    def isdisjoint(self, other: Language) -> bool:
        """Whether no string is in both."""
        if isinstance(self.form, Automaton) and isinstance(other.form, Automaton):
            return automata.are_disjoint(self.form, other.form)
        return (self & other).is_empty

    def length_bounds(self) -> tuple[int, int | None]:
        """The fewest and the most characters of a string; None is without bound. Of the empty language (0, 0)."""
        form = self.form
        if isinstance(form, Power):
            return form.least, form.most
        if isinstance(form, Words) and not form.negated:
            lengths = [len(word) for word in form.words]
            return min(lengths, default=0), max(lengths, default=0)
        return self._automaton_bounds

    @functools.cached_property
    def _automaton_bounds(self) -> tuple[int, int | None]:
        return automaton_bounds(self.automaton)

    @functools.cached_property
    def automaton(self) -> Automaton:
        """The minimal automaton.

        Raises: TooComplexError.
        """
        if isinstance(self.form, Automaton):
            return self.form
        if isinstance(self.form, Power):
            return automata.of_power(self.form.charset, self.form.least, self.form.most)
        found = automata.of_words(sorted(self.form.words))
        return automata.complement(found) if self.form.negated else found

    @functools.cached_property
    def key(self) -> bytes:
        """Equal for equal languages and for no others: 16 bytes.

        More words than `MAX_COMPARED` letters are equal to the same words only.
        """
        form = self.form
        if isinstance(form, Power):
            told = repr((form.charset, form.least, form.most))
        elif isinstance(form, Words) and len(form.words) <= MAX_WORDS:
            told = repr((sorted(form.words), form.negated))
        elif isinstance(form, Automaton):
            return form.key
        elif sum(map(len, form.words)) <= MAX_COMPARED:
            # Words may be many enough to be a power or an automaton; what they are decides.
            normal = _normal_automaton(self.automaton)
            return normal.key if isinstance(normal, Automaton) else Language(normal).key
        else:
            told = repr((sorted(form.words), form.negated))
        return hashlib.blake2b(told.encode(), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Language) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        form = self.form
        if isinstance(form, Words):
            return f"Language({'all but ' if form.negated else ''}{sorted(form.words)})"
        if isinstance(form, Power):
            return f"Language({form.least} to {form.most} of {charsets.size(form.charset)} characters)"
        return f"Language({form.n_states} states)"


def _is_words(*languages: Language) -> bool:
    return all(isinstance(language.form, Words) for language in languages)


def _joined(one: Language, other: Language, how: str) -> Language:
    return _JOINED.get(
        (one.key, other.key, how), lambda: _normal(automata.combine(one.automaton, other.automaton, how))
    )


def _of_regex(pattern: str, anchored: bool) -> Language:
    return _normal(compile_tree(parse(pattern), is_search=not anchored))


def _normal(form: Power | Automaton) -> Language:
    """The language of a form, in the form that such languages have."""
    if isinstance(form, Automaton):
        return Language(_normal_automaton(form))
    if (form.most is not None and form.most < form.least) or (form.least and not form.charset):
        return _NONE
    if form.most == 0 or not form.charset:
        return Language(Words(frozenset([""])))
    if form.charset == charsets.EVERYTHING and form.most is None and form.least <= 1:
        return Language(Words(frozenset([""] * form.least), True))
    if _has_few_words(form):
        return Language(_normal_automaton(automata.of_power(form.charset, form.least, form.most)))
    return Language(form)


def _has_few_words(power: Power) -> bool:
    n = charsets.size(power.charset)
    return (
        power.most is not None
        and max(n, power.most) <= MAX_WORDS
        and sum(n**k for k in range(power.least, power.most + 1)) <= MAX_WORDS
    )


def _normal_automaton(automaton: Automaton) -> Form:
    if automaton.is_empty:
        return Words(frozenset())
    if count_words(automaton, MAX_WORDS) <= MAX_WORDS:
        return Words(frozenset(_words(automaton)))
    if _may_be_cofinite(automaton):
        others = automata.complement(automaton)
        if count_words(others, MAX_WORDS) <= MAX_WORDS:
            return Words(frozenset(_words(others)), True)
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


def count_words(automaton: Automaton, limit: int) -> int:
    """How many words it has; more than `limit` where it has more."""
    sizes = [charsets.size(charset) for charset in automaton.charsets]
    ends = automaton.accepting
    counts: dict[int, int] = {}
    active: set[int] = set()
    stack = [(0, False)]
    while stack:
        state, is_done = stack.pop()
        targets = [(c, t) for c, t in enumerate(automaton.rows[state]) if t != DEAD]
        if is_done:
            active.discard(state)
            counts[state] = ends[state] + sum(sizes[c] * counts[t] for c, t in targets)
            if counts[state] > limit:
                return limit + 1
        elif state not in counts:
            active.add(state)
            stack.append((state, True))
            for _, target in targets:
                if target in active:
                    return limit + 1
                if target not in counts:
                    stack.append((target, False))
    return counts[0]


def _words(automaton: Automaton) -> Iterable[str]:
    """The words of a finite language."""
    stack = [(0, "")]
    while stack:
        state, word = stack.pop()
        if automaton.accepting[state]:
            yield word
        for c, target in enumerate(automaton.rows[state]):
            if target != DEAD:
                for first, last in automaton.charsets[c]:
                    stack += [(target, word + chr(charsets.code_point(x))) for x in range(first, last + 1)]


def automaton_bounds(automaton: Automaton) -> tuple[int, int | None]:
    """The lengths of the shortest and the longest word; None where there is no longest, (0, 0) where there is none."""
    if automaton.is_empty:
        return 0, 0
    rows = [sorted({t for t in row if t != DEAD}) for row in automaton.rows]
    depth, here = 0, {0}
    while not any(automaton.accepting[state] for state in here):
        here = {t for state in here for t in rows[state]}
        depth += 1
    n_before = [0] * len(rows)
    for row in rows:
        for target in row:
            n_before[target] += 1
    longest, ready = {0: 0}, [0] if n_before[0] == 0 else []
    n_done = 0
    most = 0
    while ready:
        state = ready.pop()
        n_done += 1
        if automaton.accepting[state]:
            most = max(most, longest[state])
        for target in rows[state]:
            longest[target] = max(longest.get(target, 0), longest[state] + 1)
            n_before[target] -= 1
            if n_before[target] == 0:
                ready.append(target)
    return depth, most if n_done == len(rows) else None


_ANY = Language(Words(frozenset(), True))
_NONE = Language(Words(frozenset()))


def _size(language: Language) -> int:
    return language.form.n_states * language.form.n_classes // 8 if isinstance(language.form, Automaton) else 1


_PATTERNS: Memory[Language] = Memory(MAX_REMEMBERED, _size)
_JOINED: Memory[Language] = Memory(MAX_REMEMBERED, _size)
