"""The JSON text of strings, quickly where they are few, or all but few, as most schemas' keys and enumerations are."""

from __future__ import annotations

import functools
import json

import numpy as np
import numpy.typing as npt

from localllm.grammar.dfa import DEAD, Dfa
from localllm.grammar.expressions import Expression, Literal, Terminal
from localllm.grammar.regular import Language, json_string
from localllm.grammar.regular.automaton import of_power
from localllm.grammar.regular.charsets import EVERYTHING
from localllm.grammar.regular.encoding import json_dfa
from localllm.grammar.regular.language import Words

_QUOTE = ord('"')


def string_text(language: Language) -> Expression:
    """The text of a language's strings, as `regular.json_string` has it: in canonical spelling, with the quotes.

    Raises:
        TooComplexError: an automaton that grows too large.
    """
    form = language.form
    if isinstance(form, Words) and not language.is_any and not language.is_empty:
        spelled = frozenset(json.dumps(word, ensure_ascii=False).encode() for word in form.words)
        # Control characters without a short escape have two spellings.
        if not any(b"\\u" in word for word in spelled):
            return _all_but(spelled) if form.negated else _one_of(spelled)
    return json_string(language)


@functools.lru_cache(maxsize=4096)
def _one_of(spelled: frozenset[bytes]) -> Expression:
    if len(spelled) == 1:
        return Literal(next(iter(spelled)))
    nodes, ends = _trie(spelled)
    classes, n_classes = _classes(np.zeros(256, np.uint8), nodes)
    table = np.full((len(nodes) + 1, n_classes), DEAD, np.int32)
    table[ends, classes[_QUOTE]] = len(nodes)
    return Terminal(_finished(classes, table, nodes, np.array([len(nodes)])))


@functools.lru_cache(maxsize=4096)
def _all_but(spelled: frozenset[bytes]) -> Terminal:
    every = _every_string()
    nodes, ends = _trie(spelled)
    classes, n_classes = _classes(every.classes, nodes)
    # What a byte does that goes on in no word: what it does to the state of all strings behind the same bytes. Those
    # states follow the nodes of the words, their start excepted, which the root stands for.
    like = [0] * len(nodes)
    for node, edges in enumerate(nodes):
        for byte, after in edges.items():
            like[after] = int(every.next[like[node], every.classes[byte]])
    column = np.zeros(n_classes, np.intp)
    column[classes] = every.classes
    rows = every.next[[*like, *range(1, every.n_states)]][:, column]
    table = np.where(rows == DEAD, DEAD, rows + len(nodes) - 1).astype(np.int32)
    table[ends, classes[_QUOTE]] = DEAD
    return Terminal(_finished(classes, table, nodes, np.flatnonzero(every.accepting) + len(nodes) - 1))


@functools.cache
def _every_string() -> Dfa:
    """All strings in canonical spelling; no arc leads back to its start."""
    return json_dfa(of_power(EVERYTHING, 0, None))


def _trie(spelled: frozenset[bytes]) -> tuple[list[dict[int, int]], list[int]]:
    """The edges of every node by byte, node 0 the root, and the nodes at which a word wants its last quote."""
    nodes: list[dict[int, int]] = [{}]
    ends = []
    for word in sorted(spelled):
        node = 0
        for byte in word[:-1]:
            edges = nodes[node]
            if byte not in edges:
                edges[byte] = len(nodes)
                nodes.append({})
            node = edges[byte]
        ends.append(node)
    return nodes, ends


def _classes(classes: npt.NDArray[np.uint8], nodes: list[dict[int, int]]) -> tuple[npt.NDArray[np.uint8], int]:
    """The classes with each byte that is on an edge, and the quote, in a class of its own, and how many they are."""
    used = sorted({_QUOTE}.union(*nodes))
    refined = classes.astype(np.int32)
    refined[used] = 256 + np.arange(len(used))
    kinds, found = np.unique(refined, return_inverse=True)
    return found.astype(np.uint8), len(kinds)


def _finished(
    classes: npt.NDArray[np.uint8],
    table: npt.NDArray[np.int32],
    nodes: list[dict[int, int]],
    last: npt.NDArray[np.intp],
) -> Dfa:
    """With the edges of the nodes; `last` are the states in which strings end."""
    edges = [(node, byte, after) for node, edges in enumerate(nodes) for byte, after in edges.items()]
    places, used, targets = np.array(edges, np.int32).T
    table[places, classes[used]] = targets
    accepting = np.zeros(len(table), np.bool_)
    accepting[last] = True
    return Dfa(classes, table, accepting)
