"""POST /v1/completions: what follows a prompt, as OpenAI's older clients ask for it.

A prompt of text goes through the model's template, as with Ollama; one of token ids is what the model reads. It knows
nothing of templates.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from localllm.messages import Chunk, Detokenize, Done, GenerateRequest, Message, Prefill
from localllm.server import generate, inference
from localllm.server.binding import Anything, Bool, Int, Map, Place, String, Struct, read
from localllm.server.daemon import Daemon, daemon_of
from localllm.server.describe import described
from localllm.server.inference import Asked
from localllm.server.openai import chunks, fields
from localllm.server.openai.choices import replicas
from localllm.server.openai.errors import InvalidRequestError, told
from localllm.server.openai.figures import entries_of, legacy_logprobs
from localllm.server.openai.shapes import COMPLETION
from localllm.server.openai.sse import DATA, EVENT_STREAM
from localllm.server.streaming import Record, Records, RecordsResponse

COMPLETION_REQUEST = Struct(
    "openai.CompletionRequest",
    {
        **fields.OPTION_FIELDS,
        **fields.EXTRA_FIELDS,
        **fields.STREAM_FIELDS,
        "model": String(),
        "prompt": Anything(),
        "suffix": String(),
        "echo": Bool(),
        "n": Int(default=None),
        "best_of": Int(default=None),
        "max_tokens": Int(default=None),
        "logprobs": Int(default=None),
        "response_format": Map(),
        "chat_template_kwargs": Map(),
    },
)

Prompt = str | list[int]


@described(
    "what follows a prompt",
    body=COMPLETION_REQUEST,
    answer=COMPLETION,
    streams=EVENT_STREAM,
    errors=(404, 500, 503),
)
async def completions(request: Request) -> Response:
    """The endpoint."""
    return await answer(daemon_of(request), await read(request, COMPLETION_REQUEST))


async def answer(daemon: Daemon, body: dict[str, Any]) -> RecordsResponse:
    """The answer to a bound body. Raises: as generate.ask."""
    # Many token ids take a while, in which the daemon has others to answer.
    prompts = await asyncio.to_thread(prompts_of, body["prompt"])
    n = fields.n_choices(body)
    _check(body, prompts, n)
    asked, requests = None, []
    for prompt in prompts:
        asked, request = await _ask(daemon, body, prompt)
        requests += replicas(request, n)
    assert asked is not None, "there are prompts"
    job = _Job(asked, prompts, n, bool(body["echo"]), body["logprobs"] is not None)
    records = _records(job, requests, fields.wants_usage(body))
    return RecordsResponse(records, stream=body["stream"], fold=fold, wire=DATA, told=asked.headers)


def prompts_of(value: Any) -> list[Prompt]:
    """The prompts: a text, texts, token ids, or lists of token ids. Raises: InvalidRequestError."""
    if isinstance(value, str) or fields.is_tokens(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise InvalidRequestError("prompt", f"expected a string, token ids, or an array of either, not {told(value)}")
    for i, prompt in enumerate(value):
        if not isinstance(prompt, str) and not fields.is_tokens(prompt):
            raise InvalidRequestError(f"prompt[{i}]", f"expected a string or token ids, not {told(prompt)}")
        if not prompt:
            raise InvalidRequestError(f"prompt[{i}]" if len(value) > 1 else "prompt", "must not be empty")
    return value


def _check(body: dict[str, Any], prompts: list[Prompt], n: int) -> None:
    if body["best_of"] is not None and body["best_of"] != n:
        raise InvalidRequestError("best_of", f"must equal n ({n}), not {body['best_of']}: every answer is given")
    if body["logprobs"] is not None and not 0 <= body["logprobs"] <= inference.MAX_TOP_LOGPROBS:
        raise InvalidRequestError("logprobs", f"must be in 0..{inference.MAX_TOP_LOGPROBS}, not {body['logprobs']}")
    if body["logprobs"] is not None and body["echo"]:
        raise InvalidRequestError("logprobs", "cannot be given beside echo: a prompt has none")
    if body["suffix"] and not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidRequestError("suffix", "needs prompts of text, not of token ids")
    if len(prompts) * n > fields.MAX_CHOICES:
        raise InvalidRequestError("prompt", f"prompts x n must be at most {fields.MAX_CHOICES}, not {len(prompts) * n}")


async def _ask(daemon: Daemon, body: dict[str, Any], prompt: Prompt) -> tuple[Asked, GenerateRequest]:
    is_text = isinstance(prompt, str)
    native = {
        "model": body["model"],
        "prompt": prompt if is_text else "",
        "raw": not is_text,
        "suffix": body["suffix"],
        "format": fields.response_format_of(body),
        "options": fields.options_of(body, body["max_tokens"]),
        "logprobs": body["logprobs"] is not None,
        "top_logprobs": body["logprobs"],
        "progress": fields.wants_progress(body),
    }
    bound = generate.GENERATE_REQUEST.bind(native, Place("GenerateRequest"))
    asked, request = await generate.ask(
        daemon,
        {**bound, **fields.native_fields(body), "think": body["think"]},
        tokens=None if is_text else prompt,
        **fields.own_fields(body),
    )
    assert request is not None, "there is a prompt"
    return asked, request


@dataclass(frozen=True)
class _Job:
    """What all choices share: `n` for each prompt, one prompt after the other."""

    asked: Asked
    prompts: list[Prompt]
    n: int
    is_echoed: bool
    with_logprobs: bool


async def _records(job: _Job, requests: list[GenerateRequest], with_usage: bool) -> Records:
    echoes = await _echoes(job)
    writers = [_Writer(i, job.with_logprobs, echoes[i // job.n]) for i in range(len(requests))]
    head = chunks.head(job.asked, "cmpl", "text_completion")
    told = chunks.stream(head, job.asked, requests, writers, n=job.n, with_usage=with_usage)
    async with aclosing(told) as records:
        async for record in records:
            yield record


async def _echoes(job: _Job) -> list[str]:
    """What each prompt's answers begin with: the prompt as text, where that was asked for."""
    if not job.is_echoed:
        return [""] * len(job.prompts)
    return [prompt if isinstance(prompt, str) else await _text_of(job.asked, prompt) for prompt in job.prompts]


