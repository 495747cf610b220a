"""All that an automaton is asked, as one routine: what the questions share is compiled once."""

from __future__ import annotations

from numba import int64

from kernels_cpu.automata.following import bytes_state, forced_bytes, token_state
from kernels_cpu.automata.interning import fill_tables, interned_frame, keep_state
from kernels_cpu.automata.layout import (
    AFTER_BYTES,
    AFTER_TOKEN,
    FORCED,
    KEEP_FRAME,
    KEEP_STATE,
    START,
    TOKENS_AFTER,
)
from kernels_cpu.automata.states import start_state
from kernels_cpu.automata.tokens import state_tokens
from kernels_cpu.compile import routine


@routine("int64(int64, int64, int64, int64, int64, int64)", cost=12)
def ask(what: int, m: int, v: int, state: int, a: int, b: int) -> int:
    """Ask the automaton `m` on the vocabulary `v` something, about a state where it is about one:

        START                    the state before the first byte
        TOKENS_AFTER  a          the tokens that may follow, into the mask at `a`; 0
        AFTER_TOKEN   a          the state after token `a`
        AFTER_BYTES   a, b       the state after `b` bytes at `a`
        FORCED        a, b       how many bytes must follow, up to `b`, written to `a`
        FILL_TABLES              enter all states and frames into the hash tables, which are empty; 0
        KEEP_FRAME    a, b       the number of the frame of `b` pairs at `a`
        KEEP_STATE    a, b       the number of the state of `b` configurations at `a`; `state` are its flags

    The answer, or what is less than 0 (layout.py).
    """
    if what == TOKENS_AFTER:
        return state_tokens(m, v, state, a)
    if what == AFTER_TOKEN:
        return token_state(m, v, state, a)
    if what == AFTER_BYTES:
        return bytes_state(m, state, a, b)
    if what == FORCED:
        return forced_bytes(m, state, a, b)
    if what == START:
        return start_state(m)
    if what == KEEP_FRAME:
        return interned_frame(m, a, b)
    if what == KEEP_STATE:
        return keep_state(m, a, b, state)
    fill_tables(m)
    return int64(0)
