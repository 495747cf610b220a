"""Languages combined, each pair of them once: schemas ask for the same ones over and over."""

from __future__ import annotations

from collections.abc import Callable, Collection

from localllm.grammar.regular import Language

# What making a language costs, next to combining two small nodes.
LANGUAGE_WORK = 10


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

    def either(self, a: Language, b: Language) -> Language:
        return a if a is b else self._remembered("|", a, b, Language.__or__)

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
            self._spend(len(getattr(made.form, "accepting", ())) // 10)
            made = self._same.setdefault(made, made)
            known = self._made[key] = (made, a, b)  # holding a and b keeps their identities
        return known[0]
