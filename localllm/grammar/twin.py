"""The automaton of a program, run by plain Python: what the compiled one must do, written to be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from localllm.grammar import program as p
from localllm.grammar.expressions import Grammar
from localllm.grammar.lowering import lower


class Frame(NamedTuple):
    """What waits for a rule to end; None of it: the text may end."""

    waiting: frozenset[tuple[int, int, Frame]]


class State(NamedTuple):
    """Configurations (node, counter, frame) at nodes that take something; `is_complete`: the text may end here."""

    configurations: frozenset[tuple[int, int, Frame]]
    is_complete: bool


ROOT = Frame(frozenset())


class Automaton:
    """The states of a program and how they follow one another."""

    def __init__(self, program: p.Program) -> None:
        self._program = program
        self._nodes = program.nodes.tolist()
        self._targets = program.targets.tolist()

    def start(self) -> State:
        return self._closed([(self._program.rules[self._program.root].start, 0, ROOT)])

    def after_byte(self, state: State, byte: int) -> State:
        reached = []
        for node, count, frame in state.configurations:
            op, a, b, c = self._nodes[node]
            if op == p.RANGE and a <= byte <= b:
                reached.append((c, count, frame))
            elif op == p.TABLE and (row := int(self._program.delta[a, byte])) >= 0:
                reached.append((c + row, count, frame))
        return self._closed(reached)

    def after_bytes(self, state: State, data: bytes) -> State:
        for byte in data:
            state = self.after_byte(state, byte)
        return state

    def after_token(self, state: State, token: int, piece: bytes | None) -> State:
        """The state after a token of a vocabulary; one without a `piece` is taken by sets of tokens only."""
        reached = []
        for node, count, frame in state.configurations:
            op, a, _, c = self._nodes[node]
            if op == p.TOKENS:
                ids, negated = self._program.token_sets[a]
                if (token in ids) != negated:
                    reached.append((c, count, frame))
        by_id = self._closed(reached)
        by_bytes = self.after_bytes(state, piece) if piece else State(frozenset(), False)
        return State(by_id.configurations | by_bytes.configurations, by_id.is_complete or by_bytes.is_complete)

    def _closed(self, reached: Iterable[tuple[int, int, Frame]]) -> State:
        """All that follows without a byte. Calls wait until all callers are known, which the order of rules makes sure:
        then all of them wait for one word of the called rule."""
        waiting = list(reached)
        seen: set[tuple[int, int, Frame]] = set()
        kept: set[tuple[int, int, Frame]] = set()
        calls: dict[int, set[tuple[int, int, Frame]]] = {}
        is_complete = False
        while waiting or calls:
            if not waiting:
                rule = min(calls, key=lambda number: self._program.rules[number].rank)
                waiting.append((self._program.rules[rule].start, 0, Frame(frozenset(calls.pop(rule)))))
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            node, count, frame = here
            op, a, b, c = self._nodes[node]
            if op in (p.RANGE, p.TABLE, p.TOKENS):
                kept.add(here)
                if op == p.TABLE and b >= 0:
                    waiting.append((b, count, frame))
            elif op == p.SPLIT:
                waiting += [(target, count, frame) for target in self._targets[a : a + b]]
            elif op == p.RETURN:
                is_complete |= frame == ROOT
                waiting += frame.waiting
            elif op == p.CALL:
                is_last = self._nodes[c][0] == p.RETURN and frame != ROOT
                calls.setdefault(a, set()).update(frame.waiting if is_last else {(c, count, frame)})
                if self._program.rules[a].is_nullable:
                    waiting.append((c, count, frame))
            elif op == p.INC:
                least, most = self._nodes[c][1:3]
                waiting.append((c, count + 1 if most != p.NONE else min(count + 1, least), frame))
            else:
                if count >= a:
                    waiting.append((node + 1, count, frame))
                if b == p.NONE or count < b:
                    waiting.append((c, count, frame))
        return State(frozenset(kept), is_complete)


class Matcher:
    """One text on its way through a grammar. After something that does not fit it is where it was."""

    def __init__(self, grammar: Grammar, pieces: Sequence[bytes | None] | None = None) -> None:
        self._automaton = Automaton(lower(grammar))
        self._pieces = pieces
        self._state = self._automaton.start()

    def accept_bytes(self, data: bytes) -> bool:
        return self._take(self._automaton.after_bytes(self._state, data))

    def accept(self, token: int) -> bool:
        """Take a token of the vocabulary whose `pieces` were given."""
        assert self._pieces is not None
        return self._take(self._automaton.after_token(self._state, token, self._pieces[token]))

    def is_complete(self) -> bool:
        return self._state.is_complete

    def allowed(self) -> list[int]:
        """The tokens that may follow."""
        assert self._pieces is not None
        state, after = self._state, self._automaton.after_token
        return [token for token, piece in enumerate(self._pieces) if _is_alive(after(state, token, piece))]

    def _take(self, state: State) -> bool:
        if _is_alive(state):
            self._state = state
        return _is_alive(state)


def _is_alive(state: State) -> bool:
    return bool(state.configurations) or state.is_complete


def matches(grammar: Grammar, data: bytes) -> bool:
    """Whether a text is of a grammar's language."""
    matcher = Matcher(grammar)
    return matcher.accept_bytes(data) and matcher.is_complete()