async def _text_of(asked: Asked, tokens: list[int]) -> str:
    async with await asked.daemon.scheduler.lease(asked.want, asked.keep_alive_ns) as lease:
        return await lease.detokenize(Detokenize(uuid.uuid4().hex, tokens))


@dataclass
class _Writer:
    """One choice of a stream. `n_chars` of its text have been given, `echo` is still to be."""

    index: int
    with_logprobs: bool
    echo: str
    n_chars: int = 0

    def choices(self, message: Message) -> Iterator[Record]:
        """The `choices` entries that tell a message of the runner."""
        if self.echo:
            text, self.echo = self.echo, ""
            yield self._choice(text)
        if isinstance(message, Chunk):
            thinking = {"reasoning": message.thinking} if message.thinking else {}
            yield {**self._choice(message.text, message), **thinking}
        elif isinstance(message, Prefill):
            yield self._choice("")
        elif isinstance(message, Done):
            yield {**self._choice(""), "finish_reason": message.done_reason}

    def _choice(self, text: str, chunk: Chunk | None = None) -> Record:
        entries = entries_of(chunk) if chunk else []
        logprobs = legacy_logprobs(entries, self.n_chars) if self.with_logprobs and entries else None
        self.n_chars += len(text)
        return {"text": text, "index": self.index, "logprobs": logprobs, "finish_reason": None}


def fold(records: list[Record]) -> Record:
    """The whole answer of a stream's chunks, the counts of tokens among them."""
    return chunks.fold(records, _whole_choice)


def _whole_choice(index: int, parts: list[Record]) -> Record:
    choice: Record = {
        "text": "".join(part["text"] for part in parts),
        "index": index,
        "logprobs": _whole_logprobs([part["logprobs"] for part in parts if part["logprobs"]]),
        "finish_reason": parts[-1]["finish_reason"],
    }
    thinking = "".join(part.get("reasoning", "") for part in parts)
    return {**choice, "reasoning": thinking} if thinking else choice


def _whole_logprobs(parts: list[Record]) -> Record | None:
    return {key: [*chain.from_iterable(part[key] for part in parts)] for key in parts[0]} if parts else None
