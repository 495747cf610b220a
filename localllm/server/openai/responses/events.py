"""The events that tell of a response while it is made, in order and numbered; it knows nothing of requests."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from localllm.messages import Chunk, Done
from localllm.server.openai.figures import compact_json, entries_of
from localllm.server.streaming import Record


class Events:
    """Builds `response` piece by piece, and gives the events that each piece makes.

    `keeps_thinking`: whether reasoning items carry the whole thought for the next request.
    """

    def __init__(self, response: Record, *, with_logprobs: bool, keeps_thinking: bool) -> None:
        self.response = response
        self._output: list[Record] = response["output"]
        self._with_logprobs = with_logprobs
        self._keeps_thinking = keeps_thinking
        self._n_events = 0
        self._texts: list[str] = []
        self._logprobs: list[Record] = []

    def begin(self) -> Iterator[Record]:
        """The response exists."""
        yield self._event("response.created", response=self._snapshot())
        yield self._event("response.in_progress", response=self._snapshot())

    def chunk(self, chunk: Chunk) -> Iterator[Record]:
        """A piece of the answer."""
        if chunk.thinking:
            yield from self._think(chunk.thinking)
        entries = entries_of(chunk) if self._with_logprobs else []
        if chunk.text or entries:
            yield from self._say(chunk.text, entries)
        for call in chunk.tool_calls:
            yield from self._call(call)

    def end(self, done: Done, usage: Record) -> Iterator[Record]:
        """The answer is whole, or was cut where it got too long."""
        if not self._output:
            yield from self._say("", [])
        is_cut = done.done_reason == "length"
        yield from self._close("incomplete" if is_cut else "completed")
        if is_cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        yield self._terminal("incomplete" if is_cut else "completed", usage=usage)

    def fail(self, error: Record) -> Record:
        """The answer will not be whole: the last event, whatever item was open."""
        self._abandon()
        return self._terminal("failed", error=error)

    def _think(self, text: str) -> Iterator[Record]:
        if not self._is_open("reasoning"):
            yield from self._open({"type": "reasoning", "id": _new_id("rs"), "summary": []})
            yield self._about("response.reasoning_summary_part.added", summary_index=0, part=_summary(""))
        self._texts.append(text)
        yield self._about("response.reasoning_summary_text.delta", summary_index=0, delta=text)

    def _say(self, text: str, entries: list[Record]) -> Iterator[Record]:
        if not self._is_open("message"):
            yield from self._open({"type": "message", "id": _new_id("msg"), "role": "assistant", "content": []})
            yield self._about("response.content_part.added", content_index=0, part=_text_part("", []))
        self._texts.append(text)
        self._logprobs += entries
        yield self._about("response.output_text.delta", content_index=0, delta=text, logprobs=entries)

    def _call(self, call: dict[str, Any]) -> Iterator[Record]:
        function = call["function"]
        arguments = compact_json(function["arguments"])
        head = {"type": "function_call", "id": _new_id("fc"), "call_id": call["id"], "name": function["name"]}
        yield from self._open({**head, "arguments": ""})
        self._texts.append(arguments)
        yield self._about("response.function_call_arguments.delta", delta=arguments)

    def _is_open(self, kind: str) -> bool:
        return bool(self._output) and self._item["type"] == kind and self._item["status"] == "in_progress"

    @property
    def _item(self) -> Record:
        return self._output[-1]

    def _open(self, item: Record) -> Iterator[Record]:
        """Begin an item, after what was open is closed."""
        yield from self._close("completed")
        self._output.append({**item, "status": "in_progress"})
        yield self._event("response.output_item.added", output_index=self._index, item=dict(self._item))

    def _close(self, status: str) -> Iterator[Record]:
        """Complete the item that is open, if one is."""
        if not self._output or self._item["status"] != "in_progress":
            return
        text = self._complete(status)
        if self._item["type"] == "reasoning":
            yield self._about("response.reasoning_summary_text.done", summary_index=0, text=text)
            yield self._about("response.reasoning_summary_part.done", summary_index=0, part=_summary(text))
        elif self._item["type"] == "message":
            (part,) = self._item["content"]
            told = {"text": text, "logprobs": part.get("logprobs", [])}
            yield self._about("response.output_text.done", content_index=0, **told)
            yield self._about("response.content_part.done", content_index=0, part=part)
        else:
            name = self._item["name"]
            yield self._about("response.function_call_arguments.done", name=name, arguments=text)
        yield self._event("response.output_item.done", output_index=self._index, item=self._item)

    def _complete(self, status: str) -> str:
        """Give the open item its text, which is returned, and its status."""
        text = "".join(self._texts)
        item = self._item
        if item["type"] == "reasoning":
            item["summary"] = [_summary(text)]
            item.update({"encrypted_content": text} if self._keeps_thinking else {})
        elif item["type"] == "message":
            item["content"] = [_text_part(text, self._logprobs if self._with_logprobs else None)]
        else:
            item["arguments"] = text
        item["status"] = status
        self._texts, self._logprobs = [], []
        return text

    def _abandon(self) -> None:
        if self._output and self._item["status"] == "in_progress":
            self._complete("incomplete")

    @property
    def _index(self) -> int:
        return len(self._output) - 1

    def _terminal(self, status: str, **fields: Any) -> Record:
        completed_at = {"completed_at": int(time.time())} if status == "completed" else {}
        self.response.update(status=status, **completed_at, **fields)
        return self._event(f"response.{status}", response=self._snapshot())

    def _about(self, kind: str, **fields: Any) -> Record:
        """An event of the last item."""
        return self._event(kind, item_id=self._item["id"], output_index=self._index, **fields)

    def _event(self, kind: str, **fields: Any) -> Record:
        event = {"type": kind, "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return event

    def _snapshot(self) -> Record:
        return {**self.response, "output": list(self._output)}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _summary(text: str) -> Record:
    return {"type": "summary_text", "text": text}


def _text_part(text: str, logprobs: list[Record] | None) -> Record:
    part: Record = {"type": "output_text", "text": text, "annotations": []}
    return part if logprobs is None else {**part, "logprobs": logprobs}
