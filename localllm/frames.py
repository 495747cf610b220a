"""Messages as frames on a pipe: a 4-byte little-endian length, then that many bytes of UTF-8 JSON.

The object's `type` names one of the classes in messages.py.
"""

import json
import struct
from typing import BinaryIO

from localllm.messages import MESSAGES, Message
from localllm.records import FrameError

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 30

_LENGTH = struct.Struct("<I")


def encode_frame(message: Message) -> bytes:
    """The frame of a message, ready to write. Raises: FrameError above MAX_FRAME_BYTES."""
    body = json.dumps(message.to_json(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"message of {len(body)} bytes exceeds the {MAX_FRAME_BYTES} bytes of a frame")
    return _LENGTH.pack(len(body)) + body


def frame_length(header: bytes) -> int:
    """Bytes of body that follow these LENGTH_BYTES bytes. Raises: FrameError above MAX_FRAME_BYTES."""
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
    return int(length)


def decode_body(body: bytes) -> Message:
    """The message in a frame's body. Raises: FrameError."""
    try:
        obj = json.loads(body.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise FrameError(f"frame is not JSON: {error}") from error
    kind = obj.get("type") if isinstance(obj, dict) else None
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise FrameError("frame is not an object with a known type")
    return MESSAGES[kind].from_json(obj)


def read_frame(stream: BinaryIO) -> Message | None:
    """The next message of a blocking stream, None at its end. Raises: FrameError, also when it ends inside a frame."""
    header = _read_exactly(stream, LENGTH_BYTES)
    if not header:
        return None
    body = _read_exactly(stream, frame_length(header)) if len(header) == LENGTH_BYTES else b""
    if len(header) < LENGTH_BYTES or len(body) < frame_length(header):
        raise FrameError("stream ended inside a frame")
    return decode_body(body)


def _read_exactly(stream: BinaryIO, n_bytes: int) -> bytes:
    parts: list[bytes] = []
    while n_bytes > 0:
        part = stream.read(n_bytes)
        if not part:
            break
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)
