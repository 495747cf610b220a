"""The end of an array of strings, found in chunks as by walking."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.gguf import strings
from localllm.gguf.header import walk_strings

TEXTS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([b"", b"\0", bytes(8), b"\1" + bytes(7), bytes(20), b"x" * 255, b"x" * 256, b"y" * 700]),
    ),
    max_size=300,
)


def mapped(content: bytes) -> mmap.mmap:
    buffer = mmap.mmap(-1, max(len(content), 1))
    buffer[: len(content)] = content
    return buffer


@given(texts=TEXTS, before=st.integers(0, 9), after=st.integers(0, 20), chunk_bytes=st.integers(1, 600))
@settings(max_examples=300, deadline=None)
def test_any_strings(texts: list[bytes], before: int, after: int, chunk_bytes: int) -> None:
    body = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    buffer = mapped(bytes(before) + body + bytes(after))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "CHUNK_BYTES", chunk_bytes)
        for count in (len(texts), len(texts) // 2, 0):
            assert strings.end_of_strings(buffer, before, count) == walk_strings(buffer, before, count)
    assert strings.end_of_strings(buffer, before, len(texts)) == before + len(body)


@pytest.mark.parametrize("find", [walk_strings, strings.end_of_strings])
@given(texts=TEXTS, cut=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_strings_that_run_past_the_end(
    find: Callable[[mmap.mmap, int, int], int], texts: list[bytes], cut: int
) -> None:
    body = b"".join(struct.pack("<Q", len(text)) + text for text in [*texts, b"the last"])
    whole = mapped(body[: max(len(body) - cut, 1)])
    assert find(whole, 0, len(texts) + 1) > len(whole)
