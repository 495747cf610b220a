"""Regular languages of strings: made, combined, compared; what is written of them it does not know.

A language is kept as what it is (`forms.py`), so that lengths alone need no states, and words no automaton.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable

from localllm.grammar.regular import automaton as automata
from localllm.grammar.regular import charsets
from localllm.grammar.regular.automaton import Automaton
from localllm.grammar.regular.compile import compile_tree
from localllm.grammar.regular.forms import MAX_WORDS, NO_WORDS, Form, Power, Words, normal
from localllm.grammar.regular.measures import count_words, length_bounds, words_of
from localllm.grammar.regular.memory import Memory
from localllm.grammar.regular.parser import parse

# States, of eight classes each, that all remembered languages have together.
MAX_REMEMBERED = 300_000

# Letters of so many words are made an automaton to be compared with others.
MAX_COMPARED = 4000

_SURROGATE = re.compile("[\ud800-\udfff]")


class Language:
    """An immutable regular set of strings of Unicode code points, none of which holds a surrogate.

    Some formats are no regular sets. Their languages hold strings that have the format beyond doubt, and know another
    one that holds all that may have it: operations keep both, so that a complement, too, holds what it must beyond
    doubt. Such a language is empty if no string may be in it, and disjoint with others that none may share with it.
    """

    __slots__ = ("__dict__", "_bounds", "form")

    def __init__(self, form: Form, bounds: tuple[Language, Language] | None = None) -> None:
        """Of a normal form: see `forms.normal`. `bounds`: see there; None where nothing is in doubt."""
        self.form = form
        self._bounds = bounds

    @property
    def bounds(self) -> tuple[Language, Language]:
        """What is in it beyond doubt, and what may be: the language itself twice, where nothing is in doubt."""
        return self._bounds or (self, self)

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
        """The strings of a format of JSON Schema; None where it has none that could be enforced.

        Of the formats in `formats.RESTRICTIONS` it holds less than all.
        """
        from localllm.grammar.regular.formats import language_of

        return language_of(name)

    @staticmethod
    def of_length(least: int, most: int | None) -> Language:
        """All strings from `least` to `most` characters."""
        return Language(normal(Power(charsets.EVERYTHING, least, most)))

    @staticmethod
    def between(least: Language, most: Language) -> Language:
        """What is `least` beyond doubt, and may be `most`, which holds it."""
        if least == most:
            return least
        return Language(least.automaton if least.is_empty else least.form, (least, most))

    # Combined

    def _is_exact_with(self, other: Language) -> bool:
        return self._bounds is None and other._bounds is None

    def __or__(self, other: Language) -> Language:
        if not self._is_exact_with(other):
            return Language.between(*(a | b for a, b in zip(self.bounds, other.bounds, strict=True)))
        if self is other or other.is_empty or self.is_any:
            return self
        if self.is_empty or other.is_any:
            return other
        if isinstance(self.form, Words) and isinstance(other.form, Words):
            return (self.complement() & other.complement()).complement()
        return self._longer_or(other) or other._longer_or(self) or _joined(self, other, "union")

    def _longer_or(self, other: Language) -> Language | None:
        """The union, if both say no more than lengths, and those of the other go on where these end."""
        lengths, others = self._lengths, other._lengths
        if lengths is None or others is None:
            return None
        (least, most), (other_least, other_most) = lengths, others
        if least > other_least or (most is not None and other_least > most + 1):
            return None
        return Language.of_length(least, None if most is None or other_most is None else max(most, other_most))

    @functools.cached_property
    def _lengths(self) -> tuple[int, int | None] | None:
        """The bounds, if it is all strings of these lengths."""
        form = self.form
        if isinstance(form, Power) and form.charset == charsets.EVERYTHING:
            return form.least, form.most
        if isinstance(form, Words) and form.words <= {""} and (form.words or form.negated):
            return (len(form.words), None) if form.negated else (0, 0)
        return None

    def __and__(self, other: Language) -> Language:
        if not self._is_exact_with(other):
            return Language.between(*(a & b for a, b in zip(self.bounds, other.bounds, strict=True)))
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
            return Language(normal(Power(charset, max(one.least, two.least), min(bounds, default=None))))
        for power, rest in ((one, other), (two, self)):
            if isinstance(power, Power) and power.charset == charsets.EVERYTHING:
                least, most = rest.length_bounds()
                if least >= power.least and (power.most is None or (most is not None and most <= power.most)):
                    return rest
        return _joined(self, other, "intersection")

    def __sub__(self, other: Language) -> Language:
        if not self._is_exact_with(other):
            return Language.between(*(a - b for a, b in zip(self.bounds, other.bounds[::-1], strict=True)))
        if isinstance(self.form, Words) or isinstance(other.form, Words) or other._one_sided is not None:
            return self & other.complement()
        return _NONE if self is other else _joined(self, other, "difference")

    def complement(self) -> Language:
        """All other strings."""
        return self._complement

    @functools.cached_property
    def _complement(self) -> Language:
        if not self._is_exact_with(self):
            return Language.between(*(language.complement() for language in self.bounds[::-1]))
        if isinstance(self.form, Words):
            return Language(Words(self.form.words, not self.form.negated))
        if self._one_sided is not None:
            least, most = self._one_sided
            return Language.of_length(0, least - 1) if most is None else Language.of_length(most + 1, None)
        return Language(normal(automata.complement(self.automaton)))

    @property
    def _one_sided(self) -> tuple[int, int | None] | None:
        """The bounds, if it is all strings that have no less than so many characters, or no more."""
        lengths = self._lengths
        return lengths if lengths is not None and (lengths[0] == 0) != (lengths[1] is None) else None

    def concat(self, other: Language) -> Language:
        """A string of this one followed by one of the other."""
        if not self._is_exact_with(other):
            return Language.between(*(a.concat(b) for a, b in zip(self.bounds, other.bounds, strict=True)))
        if self.is_empty or other.is_empty:
            return _NONE
        return Language(normal(automata.concatenation(self.automaton, other.automaton)))

    # Asked

    @property
    def is_empty(self) -> bool:
        form = self.bounds[1].form
        return isinstance(form, Words) and not form.words and not form.negated

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
        if not self.is_finite or self._exceeds(limit):
            return None
        return sorted(words_of(self.automaton))

    def _exceeds(self, limit: int) -> bool:
        """Whether it has more strings, being finite and no words."""
        form = self.form
        if isinstance(form, Power) and form.most is not None and form.most >= limit:
            n = charsets.size(form.charset)  # several letters, or one that comes up to so many times
            return form.most - form.least >= limit if n == 1 else True
        return count_words(self.automaton, limit) > limit

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
        if not self._is_exact_with(other):
            return self.bounds[1].isdisjoint(other.bounds[1])
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
        return length_bounds(self.automaton)

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
        if not self._is_exact_with(self):
            told = repr([language.key for language in self.bounds])
        elif isinstance(form, Power):
            told = repr((form.charset, form.least, form.most))
        elif isinstance(form, Words) and len(form.words) <= MAX_WORDS:
            told = repr((sorted(form.words), form.negated))
        elif isinstance(form, Automaton):
            return form.key
        elif sum(map(len, form.words)) <= MAX_COMPARED:
            # Words may be many enough to be a power or an automaton; what they are decides.
            found = normal(self.automaton)
            return found.key if isinstance(found, Automaton) else Language(found).key
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


def _joined(one: Language, other: Language, how: str) -> Language:
    return _JOINED.get(
        (one.key, other.key, how), lambda: Language(normal(automata.combine(one.automaton, other.automaton, how)))
    )


def _of_regex(pattern: str, anchored: bool) -> Language:
    return Language(normal(compile_tree(parse(pattern), is_search=not anchored)))


_ANY = Language(Words(frozenset(), True))
_NONE = Language(NO_WORDS)


def _size(language: Language) -> int:
    return language.form.n_states * language.form.n_classes // 8 if isinstance(language.form, Automaton) else 1


_PATTERNS: Memory[Language] = Memory(MAX_REMEMBERED, _size)
_JOINED: Memory[Language] = Memory(MAX_REMEMBERED, _size)
