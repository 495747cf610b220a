"""Languages combined, each pair of them once: schemas ask for the same ones over and over."""

from __future__ import annotations

from collections.abc import Callable, Collection

from localllm.grammar.regular import Language

# What making a language costs, and each state of its automaton, next to combining two small nodes.
LANGUAGE_WORK = 10
STATE_WORK = 4

# Words that are put together rather than made an automaton.
MAX_LISTED = 4096


class Languages:
    """Intersections, unions and differences, remembered. `spend` is told of each one that had to be made."""

    def __init__(self, spend: Callable[[int], None]) -> None:
        self._spend = spend
        self._made: dict[tuple[str, int, int], tuple[Language, Language, Language]] = {}
        self._same: dict[Language, Language] = {}
        self._words: dict[tuple[str, ...], Language] = {}

    def both(self, a: Language, b: Language) -> Language:
        if a is b or b.is_any:
            return a
        return b if a.is_any else self._remembered("&", a, b, Language.__and__)

    def any_of(self, languages: Collection[Language]) -> Language:
        """The strings of any of them, of which there is one."""
        words: set[str] = set()
        found: Language | None = None
        for language in languages:
            listed = language.strings(MAX_LISTED)
            if listed is not None:
                words.update(listed)
            elif found is None or found is language:
                found = language
            else:
                found = self._remembered("|", found, language, Language.__or__)
        if found is None:
            return Language.of_strings(words)
        return self._remembered("|", found, Language.of_strings(words), Language.__or__) if words else found

    def are_disjoint(self, a: Language, b: Language) -> bool:
        """Whether no string is of both."""
        return a.isdisjoint(b) if _is_cheap(a) or _is_cheap(b) else self.both(a, b).is_empty

    def without(self, a: Language, b: Language) -> Language:
        return a if a.is_empty or b.is_empty else self._remembered("-", a, b, Language.__sub__)

    def without_names(self, language: Language, names: Collection[str]) -> Language:
        """The language without these words."""
        if not names or language.is_empty:
            return language
        key = tuple(names)
        words = self._words.get(key)
        if words is None:
            words = self._words[key] = Language.of_strings(key)
        return self.without(language, words)

    def _remembered(
        self, operator: str, a: Language, b: Language, make: Callable[[Language, Language], Language]
    ) -> Language:
        key = (operator, id(a), id(b))
        known = self._made.get(key)
        if known is None:
            self._spend(LANGUAGE_WORK)
            made = make(a, b)
            self._spend(STATE_WORK * len(getattr(made.form, "accepting", ())))
            if not _is_cheap(made):
                made = self._same.setdefault(made, made)
            known = self._made[key] = (made, a, b)  # holding a and b keeps their identities
        return known[0]


def _is_cheap(language: Language) -> bool:
    """Whether it is kept as words, or as all others."""
    return hasattr(language.form, "words")
