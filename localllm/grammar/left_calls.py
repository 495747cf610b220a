"""Which rules a rule's words may begin with: an order of rules, or the cycle that is left recursion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from localllm.grammar import program as p
from localllm.grammar.errors import LeftRecursionError


def ranks(
    nodes: npt.NDArray[np.int32],
    targets: npt.NDArray[np.int32],
    starts: Sequence[int],
    is_nullable: Sequence[bool],
    names: Sequence[str],
) -> list[int]:
    """Each rule's place in an order in which callers come before those they may begin with.

    Raises: LeftRecursionError where a rule may begin with itself.
    """
    calls = [_first_calls(nodes, targets, start, is_nullable) for start in starts]
    order: list[int] = []
    state = [0] * len(starts)  # 1: on the way, 2: done
    for first in range(len(starts)):
        if state[first]:
            continue
        state[first] = 1
        way = [(first, iter(calls[first]))]
        while way:
            rule, rest = way[-1]
            called = next(rest, None)
            if called is None:
                state[rule] = 2
                order.append(rule)
                way.pop()
            elif state[called] == 1:
                on_way = [r for r, _ in way]
                raise _recursion([*on_way[on_way.index(called) :], called], names)
            elif not state[called]:
                state[called] = 1
                way.append((called, iter(calls[called])))
    rank = [0] * len(starts)
    for i, rule in enumerate(reversed(order)):
        rank[rule] = i
    return rank


def _recursion(cycle: list[int], names: Sequence[str]) -> LeftRecursionError:
    shown: list[str] = []
    for rule in cycle:  # rules made of parts of a rule have its name
        if not shown or shown[-1] != names[rule]:
            shown.append(names[rule])
    if len(shown) == 1:
        shown *= 2
    return LeftRecursionError(f"left recursion: {' -> '.join(shown)}", tuple(shown))


def _first_calls(
    nodes: npt.NDArray[np.int32], targets: npt.NDArray[np.int32], start: int, is_nullable: Sequence[bool]
) -> list[int]:
    """The rules that are called before any byte."""
    found: dict[int, None] = {}
    seen = {start}
    waiting = [start]
    while waiting:
        node = waiting.pop()
        op, a, b, c = nodes[node].tolist()
        following: list[int] = []
        if op == p.SPLIT:
            following = targets[a : a + b].tolist()
        elif op == p.CALL:
            found[a] = None
            if is_nullable[a]:
                following = [c]
        elif op == p.TABLE and b >= 0:
            following = [b]
        elif op == p.LOOP:
            following = [c, node + 1]
        elif op == p.INC:
            following = [c]
        for other in following:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return list(found)
