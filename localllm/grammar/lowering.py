"""Expressions to a program: every rule becomes nodes, what can never end is cut off, left recursion is found.

Terminals that are large, expressions that are used more than once, and counted repetitions become rules of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from localllm.grammar import program as p
from localllm.grammar.analysis import Analysis
from localllm.grammar.dfa import Dfa
from localllm.grammar.errors import GrammarError, TooComplexError
from localllm.grammar.expressions import (
    Choice,
    Expression,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Sequence,
    Terminal,
    TokenSet,
)
from localllm.grammar.left_calls import ranks

MAX_NODES = 2_000_000
MAX_COUNT = 1 << 30
MAX_EMPTY_REPEATS = 64  # of an item that may be empty
MAX_DEPTH = 64  # expressions nested deeper become rules, so that no recursion of Python's is met
SMALL_DFA = 2  # states; a larger one is a rule of its own, called from all its places


def lower(grammar: Grammar) -> p.Program:
    """The program of a grammar.

    Raises:
        GrammarError: a rule that is used is not defined, or nothing matches.
        LeftRecursionError: a rule begins with itself.
        TooComplexError: the limits.
    """
    return _Lowering(grammar).program()


class _Lowering:
    def __init__(self, grammar: Grammar) -> None:
        if grammar.root not in grammar.rules:
            raise GrammarError(f'there is no rule "{grammar.root}" to begin with')
        self._grammar = grammar
        self._ops: list[int] = []
        self._a: list[int] = []
        self._b: list[int] = []
        self._c: list[int] = []
        self._targets: list[int] = []
        self._delta: list[npt.NDArray[np.int32]] = []
        self._n_rows = 0
        self._dfas: list[tuple[int, Dfa]] = []
        self._rows_of: dict[bytes, int] = {}
        self._sets: list[tuple[frozenset[int], bool]] = []
        self._numbers: dict[object, int] = {}
        self._names: list[str] = []
        self._waiting: list[Expression | Dfa] = []
        self._analysis = Analysis(grammar)

    def program(self) -> p.Program:
        if not self._analysis.can_end(self._grammar.rules[self._grammar.root]):
            self._check_references()
            raise GrammarError("nothing matches the grammar: no text ever ends it")
        root = self._rule_of(self._grammar.root)
        starts: list[int] = []
        while len(starts) < len(self._waiting):
            starts.append(self._build_rule(self._waiting[len(starts)], len(starts)))
            if len(self._ops) > MAX_NODES:
                raise TooComplexError(f"the grammar needs more than {MAX_NODES:,} states")
        nodes = np.array([self._ops, self._a, self._b, self._c], np.int32).T.copy()
        targets = np.array(self._targets, np.int32)
        nullable = [self._is_nullable(body) for body in self._waiting]
        rules = tuple(
            p.Rule(start, empty, rank, name)
            for start, empty, rank, name in zip(
                starts, nullable, ranks(nodes, targets, starts, nullable, self._names), self._names, strict=True
            )
        )
        delta = np.ascontiguousarray(np.concatenate(self._delta)) if self._delta else np.zeros((0, 256), np.int32)
        return p.Program(nodes, targets, delta, tuple(self._dfas), rules, root, tuple(self._sets))

    def _check_references(self) -> None:
        """Where nothing matches, an undefined rule may be why."""
        for name in self._analysis.references():
            self._rule_of(name)

    def _is_nullable(self, body: Expression | Dfa) -> bool:
        return bool(body.accepting[0]) if isinstance(body, Dfa) else self._analysis.is_nullable(body)

    # Rules

    def _rule_of(self, name: str) -> int:
        body = self._grammar.rules.get(name)
        if body is None:
            raise GrammarError(f'the rule "{name}" is used and not defined')
        return self._number(name, body, name)

    def _number(self, key: object, body: Expression | Dfa, name: str) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._waiting)
            self._waiting.append(body)
            self._names.append(name)
        return number

    def _build_rule(self, body: Expression | Dfa, number: int) -> int:
        self._rule_name = self._names[number]
        end = self._node(p.RETURN)
        if isinstance(body, Dfa):
            return self._table(body, end)
        if isinstance(body, Repeat) and not _is_plain(body) and self._analysis.can_end(body.item):
            return self._counted(body, end)
        return self._build(body, end, 0)

    # Nodes

    def _node(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        self._ops.append(op)
        self._a.append(a)
        self._b.append(b)
        self._c.append(c)
        return len(self._ops) - 1

    def _build(self, expression: Expression, end: int, depth: int) -> int:
        """The node at which an expression begins that goes on at `end`."""
        if isinstance(expression, Literal):
            return self._literal(expression.data, end)
        if isinstance(expression, Reference):
            return self._node(p.CALL, self._rule_of(expression.rule), 0, end)
        if isinstance(expression, Terminal):
            dfa = expression.dfa
            if dfa.n_states <= SMALL_DFA:
                return self._table(dfa, end)
            return self._node(p.CALL, self._number(dfa.key, dfa, "a terminal"), 0, end)
        if isinstance(expression, TokenSet):
            self._sets.append((expression.ids, expression.negated))
            return self._node(p.TOKENS, len(self._sets) - 1, 0, end)
        if depth and (depth > MAX_DEPTH or self._analysis.n_uses(expression) > 1):
            return self._called(expression, end)
        if isinstance(expression, Sequence):
            for item in reversed(expression.items):
                end = self._build(item, end, depth + 1)
            return end
        if isinstance(expression, Choice):
            return self._split([self._build(i, end, depth + 1) for i in expression.items if self._analysis.can_end(i)])
        return self._repeat(expression, end, depth)

    def _called(self, expression: Expression, end: int) -> int:
        if isinstance(expression, (Sequence, Choice)) and not expression.items:
            return end if isinstance(expression, Sequence) else self._split([])
        return self._node(p.CALL, self._number(id(expression), expression, self._rule_name), 0, end)

    def _literal(self, data: bytes, end: int) -> int:
        n, first = len(data), len(self._ops)
        if not n:
            return end
        self._ops += [p.RANGE] * n
        self._a += data
        self._b += data
        self._c += range(first + 1, first + n)
        self._c.append(end)
        return first

    def _split(self, targets: list[int]) -> int:
        if len(targets) == 1:
            return targets[0]
        self._targets += targets
        return self._node(p.SPLIT, len(self._targets) - len(targets), len(targets))

    def _repeat(self, expression: Repeat, end: int, depth: int) -> int:
        least, most = expression.least, expression.most
        if most == 0 or not self._analysis.can_end(expression.item):
            return end
        if most is None and self._analysis.is_nullable(expression.item):
            expression, least = Repeat(expression.item, 0, None), 0
        if not _is_plain(expression):
            return self._called(expression, end)
        if most == 1:
            body = self._build(expression.item, end, depth + 1)
            return body if least else self._split([body, end])
        loop = self._node(p.SPLIT, len(self._targets), 2)
        self._targets += [0, end]
        at = len(self._targets) - 2
        body = self._build(expression.item, loop, depth + 1)
        self._targets[at] = body
        return body if least else loop

    def _counted(self, expression: Repeat, end: int) -> int:
        least, most = expression.least, p.NONE if expression.most is None else expression.most
        if least < 0 or p.NONE != most < least:
            raise GrammarError(f"a repetition from {least} to {most} times")
        if max(least, most) > MAX_COUNT:
            raise TooComplexError(f"a repetition of {max(least, most):,} times (at most {MAX_COUNT:,})")
        item = expression.item
        if self._analysis.is_nullable(item):
            least = 0
            if most > MAX_EMPTY_REPEATS:
                raise TooComplexError(f"{most:,} repetitions of what may be empty (at most {MAX_EMPTY_REPEATS})")
        loop = self._node(p.LOOP, least, most)
        after = self._node(p.SPLIT, len(self._targets), 1)
        self._targets.append(end)
        assert after == loop + 1
        inc = self._node(p.INC, 0, 0, loop)
        # A short automaton stays within the rule, so that its words cost no frames.
        body = self._table(item.dfa, inc) if isinstance(item, Terminal) else self._build(item, inc, 1)
        self._c[loop] = body
        return loop

    def _table(self, dfa: Dfa, end: int) -> int:
        row = self._rows_of.get(dfa.key)
        if row is None:
            row = self._rows_of[dfa.key] = self._n_rows
            self._dfas.append((row, dfa))
            self._delta.append(dfa.next[:, dfa.classes])
            self._n_rows += dfa.n_states
            if self._n_rows > MAX_NODES // 8:
                raise TooComplexError(f"the terminals need more than {MAX_NODES // 8:,} states")
        first, n = len(self._ops), dfa.n_states
        if dfa.is_empty:
            return self._split([])
        self._ops += [p.TABLE] * n
        self._a += range(row, row + n)
        self._b += [end if accepting else p.not_yet(end) for accepting in dfa.accepting.tolist()]
        self._c += [first] * n
        for state in np.flatnonzero((dfa.next < 0).all(axis=1)).tolist():  # only the word's end follows
            self._ops[first + state] = p.SPLIT
            self._a[first + state], self._b[first + state] = len(self._targets), 1
            self._targets.append(end)
        return first


def _is_plain(expression: Repeat) -> bool:
    """Whether a repetition needs no counter."""
    return (expression.least, expression.most) in ((0, None), (1, None), (0, 1), (1, 1), (0, 0))
