"""How many words an automaton has, which, and how long they are; it changes none."""

from __future__ import annotations

from collections.abc import Iterator

from localllm.grammar.dfa import DEAD
from localllm.grammar.regular import charsets
from localllm.grammar.regular.automaton import Automaton


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


def words_of(automaton: Automaton) -> Iterator[str]:
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


def length_bounds(automaton: Automaton) -> tuple[int, int | None]:
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
