"""A grammar as numbers: the nodes of a byte-level pushdown automaton with counters; how it is run it does not know.

A node is an operation and three operands, int32 each:

    op      a              b               c
    RETURN  -              -               -         the rule ends: go on behind the call
    RANGE   first byte     last byte       next      one byte
    SPLIT   first target   n targets       -         any of `targets[a : a + b]`
    CALL    rule           -               next      a word of that rule, then `next`
    TABLE   row            next            node 0    a state of a DFA: its row of `delta`; `next`, or, where it
                                                     is not accepting, `not_yet(next)`; the node of its start
    LOOP    least          most or -1      body      one body, or from `least` bodies on the node after it
    INC     -              -               LOOP      one body more
    TOKENS  set            -               next      one token of a set

A rule has one counter, which a call begins at 0 and a LOOP compares; the node after a LOOP (its number and 1) is where
it is left. A state of the automaton is a set of configurations (node, counter, frame), closed under what takes no byte;
a frame is a set of what waits for a rule to end: (node, counter, frame). As rules never begin with themselves, frames
are finite, and as they are sets, what several alternatives wait for is followed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels_cpu.automata.layout import CALL, INC, LOOP, RANGE, RETURN, SPLIT, TABLE, TOKENS
from localllm.grammar.dfa import Dfa

__all__ = ["CALL", "INC", "LOOP", "NONE", "RANGE", "RETURN", "SPLIT", "TABLE", "TOKENS", "Program", "Rule", "not_yet"]

NONE = -1


def not_yet(node: int) -> int:
    """How a state that is not accepting says what follows a word: a number below -1, whose `not_yet` is the node."""
    return -2 - node


Words = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Rule:
    """Where a rule starts, whether the empty text is a word of it, and its place in an order in which a rule comes
    before those that its words may begin with. `name` is for messages."""

    start: int
    is_nullable: bool
    rank: int
    name: str


@dataclass(frozen=True, eq=False)
class Program:
    """nodes: int32 [n_nodes, 4], columns op, a, b, c. targets: int32. delta: int32 [n_rows, 256], the row's number in
    its DFA that follows a byte, or -1. `dfas`: which DFA owns the rows from a number on. `token_sets`: (ids, negated).
    """

    nodes: Words
    targets: Words
    delta: Words
    dfas: tuple[tuple[int, Dfa], ...]
    rules: tuple[Rule, ...]
    root: int
    token_sets: tuple[tuple[frozenset[int], bool], ...]
