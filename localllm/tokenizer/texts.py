"""The texts of a vocabulary, by id and by text, without a Python object per token; what they mean is not known here."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

U32Array = npt.NDArray[np.uint32]


class Buckets:
    """Row numbers grouped by hash: bucket b holds `rows[starts[b]:starts[b + 1]]`.

    `starts` is uint32 [n_buckets + 1] with n_buckets a power of two, `rows` uint32 [n].
    """

    def __init__(self, starts: U32Array, rows: U32Array) -> None:
        self.mask = len(starts) - 2
        self.starts = starts.data
        self.rows = rows.data

    @staticmethod
    def group(hashes: U32Array) -> tuple[U32Array, U32Array]:
        """`starts` and `rows` for the hashes uint32 [n] of rows 0 … n - 1; rows of a bucket are in ascending order."""
        n_buckets = 1 << max(len(hashes) - 1, 1).bit_length()
        buckets = hashes & np.uint32(n_buckets - 1)
        starts = np.zeros(n_buckets + 1, np.uint32)
        np.cumsum(np.bincount(buckets, minlength=n_buckets), out=starts[1:])
        return starts, np.argsort(buckets, kind="stable").astype(np.uint32)


class TokenTexts:
    """Texts by id, and ids by text.

    `raw` is the body of a GGUF array of strings: each a u64 length and that many bytes. `starts` is uint32 [n + 1]:
    where the text of each token begins in it, and len(raw) + 8. An empty text is spelled `[EMPTY_<id>]`.
    Of tokens with the same text, the last is the one found.
    """

    def __init__(self, raw: bytes | memoryview, starts: U32Array, buckets: Buckets) -> None:
        self.raw = raw
        self.starts = starts.data
        self.buckets = buckets

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, token: int) -> bytes:
        return bytes(self.raw[self.starts[token] : self.starts[token + 1] - 8]) or b"[EMPTY_%d]" % token

    def find(self, text: bytes, accept: Callable[[int], bool] | None = None) -> int | None:
        """The id of `text`, or None; with `accept`, of the ids that it accepts."""
        buckets, starts = self.buckets, self.starts
        bucket = zlib.crc32(text) & buckets.mask
        first, row = buckets.starts[bucket], buckets.starts[bucket + 1]
        n_bytes = len(text)
        while row > first:
            row -= 1
            token = buckets.rows[row]
            start, n = starts[token], starts[token + 1] - starts[token] - 8
            is_same = self.raw[start : start + n] == text if n == n_bytes else n == 0 and self[token] == text
            if is_same and (accept is None or accept(token)):
                return token
        return None


def token_starts(raw: bytes | memoryview, count: int) -> U32Array:
    """`TokenTexts.starts` of an array body that holds `count` strings."""
    starts = []
    position, read_length = 8, struct.Struct("<Q").unpack_from
    for _ in range(count):
        starts.append(position)
        position += 8 + read_length(raw, position - 8)[0]
    starts.append(position)
    return np.array(starts, np.uint32)


def split_strings(raw: bytes | memoryview, starts: U32Array) -> list[bytes]:
    """All texts of an array body, empty ones spelled out as `TokenTexts` does."""
    bounds = starts.tolist()
    return [
        bytes(raw[start : following - 8]) or b"[EMPTY_%d]" % token
        for token, (start, following) in enumerate(itertools.pairwise(bounds))
    ]


def hash_texts(texts: Sequence[bytes]) -> U32Array:
    """The hash that `TokenTexts.find` uses, uint32 [n]."""
    return np.fromiter(map(zlib.crc32, texts), np.uint32, len(texts))
