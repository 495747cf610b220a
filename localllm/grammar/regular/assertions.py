"""Makes automata of patterns that look around: look-ahead, look-behind, and the boundaries of words.

What follows a look-ahead has an automaton of its own, which the rest of the text must satisfy: a place carries such
obligations with it. What precedes a look-behind is an automaton that runs along from the start. A boundary is decided
when the next letter is known, and so free steps are followed only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from localllm.grammar.dfa import DEAD
from localllm.grammar.errors import PatternError, TooComplexError
from localllm.grammar.regular import automaton as automata
from localllm.grammar.regular import charsets, properties
from localllm.grammar.regular.automaton import Automaton
from localllm.grammar.regular.positions import END, Positions
from localllm.grammar.regular.syntax import Cat, Look, Rep, Set

# How many places all states of an automaton may hold together: what bounds the time.
MAX_WORK = 300_000

_ANY = Rep(Set(charsets.EVERYTHING), 0, None)

# What follows a place: a letter of a word or another one, or the end of the text.
_WORD, _OTHER, _END_OF_TEXT = range(3)

Obligations = frozenset[tuple[int, int]]


class _Before(NamedTuple):
    """What is known of the text before a place: whether there is none, whether it ends with a letter of a word, and the
    states of the look-behinds' automata."""

    is_start: bool
    is_word: bool
    behind: tuple[int, ...]


class _State(NamedTuple):
    before: _Before
    places: frozenset[tuple[int, Obligations]]


def determine_asserting(places: Positions, *, is_start: bool = True, is_word: bool = False) -> Automaton:
    """The words that lead from the start of the places to their end, where the text before them is empty, or ends with
    a letter of a word or another.

    Raises: PatternError, TooComplexError.
    """
    return _Determiner(places).run(is_start, is_word)


