"""The automaton of host names, whose labels and whose whole length have limits; of other formats it knows nothing."""

from __future__ import annotations

from typing import NamedTuple

from localllm.grammar.regular import automaton as automata
from localllm.grammar.regular import charsets
from localllm.grammar.regular.automaton import Automaton

# RFC 1123, section 2.1, and RFC 1035, section 2.3.4: 255 octets with the lengths of the labels and the root's.
MAX_LABEL = 63
MAX_NAME = 253
# The length of all labels before is known in steps of this, which makes the automaton as much smaller.
ROUNDING = 8

_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DOT, _HYPHEN = ".", "-"
_X, _N = "xX", "nN"
_PLAIN = "".join(c for c in _LETTERS if c not in _X + _N)
_KINDS = (_DOT, _HYPHEN, _X, _N, _PLAIN)


class _State(NamedTuple):
    """Letters before this label, rounded up; letters of it; how it ends: a hyphen, or what may become `xn--`."""

    before: int
    n: int
    end: str


def host_names() -> Automaton:
    """Names of labels of letters, digits and hyphens, the latter within a label only.

    Names with a label in Punycode are left out, and those of more than 253 letters if each label but the last counts
    with its dot as the next multiple of 8.
    """
    starts, classes, members = charsets.partition([charsets.of_characters(kind) for kind in _KINDS])
    kinds = [_KINDS[member[0]] if member else "" for member in members]
    rows, accepting = automata.explore(
        _State(0, 0, ""),
        lambda state: [_after(state, kind) if kind else None for kind in kinds],
        lambda state: state.n > 0 and not state.end.endswith(_HYPHEN),
    )
    return automata.build(starts, classes, rows, accepting)


def _after(state: _State, kind: str) -> _State | None:
    if kind == _DOT:
        before = state.before - (-(state.n + 1) // ROUNDING) * ROUNDING
        is_label = state.n > 0 and not state.end.endswith(_HYPHEN)
        return _State(before, 0, "") if is_label and before < MAX_NAME else None
    if state.n == MAX_LABEL or state.before + state.n == MAX_NAME:
        return None
    if kind == _HYPHEN:
        if state.n == 0 or state.end == "xn-":
            return None
        return _State(state.before, state.n + 1, "xn-" if state.end == "xn" else _HYPHEN)
    begun = {(0, _X): "x", (1, _N): "xn"}.get((state.n, kind), "")
    return _State(state.before, state.n + 1, begun if begun != "xn" or state.end == "x" else "")
