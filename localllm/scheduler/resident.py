"""One model that is loaded or being loaded: its process, the requests it serves, when it expires.

It knows nothing of other models, of the queue, or of what the messages it passes on say.
"""

import asyncio
import contextlib
import enum
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import localllm.errors
from localllm.durations import FOREVER_NS, NS_PER_S
from localllm.errors import LocalLLMError, RunnerError, ServerBusyError
from localllm.messages import (
    Cancel,
    Done,
    Embeddings,
    Error,
    Failed,
    Figures,
    Levels,
    LoadRequest,
    Message,
    Progress,
    Ready,
    Rendered,
    Scores,
    Text,
    Tokens,
)
from localllm.scheduler.process import RunnerProcess
from localllm.scheduler.spare import SpareRunner

logger = logging.getLogger(__name__)

STOPPED_UNEXPECTEDLY = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)
TERMINAL = (Done, Error, Rendered, Tokens, Text, Embeddings, Scores)
# Seconds without a message and without using the processor, while requests run.
HANG_TIMEOUT_S = 60.0
# The same once somebody has asked to unload the model.
UNWANTED_HANG_TIMEOUT_S = 10.0
# Between two messages of a conversation people read, think and type; so long no batch takes their model away.
INTERACTIVE_PAUSE_S = 120.0

ModelKey = tuple[str, str | None]


def model_key(want: LoadRequest) -> ModelKey:
    """What makes two loads the same model: the weights and the template; the rest travels with each request."""
    return want.model.model_digest, want.model.template


