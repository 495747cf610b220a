"""Left recursion, found where it was written; how grammars are run it does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localllm.grammar.analysis import Analysis
from localllm.grammar.errors import LeftRecursionError
from localllm.grammar.expressions import Choice, Expression, Grammar, Reference, Repeat, Sequence
from localllm.grammar.source import Source

N_SHOWN = 10  # rules of a cycle


def check_left_recursion(grammar: Grammar, source: Source, offset_of: Callable[[Reference], int]) -> None:
    """Refuse a grammar of which a rule may begin with itself. All rules that it refers to are defined.

    Raises: LeftRecursionError at the reference that closes the cycle.
    """
    analysis = Analysis(grammar)
    done: set[str] = set()
    for first in grammar.rules:
        if first in done:
            continue
        way = {first: _first_references(grammar.rules[first], analysis)}  # in the order of the way
        while way:
            rule = next(reversed(way))
            reference = next(way[rule], None)
            if reference is None:
                done.add(rule)
                del way[rule]
            elif reference.rule in way:
                names = list(way)
                cycle = (*names[names.index(reference.rule) :], reference.rule)
                raise _error(cycle, source, offset_of(reference))
            elif reference.rule not in done:
                way[reference.rule] = _first_references(grammar.rules[reference.rule], analysis)


def _error(cycle: tuple[str, ...], source: Source, offset: int) -> LeftRecursionError:
    line, column = source.place(offset)
    names = cycle if len(cycle) <= N_SHOWN else (*cycle[: N_SHOWN - 2], "...", *cycle[-2:])
    message = source.pointed(f"left recursion: {' -> '.join(names)}", offset)
    return LeftRecursionError(message, cycle, line=line, column=column)


def _first_references(body: Expression, analysis: Analysis) -> Iterator[Reference]:
    """The references that a word of the expression may begin with."""
    waiting = [body]
    while waiting:
        expression = waiting.pop()
        if isinstance(expression, Reference):
            yield expression
        elif isinstance(expression, Choice):
            waiting += expression.items
        elif isinstance(expression, Repeat) and expression.most != 0:
            waiting.append(expression.item)
        elif isinstance(expression, Sequence):
            for item in expression.items:
                waiting.append(item)
                if not analysis.is_nullable(item):
                    break
