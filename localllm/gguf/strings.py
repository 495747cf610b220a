"""Finds where an array of strings ends, many strings at a time, with NumPy; it does not know what they say."""

from __future__ import annotations

import mmap

import numpy as np

from localllm.gguf.header import walk_strings

CHUNK_BYTES = 1 << 16
WALKED = 64
"""Strings to walk over singly where the pattern fails, so that a file without any short strings costs little more."""


def end_of_strings(buffer: mmap.mmap, position: int, count: int) -> int:
    """As `walk_strings`, in a fifth of the time: vocabularies have hundreds of thousands of short strings.

    A string of 1 to 255 bytes begins with one byte and seven zeros. All places of a chunk that look so are found at
    once; as far as each is where the one before it ends, they are the strings.
    """
    view = np.frombuffer(buffer, np.uint8)
    while count > 0 and position <= len(view):
        chunk = view[position : position + CHUNK_BYTES]
        zero = chunk == 0
        two = zero[:-1] & zero[1:]
        four = two[:-2] & two[2:]
        places = np.flatnonzero(four[1:-3] & four[4:])
        ends = places + 8 + chunk[places]
        n = min(_n_in_chain(places, ends), count)
        if n:
            position, count = position + int(ends[n - 1]), count - n
        else:
            n = min(WALKED, count)
            position, count = walk_strings(buffer, position, n), count - n
    return position


def _n_in_chain(places: np.ndarray, ends: np.ndarray) -> int:
    """How many of the places follow one another from 0 on."""
    if not len(places) or places[0] != 0:
        return 0
    broken = np.flatnonzero(places[1:] != ends[:-1])
    return int(broken[0]) + 1 if len(broken) else len(places)