class State(enum.Enum):
    """Life of a resident model."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


class Resident:
    """A runner process with one model. Made by the scheduler, which alone changes `active` and `keep_alive_ns`.

    `on_figures` gets what the process counted, whose `levels` are kept. `promised_bytes` is what it may take in all;
    `automatic_ctx` the context that would do for who asks for none, `asked_ctx` the one that it was loaded for.
    """

    def __init__(
        self,
        want: LoadRequest,
        keep_alive_ns: int,
        on_exit: Callable[["Resident"], None],
        on_figures: Callable[["Resident", Figures], None] = lambda resident, figures: None,
    ) -> None:
        self.key = model_key(want)
        self.want = want
        self.state = State.LOADING
        self.ready = Ready(n_ctx=want.num_ctx)
        self.keep_alive_ns = keep_alive_ns
        self.active = 0
        self.n_background = 0
        self.is_preempted = False
        self.draining = False
        self.has_died = False
        self.is_leaving = False
        self.levels = Levels()
        self.hang_timeout_s = HANG_TIMEOUT_S
        self.promised_bytes = 0
        self.asked_ctx = 0
        self.automatic_ctx = 0
        self.expiry_timer: asyncio.TimerHandle | None = None
        self.idle_since_ns = time.time_ns()
        self.process: RunnerProcess | None = None
        self._on_exit = on_exit
        self._on_figures = on_figures
        self._load_messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._streams: dict[str, asyncio.Queue[Message | LocalLLMError]] = {}
        self._last_sign = (0.0, time.monotonic())
        self.failure: LocalLLMError | None = None
        self._interactive_s = -math.inf

    @property
    def pid(self) -> int:
        """The process's id, 0 before it is started."""
        return self.process.pid if self.process is not None else 0

    async def load(
        self,
        spare: SpareRunner,
        timeout_s: float | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        """Take a process and load the model into it; on any failure the process is gone when this raises.

        Raises: the error class the runner names, or RunnerError where it dies or makes no progress.
        """
        try:
            self.process = await spare.take(self._receive, self._exited)
        except OSError as error:
            raise RunnerError(f"the model runner cannot be started: {error}") from error
        try:
            self.process.send(self.want)
            self.ready = await self._until_ready(timeout_s, on_progress)
            self.state = State.READY
        except BaseException:
            await self.process.stop(grace_s=0.0)
            raise

    async def _until_ready(self, timeout_s: float | None, on_progress: Callable[[Progress], None]) -> Ready:
        while True:
            try:
                message = await asyncio.wait_for(self._load_messages.get(), timeout_s)
            except asyncio.TimeoutError:
                what = f"timed out waiting for the model runner to start: no progress in {timeout_s:g} s"
                raise RunnerError(what, hint="LOCALLLM_LOAD_TIMEOUT sets the limit") from None
            if isinstance(message, Progress):
                on_progress(message)
            elif isinstance(message, Ready):
                return message
            elif isinstance(message, Failed):
                raise error_of(message.kind, message.error, message.hint, {})
            elif message is None:
                assert self.process is not None
                raise RunnerError(f"the model runner stopped while loading ({self.process.death_note()})")

    def _receive(self, message: Message) -> None:
        self._last_sign = (self._last_sign[0], time.monotonic())
        if isinstance(message, Figures):
            self.levels = message.levels
            self._on_figures(self, message)
            return
        if self.state is State.LOADING:
            self._load_messages.put_nowait(message)
            return
        stream = self._streams.get(getattr(message, "id", ""))
        if stream is not None:
            stream.put_nowait(message)

    def _exited(self) -> None:
        self._load_messages.put_nowait(None)
        self.failure = self._death()
        for stream in self._streams.values():
            stream.put_nowait(self.failure)
        self.state = State.STOPPING
        self._on_exit(self)

    def _death(self) -> LocalLLMError:
        assert self.process is not None
        if self.is_preempted:
            return ServerBusyError("the model was unloaded to make room for interactive requests")
        if self.state is State.STOPPING:
            return RunnerError("the model was unloaded while it was answering")
        note = self.process.death_note()
        if self.state is State.READY:  # while loading, the load itself says what happened
            self.has_died = True
            logger.error("runner %d of %s died: %s", self.process.pid, self.want.model.name, note)
        return RunnerError(STOPPED_UNEXPECTEDLY, hint=f"see the log of localllm; {note}")

    @property
    def n_interactive(self) -> int:
        """Requests of people that run."""
        return self.active - self.n_background

    def n_waited_for(self, is_interactive: bool) -> int:
        """How many running requests stand in the way of another one: only those of people in that of people."""
        return self.n_interactive if is_interactive else self.active

    def used_interactively(self) -> None:
        """Somebody waits, or waited just now, for what the model says."""
        self._interactive_s = time.monotonic()

    def is_in_interactive_use(self) -> bool:
        """Whether somebody uses the model, or did a moment ago and may go on."""
        return self.n_interactive > 0 or time.monotonic() - self._interactive_s < INTERACTIVE_PAUSE_S

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.is_alive()

    def serves(self, want: LoadRequest) -> bool:
        """Whether a request for `want` needs no reload: what is larger serves what is smaller, and what is not asked
        for is as it is. The context of a model that was loaded without a wish stays until a longer one is asked for.
        What it was loaded for is served, whatever became of that: loading it anew would change nothing."""
        num_ctx = want.num_ctx or self.automatic_ctx
        wanted = min(num_ctx, self.ready.n_ctx_train or num_ctx)
        num_thread = min(want.num_thread, os.cpu_count() or want.num_thread)
        return (
            wanted <= max(self.ready.n_ctx, self.asked_ctx)
            and num_thread in (0, self.want.num_thread, self.ready.n_threads)
            and want.num_batch <= max(self.want.num_batch, self.ready.n_batch)
            and want.kv_cache_type == self.want.kv_cache_type
            and self._drafts(want)
        )

    def _drafts(self, want: LoadRequest) -> bool:
        """Whether it has the draft model that is wanted; one that nobody asks for does no harm."""
        loaded = self.want.draft
        return want.draft is None or (loaded is not None and loaded.model_digest == want.draft.model_digest)

    def open_stream(self, request: Message) -> "asyncio.Queue[Message | LocalLLMError]":
        """Send a request (with an `id`) and return where its messages arrive, until `close_stream`."""
        assert self.process is not None
        stream: asyncio.Queue[Message | LocalLLMError] = asyncio.Queue()
        self._streams[request.id] = stream  # type: ignore[attr-defined]
        self._last_sign = (self._last_sign[0], time.monotonic())
        if self.failure is not None:
            stream.put_nowait(self.failure)
        self.process.send(request)
        return stream

    def cancel_request(self, request_id: str) -> None:
        """Tell the process to stop working on a request."""
        assert self.process is not None
        self.process.send(Cancel(request_id))

    def close_stream(self, request_id: str) -> None:
        """Forget a request; what still arrives for it is dropped."""
        self._streams.pop(request_id, None)

    def expires_at_ns(self) -> int:
        """Unix time in nanoseconds when it is unloaded if nothing more is asked of it."""
        start_ns = time.time_ns() if self.active else self.idle_since_ns
        return start_ns + self.keep_alive_ns

    def arm_expiry(self, expire: Callable[[], None]) -> None:
        """Start the keep-alive from now."""
        self.disarm_expiry()
        self.idle_since_ns = time.time_ns()
        if self.keep_alive_ns < FOREVER_NS:
            self.expiry_timer = asyncio.get_running_loop().call_later(self.keep_alive_ns / NS_PER_S, expire)

    def disarm_expiry(self) -> None:
        """Stop the keep-alive's clock."""
        if self.expiry_timer is not None:
            self.expiry_timer.cancel()
            self.expiry_timer = None

    def is_hung(self) -> bool:
        """Whether, with requests running, the process has neither spoken nor computed for `hang_timeout_s`."""
        if self.process is None or not self._streams:
            return False
        cpu_s, since = self._last_sign
        now_cpu_s = self.process.cpu_time_s()
        if now_cpu_s > cpu_s:
            self._last_sign = (now_cpu_s, time.monotonic())
            return False
        return time.monotonic() - since > self.hang_timeout_s

    async def stop(self) -> None:
        """End the process, within a bounded time; running requests end with an error."""
        self.state = State.STOPPING
        self.disarm_expiry()
        if self.process is not None:
            stuck = self.process.is_stopped()
            with contextlib.suppress(ProcessLookupError):
                await (self.process.stop(grace_s=0.0) if stuck else self.process.stop())

    def adopt(self, want: LoadRequest) -> None:
        """Take the name of the tag that was asked for last: several may share these weights."""
        self.want = replace(self.want, model=want.model)


def error_of(kind: str, text: str, hint: str | None, fields: Mapping[str, Any]) -> LocalLLMError:
    """The exception that a runner named: a class of localllm.errors with its own fields, else RunnerError."""
    error_class = getattr(localllm.errors, kind, RunnerError)
    if not (isinstance(error_class, type) and issubclass(error_class, LocalLLMError)):
        error_class = RunnerError
    try:
        error = error_class(text, **fields)
    except TypeError:
        error = RunnerError(text)
    if hint is not None:
        error.hint = hint
    return error