class _Determiner:
    def __init__(self, places: Positions) -> None:
        self.places = places
        asked = {c for steps in places.free for c, _ in steps}
        looks = {c for c in asked if isinstance(c, Look)}
        self.behind = {look: i for i, look in enumerate(sorted((x for x in looks if x.is_behind), key=_position))}
        self.behind_automata = [_preceding(look) for look in self.behind]
        # The automata of obligations, by look and by what is before it.
        self.ahead: list[Automaton] = []
        self.numbers: dict[tuple[Look, bool, bool], int] = {}
        for look in sorted(looks - set(self.behind), key=_position):
            for is_start, is_word in ((True, False), (False, False), (False, True)):
                self.numbers[look, is_start, is_word] = len(self.ahead)
                self.ahead.append(_following(look, is_start, is_word))
        kinds = {charset for charset, _ in places.letters.values()} | {properties.WORD}
        for other in (*self.ahead, *self.behind_automata):
            kinds |= set(other.charsets)
        self.kinds = sorted(kinds)
        self.starts, self.classes, members = charsets.partition(self.kinds)
        firsts = [self.starts[self.classes.index(c)] for c in range(len(members))]
        self.n_classes = len(members)
        self.members = [{self.kinds[j] for j in member} for member in members]
        self.is_word = [properties.WORD in member for member in self.members]
        self.ahead_rows = [_by_class(other, firsts) for other in self.ahead]
        self.behind_rows = [_by_class(other, firsts) for other in self.behind_automata]
        self.fulfilled = [_accepting_all(other) for other in self.ahead]
        self.has_boundaries = bool(asked & {"boundary", "inside"})
        # Whether it matters anywhere, within looks too, that a letter of a word was before.
        self.has_words = self.has_boundaries or any(
            self.ahead[k].key != self.ahead[self.numbers[look, False, False]].key
            for (look, _, is_word), k in self.numbers.items()
            if is_word
        )
        self.work = 0

    def run(self, is_start: bool, is_word: bool) -> Automaton:
        before = _Before(is_start, is_word, (0,) * len(self.behind))
        first = _State(before, frozenset([(self.places.start, frozenset())]))
        return automata.build(self.starts, self.classes, *automata.explore(first, self._step, self._accepts))

    def _step(self, state: _State) -> list[_State | None]:
        # Which letter follows matters to boundaries alone.
        other = list(self._closure(state, _OTHER))
        word = list(self._closure(state, _WORD)) if self.has_boundaries else other
        return [self._after(state.before, word if is_word else other, c) for c, is_word in enumerate(self.is_word)]

    def _after(self, before: _Before, places: list[tuple[int, Obligations]], c: int) -> _State | None:
        found = set()
        self._count(len(places))
        for place, owed in places:
            letter = self.places.letters.get(place)
            if letter is not None and letter[0] in self.members[c]:
                left = self._advanced(owed, c) if owed else owed
                if left is not None:
                    found.add((letter[1], left))
        if not found:
            return None
        behind = tuple(rows[s][c] for rows, s in zip(self.behind_rows, before.behind, strict=True))
        return _State(_Before(False, self.has_words and self.is_word[c], behind), frozenset(found))

    def _advanced(self, owed: Obligations, c: int) -> Obligations | None:
        """What is owed after a letter; None where it cannot be met any more."""
        left = set()
        for k, s in owed:
            target = self.ahead_rows[k][s][c]
            if target == DEAD:
                return None
            if target not in self.fulfilled[k]:
                left.add((k, target))
        return frozenset(left)

    def _accepts(self, state: _State) -> bool:
        return any(
            place == END and all(self.ahead[k].accepting[s] for k, s in owed)
            for place, owed in self._closure(state, _END_OF_TEXT)
        )

    def _closure(self, state: _State, following: int) -> Iterator[tuple[int, Obligations]]:
        """What free steps reach from a state, given what follows."""
        todo = list(state.places)
        self._count(len(todo))
        seen = set(todo)
        while todo:
            place, owed = todo.pop()
            yield place, owed
            for condition, target in self.places.free[place]:
                more = self._permits(condition, state.before, following)
                if more is None or (target, owed | more) in seen:
                    continue
                seen.add((target, owed | more))
                todo.append((target, owed | more))

    def _count(self, steps: int) -> None:
        self.work += steps
        if self.work > MAX_WORK:
            raise TooComplexError(f"a pattern that looks around takes more than {MAX_WORK} steps to compile")

    def _permits(self, condition: str | Look, before: _Before, following: int) -> Obligations | None:
        """What is owed for a free step; None where it cannot be made."""
        if isinstance(condition, Look):
            if condition.is_behind:
                s = before.behind[self.behind[condition]]
                is_found = s != DEAD and bool(self.behind_automata[self.behind[condition]].accepting[s])
                return frozenset() if is_found != condition.negated else None
            k = self.numbers[condition, before.is_start, before.is_word]
            if self.ahead[k].is_empty:
                return None
            return frozenset() if 0 in self.fulfilled[k] else frozenset([(k, 0)])
        if condition == "":
            holds = True
        elif condition == "start":
            holds = before.is_start
        elif condition == "end":
            holds = following == _END_OF_TEXT
        else:
            holds = (before.is_word != (following == _WORD)) == (condition == "boundary")
        return frozenset() if holds else None


def _position(look: Look) -> int:
    return look.position


def _unsupported(what: str, look: Look) -> PatternError:
    return PatternError(f"{what} is not supported, at character {look.position}", position=look.position)


def _following(look: Look, is_start: bool, is_word: bool) -> Automaton:
    """The texts after a look-ahead with which it succeeds."""
    places = Positions(Cat((look.item, _ANY)))
    if any(isinstance(condition, Look) and condition.is_behind for steps in places.free for condition, _ in steps):
        raise _unsupported("look-behind within look-ahead", look)
    found = determine_asserting(places, is_start=is_start, is_word=is_word)
    return automata.complement(found) if look.negated else found


def _preceding(look: Look) -> Automaton:
    """The texts before a look-behind that end with a match of it."""
    places = Positions(Cat((_ANY, look.item)))
    if any(condition not in ("", "start") for steps in places.free for condition, _ in steps):
        raise _unsupported("an assertion within look-behind", look)
    return determine_asserting(places)


def _by_class(automaton: Automaton, firsts: list[int]) -> list[list[int]]:
    """The states after each state, and last after DEAD, by classes that are finer than the automaton's; `firsts` has a
    letter of each."""
    columns = [automaton.class_of(first) for first in firsts]
    return [*([row[c] for c in columns] for row in automaton.rows), [DEAD] * len(firsts)]


def _accepting_all(automaton: Automaton) -> set[int]:
    """States from which every text is accepted: of a minimal automaton at most one."""
    return {s for s, row in enumerate(automaton.rows) if automaton.accepting[s] and all(target == s for target in row)}
