"""An answer as Anthropic's events, and a whole message made of them; it knows nothing of how answers come about."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from localllm.messages import Chunk, Done, Prefill
from localllm.server.streaming import Record, Records, encoded
from localllm.server.truncation import truncated_field

PING: Record = {"type": "ping"}
PING_INTERVAL_S = 10.0
# Clients give it back with the thinking it came with, and some drop thinking that has none. It proves nothing here.
SIGNATURE = "localllm"


def encode(event: Record) -> bytes:
    """An event on the wire."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + encoded(event) + b"\n\n"


class Answer:
    """Turns the runner's messages into events: blocks of thinking, text and tool use, one after another."""

    def __init__(self, model: str, stop_sequences: list[str]) -> None:
        self._model = model
        self._stop_sequences = stop_sequences
        self._index = -1
        self._open = ""
        self._has_calls = False

    def start(self, prefill: Prefill) -> Record:
        """The first event, with the tokens of the prompt."""
        message: Record = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prefill.total, prefill.cached, 0),
            **truncated_field(prefill.truncated),
        }
        return {"type": "message_start", "message": message}

    def add(self, chunk: Chunk) -> Iterator[Record]:
        """What a piece of the answer adds: thinking first, then text, then tool calls."""
        if chunk.thinking:
            yield from self._in_block("thinking", {"thinking": "", "signature": ""})
            yield self._delta("thinking_delta", thinking=chunk.thinking)
        if chunk.text:
            yield from self._in_block("text", {"text": ""})
            yield self._delta("text_delta", text=chunk.text)
        for call in chunk.tool_calls:
            yield from self._call(call)

    def finish(self, done: Done) -> Iterator[Record]:
        """The last events."""
        yield from self._close()
        reason, sequence = self._stop_reason(done)
        stats, own = done.stats, {"warnings": done.warnings, "truncated": done.truncated}
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": _usage(stats.prompt_eval_count, stats.prompt_eval_cached_count, stats.eval_count),
            **{name: value for name, value in own.items() if value},
        }
        yield {"type": "message_stop"}

    def _stop_reason(self, done: Done) -> tuple[str, str | None]:
        if self._has_calls:
            return "tool_use", None
        if done.stop in self._stop_sequences:
            return "stop_sequence", done.stop
        return ("max_tokens" if done.done_reason == "length" else "end_turn"), None

    def _call(self, call: dict[str, Any]) -> Iterator[Record]:
        function = call["function"]
        self._has_calls = True
        yield from self._close()
        # Ids carry Anthropic's prefix; what they say beyond is the runner's.
        identifier = "toolu_" + str(call["id"]).removeprefix("call_")
        yield from self._in_block("tool_use", {"id": identifier, "name": function["name"], "input": {}})
        text = json.dumps(function["arguments"], ensure_ascii=False)
        yield self._delta("input_json_delta", partial_json=text)
        yield from self._close()

    def _in_block(self, kind: str, empty: dict[str, Any]) -> Iterator[Record]:
        """Begin a block of this kind, unless one is open."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **empty}}

    def _close(self) -> Iterator[Record]:
        if self._open == "thinking":
            yield self._delta("signature_delta", signature=SIGNATURE)
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _delta(self, kind: str, **fields: str) -> Record:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **fields}}


def _usage(n_prompt: int, n_cached: int, n_output: int) -> dict[str, int]:
    """The tokens of the prompt are the sum of the first three."""
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_output,
    }


async def with_pings(records: Records) -> Records:
    """The same records, and a ping whenever none has come for PING_INTERVAL_S seconds after the first.

    None comes before the first: until then an error can still have a status of its own.
    """
    coming: asyncio.Task[Record] | None = None
    async with aclosing(records):
        yield await anext(records)
        try:
            while True:
                coming = asyncio.ensure_future(anext(records))
                while not (await asyncio.wait((coming,), timeout=PING_INTERVAL_S))[0]:
                    yield PING
                try:
                    record = coming.result()
                except StopAsyncIteration:
                    return
                yield record
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming


def fold(events: list[Record]) -> Record:
    """The whole message that events tell of."""
    message: Record = {}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            _apply(event["delta"], message["content"][-1])
        elif kind == "message_delta":
            message |= {
                **event["delta"],
                **{key: event[key] for key in ("usage", "warnings", "truncated") if key in event},
            }
    return message


def _apply(delta: dict[str, Any], block: dict[str, Any]) -> None:
    if delta["type"] == "input_json_delta":
        block["input"] = json.loads(delta["partial_json"])
        return
    key = str(delta["type"]).removesuffix("_delta")
    block[key] += delta[key]
