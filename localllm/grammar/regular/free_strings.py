"""The automaton of all JSON strings in every spelling; it knows no languages."""

from __future__ import annotations

import numpy as np

from localllm.grammar.dfa import DEAD, Dfa

# States within the quotes after the body: what is left of an escape.
_START, _BODY, _END, _ESCAPE, _HEX4, _HEX3, _HEX2, _HEX1 = range(8)
_AFTER_D, _HIGH2, _HIGH1, _LOW_ESCAPE, _LOW_U, _LOW_D, _LOW_C = range(8, 15)
# What is left of a character of several bytes.
_TAIL1, _TAIL2, _TAIL3, _AFTER_E0, _AFTER_ED, _AFTER_F0, _AFTER_F4 = range(15, 22)

_DIGITS = "0123456789ABCDEFabcdef"
_NO_D = "0123456789ABCEFabcef"
_ARCS: tuple[tuple[int, str | tuple[int, int], int], ...] = (
    (_START, '"', _BODY),
    *((_BODY, bytes_, _BODY) for bytes_ in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7F))),
    *((_BODY, '"', _END), (_BODY, "\\", _ESCAPE)),
    *((_BODY, (0xC2, 0xDF), _TAIL1), (_BODY, (0xE1, 0xEC), _TAIL2), (_BODY, (0xEE, 0xEF), _TAIL2)),
    *((_BODY, (0xE0, 0xE0), _AFTER_E0), (_BODY, (0xED, 0xED), _AFTER_ED)),
    *((_BODY, (0xF1, 0xF3), _TAIL3), (_BODY, (0xF0, 0xF0), _AFTER_F0), (_BODY, (0xF4, 0xF4), _AFTER_F4)),
    *((_TAIL1, (0x80, 0xBF), _BODY), (_TAIL2, (0x80, 0xBF), _TAIL1), (_TAIL3, (0x80, 0xBF), _TAIL2)),
    *((_AFTER_E0, (0xA0, 0xBF), _TAIL1), (_AFTER_ED, (0x80, 0x9F), _TAIL1)),
    *((_AFTER_F0, (0x90, 0xBF), _TAIL2), (_AFTER_F4, (0x80, 0x8F), _TAIL2)),
    *((_ESCAPE, '"\\/bfnrt', _BODY), (_ESCAPE, "u", _HEX4)),
    *((_HEX4, _NO_D, _HEX3), (_HEX3, _DIGITS, _HEX2), (_HEX2, _DIGITS, _HEX1), (_HEX1, _DIGITS, _BODY)),
    # A surrogate of the first kind is followed by one of the second.
    *((_HEX4, "Dd", _AFTER_D), (_AFTER_D, "01234567", _HEX2), (_AFTER_D, "89ABab", _HIGH2)),
    *((_HIGH2, _DIGITS, _HIGH1), (_HIGH1, _DIGITS, _LOW_ESCAPE), (_LOW_ESCAPE, "\\", _LOW_U)),
    *((_LOW_U, "u", _LOW_D), (_LOW_D, "Dd", _LOW_C), (_LOW_C, "CDEFcdef", _HEX2)),
)


def free_string_dfa() -> Dfa:
    """Every JSON string in every spelling, with the quotes; escaped surrogates in pairs only."""
    table = np.full((_AFTER_F4 + 1, 256), DEAD, dtype=np.int32)
    for state, found, target in _ARCS:
        if isinstance(found, str):
            table[state, list(found.encode())] = target
        else:
            table[state, found[0] : found[1] + 1] = target
    columns, classes = np.unique(table, axis=1, return_inverse=True)
    accepting = np.arange(len(table)) == _END
    return Dfa(classes.reshape(-1).astype(np.uint8), np.ascontiguousarray(columns), accepting)
