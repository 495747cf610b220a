"""The right to send one request to a loaded model; it does not know how models come to be loaded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from types import TracebackType

from localllm.errors import LocalLLMError, RunnerError
from localllm.messages import (
    Chunk,
    Detokenize,
    Embed,
    Embeddings,
    Error,
    GenerateRequest,
    Message,
    Rank,
    Ready,
    Scores,
    Text,
    Tokenize,
    Tokens,
)
from localllm.scheduler.resident import TERMINAL, Resident, error_of

# A runner that dies this soon after it was sent a request, without a word, was dying before.
EARLY_DEATH_S = 0.25


@dataclass(frozen=True)
class Terms:
    """What a lease has of the scheduler: `release` gives a model back, `lease_again` gets another process of it, and
    `first_token` is told when an answer begins. `may_retry` says whether a dead process is worth a second try."""

    is_interactive: bool
    release: Callable[[Resident], None]
    lease_again: Callable[[], Awaitable[Resident]]
    first_token: Callable[[], None]
    may_retry: Callable[[], bool]


class Lease:
    """Given back by `release`, with the last message of a request, or at the end of `async with`."""

    def __init__(self, resident: Resident, terms: Terms) -> None:
        self._resident = resident
        self._terms = terms
        self._released = False
        self._has_answered = False

    @property
    def ready(self) -> Ready:
        """What the runner said of the model: n_ctx, memory, capabilities."""
        return self._resident.ready

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Message, None]:
        """The messages of one request: Chunks, then a Done (or a Rendered alone).

        The lease is released before the last message is handed out. Closing the iterator early cancels the request.
        Raises: what the runner names in an Error, or RunnerError where it dies.
        """
        sent_at, silent = time.monotonic(), True
        try:
            async with contextlib.aclosing(self._messages(request)) as messages:
                async for message in messages:
                    silent = False
                    yield message
                return
        except RunnerError as error:
            # The process was dying already when it was given the request: that is not the request's doing.
            died = error is self._resident.failure and self._terms.may_retry()
            if not (died and silent and time.monotonic() - sent_at < EARLY_DEATH_S):
                raise
        self._resident = await self._terms.lease_again()
        self._released = False
        async with contextlib.aclosing(self._messages(request)) as messages:
            async for message in messages:
                yield message

    async def _messages(self, request: GenerateRequest) -> AsyncGenerator[Message, None]:
        stream = self._resident.open_stream(self._marked(request))
        finished = False
        try:
            while not finished:
                message = await stream.get()
                finished = isinstance(message, (TERMINAL, LocalLLMError))
                if finished:
                    self._resident.close_stream(request.id)
                    self.release()
                if isinstance(message, LocalLLMError):
                    raise message
                if isinstance(message, Error):
                    raise error_of(message.kind, message.error, message.hint, message.fields)
                if isinstance(message, Chunk) and not self._has_answered:
                    self._has_answered = True
                    self._terms.first_token()
                yield message
        finally:
            if not finished:
                self._resident.close_stream(request.id)
                self._resident.cancel_request(request.id)
            self.release()

    def _marked(self, request: Message) -> Message:
        """The request, saying so where nobody waits for it."""
        if not self._terms.is_interactive and isinstance(request, (GenerateRequest, Embed)):
            return replace(request, is_interactive=False)
        return request

    async def tokenize(self, request: Tokenize) -> list[int]:
        """Token ids of a text. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Tokens)
        return answer.tokens

    async def detokenize(self, request: Detokenize) -> str:
        """The text of token ids. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Text)
        return answer.text

    async def embed(self, request: Embed) -> Embeddings:
        """The vectors of texts. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Embeddings)
        return answer

    async def rank(self, request: Rank) -> Scores:
        """How well documents answer a query. Raises: as `generate`."""
        answer = await self._ask(request)
        assert isinstance(answer, Scores)
        return answer

    async def _ask(self, request: Tokenize | Detokenize | Embed | Rank) -> Message:
        """The one answer to a request; who stops waiting for it cancels it."""
        stream = self._resident.open_stream(self._marked(request))
        message = None
        try:
            message = await stream.get()
        finally:
            self._resident.close_stream(request.id)
            if message is None:
                self._resident.cancel_request(request.id)
        if isinstance(message, LocalLLMError):
            raise message
        if isinstance(message, Error):
            raise error_of(message.kind, message.error, message.hint, message.fields)
        return message

    def release(self) -> None:
        """Give the model back; its keep-alive starts when the last lease has gone. May be called twice."""
        if not self._released:
            self._released = True
            self._terms.release(self._resident)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
