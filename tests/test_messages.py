"""Frames and messages of the runner's pipe."""

import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm import frames, messages
from localllm.frames import decode_body, encode_frame, frame_length, read_frame
from localllm.messages import (
    Chunk,
    Counts,
    Done,
    Figures,
    GenerateRequest,
    Levels,
    LoadRequest,
    Message,
    ModelSpec,
    Prefill,
    Shutdown,
    Stats,
)
from localllm.records import FrameError

MODEL = ModelSpec("m", "d", ["/a", "/b"], "w", template="{{ . }}", params={"stop": ["x"]})
SAMPLES: list[Message] = [
    LoadRequest(MODEL, num_ctx=128),
    GenerateRequest("1", "chat", messages=[{"role": "user", "content": "ü\ud800 🦙"}], think="high", format={"a": 1}),
    Prefill("1", total=9, cached=3, processed=5, elapsed_ns=7, truncated={"tokens": 3}),
    Chunk("1", text="é", tool_calls=[{"id": "x"}], logprobs=[{"token": "a", "logprob": -1.5}]),
    Done("1", stats=Stats(1, 2, 3, 4, 5, 6), context=[1, 2], truncated={"tokens": 3}),
    Figures(Counts(prompt_tokens=1), Levels(1, 2, 3, 4), [0, 1], 0.5),
    Shutdown(),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.type)
def test_a_frame_reads_back(message: Message) -> None:
    assert read_frame(io.BytesIO(encode_frame(message))) == message


def test_every_class_is_in_the_table() -> None:
    classes = {value for value in vars(messages).values() if isinstance(value, type) and issubclass(value, Message)}
    assert classes - {Message} == set(messages.MESSAGES.values())
    assert all(name == cls.type for name, cls in messages.MESSAGES.items())


def test_unknown_keys_are_ignored_and_absent_ones_default() -> None:
    assert decode_body(b'{"type":"chunk","id":"1","news":true}') == Chunk("1")
    assert decode_body(b'{"type":"done","id":"1","stats":{"eval_count":2}}') == Done("1", stats=Stats(eval_count=2))


def test_several_frames_from_a_stream_that_dribbles() -> None:
    class Dribble(io.RawIOBase):
        def __init__(self, content: bytes) -> None:
            self.content = content

        def read(self, size: int = -1) -> bytes:
            piece, self.content = self.content[: min(size, 3)], self.content[min(size, 3) :]
            return piece

    stream: Any = Dribble(b"".join(encode_frame(message) for message in SAMPLES))
    assert [read_frame(stream) for _ in SAMPLES] == SAMPLES
    assert read_frame(stream) is None


@given(st.binary(max_size=64))
def test_any_bytes_give_a_message_or_a_frame_error(content: bytes) -> None:
    try:
        read_frame(io.BytesIO(content))
    except FrameError as error:
        assert str(error)


@pytest.mark.parametrize(
    "body",
    [b"x", b"[]", b"{}", b'{"type":"nonsense"}', b'{"type":"chunk"}', b'{"type":[]}', b'{"type":"load","model":1}'],
)
def test_bad_bodies(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_body(body)


def test_a_length_beyond_the_limit_is_refused_before_reading() -> None:
    with pytest.raises(FrameError, match="exceeds"):
        frame_length(struct.pack("<I", frames.MAX_FRAME_BYTES + 1))
