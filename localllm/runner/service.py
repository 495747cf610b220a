"""Reads the daemon's messages and sends each to the thread that serves it; it knows nothing of logits."""

from __future__ import annotations

import gc
import logging
import math
import os
import queue
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, BinaryIO

from localllm import env
from localllm.errors import RequestError, RunnerError
from localllm.frames import read_frame
from localllm.messages import (
    Cancel,
    Detokenize,
    Embed,
    GenerateRequest,
    LoadRequest,
    Message,
    Rank,
    Rendered,
    Shutdown,
    Text,
    Tokenize,
    Tokens,
)
from localllm.runner.adapters import Adapters
from localllm.runner.batch import Batch, EngineLike
from localllm.runner.constraints import Constraints
from localllm.runner.embed import VectorModel, embed_job, rank_job
from localllm.runner.errors import error_message, failed_message
from localllm.runner.fitting import n_ctx_of
from localllm.runner.generation import Generation
from localllm.runner.model import Model, load_model
from localllm.runner.outbox import Outbox
from localllm.runner.prompt import PromptBuilder
from localllm.runner.vectors import VectorJob
from localllm.sampling import Sampler, SamplerParams, find_breakers

SAVE_TIMEOUT_S = 2.0
"""How long the process may go on at its end; whoever ends it waits for more than that."""

logger = logging.getLogger(__name__)

Loader = Callable[[LoadRequest, Outbox], Model]


class Service:
    """One runner: the caller's thread reads, one thread prepares prompts, one loads the model and then steps."""

    def __init__(
        self, outbox: Outbox, load: Loader = load_model, exit_process: Callable[[int], None] = os._exit
    ) -> None:
        self._outbox = outbox
        self._load = load
        self._exit_process = exit_process
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._batch: Batch | None = None
        self._engine: EngineLike | None = None
        self._expected: set[str] = set()  # requests read, not yet in the batch and not canceled

    def serve(self, stream: BinaryIO) -> None:
        """Serve until the stream ends or a shutdown message comes; does not wait for what is running, but writes to
        disk, for a moment at most, what was evaluated."""
        while (message := read_frame(stream)) is not None and not isinstance(message, Shutdown):
            if isinstance(message, LoadRequest):
                self._start(self._run_model, message)
            elif isinstance(message, Cancel):
                self._cancel(message.id)
            else:
                with self._lock:
                    self._expected.add(str(getattr(message, "id", "")))
                self._inbox.put(message)
        self._inbox.put(Shutdown())
        with self._lock:
            if self._batch:
                self._batch.close()
        if self._engine:
            self._engine.save_prefixes(SAVE_TIMEOUT_S)

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=self._guarded, args=(run, *args), name=run.__name__, daemon=True).start()

    def _guarded(self, run: Callable[..., None], *args: Any) -> None:
        """A thread that ends by an error nobody foresaw takes the process with it: without it, requests would wait
        for ever, whereas the daemon tells them of a process that died."""
        try:
            run(*args)
        except Exception:
            logger.critical("%s failed", run.__name__, exc_info=True)
            self._exit_process(1)

    def _cancel(self, request_id: str) -> None:
        with self._lock:
            self._expected.discard(request_id)
            if self._batch:
                self._batch.cancel(request_id)

    def _run_model(self, request: LoadRequest) -> None:
        try:
            model = self._load(request, self._outbox)
        except Exception as error:
            self._outbox.send(failed_message(error))
            self._outbox.close()
            self._exit_process(1)
            return
        draft = model.draft.engine if model.draft else None
        target_s = env.tbt_target_ms() / 1000
        batch = Batch(model.engine, model.n_parallel, self._outbox.send, target_s, draft=draft)
        gc.freeze()  # what was loaded stays: looking for garbage in it takes as long as some tokens
        with self._lock:
            self._batch, self._engine = batch, model.engine
        self._outbox.send(model.ready)
        self._start(self._prepare_all, Preparation(model, self._outbox.send), batch)
        batch.run()

    def _prepare_all(self, preparation: Preparation, batch: Batch) -> None:
        while not isinstance(message := self._inbox.get(), Shutdown):
            request_id = str(getattr(message, "id", ""))
            if request_id not in self._expected:
                continue
            work = preparation.handle(message)
            with self._lock:
                is_wanted = request_id in self._expected
                self._expected.discard(request_id)
                if work is None:
                    continue
                if not is_wanted:
                    work.adapters.release()
                    continue
                if isinstance(work, VectorJob):
                    batch.submit_job(work)
                else:
                    batch.submit(work)


class Preparation:
    """Turns messages into answers, or into generations for the batch."""

    def __init__(self, model: Model, send: Callable[[Message], None]) -> None:
        self._model = model
        self._send = send
        self._prompts = lru_cache(8)(
            partial(PromptBuilder, model.name, model.tokenizer, model.templates, n_ctx_train=model.ready.n_ctx_train)
        )
        self._breakers = lru_cache(8)(self._find_breakers)
        self._n_vocab = min(model.tokenizer.n_vocab, model.engine.n_vocab)
        self._constraints = Constraints(model.name, model.tokenizer, self._n_vocab)
        self._adapters = model.adapters or Adapters(model.engine)
        self._vectors = VectorModel(
            model.name,
            model.tokenizer,
            model.engine,
            model.engine.n_ctx,
            model.rank_template,
            model.separates,
            self._adapters,
        )

    def handle(self, message: Message) -> Generation | VectorJob | None:
        """Serve one message; what goes wrong is the answer to it. A request for text gives a generation, one for
        vectors or scores a job."""
        try:
            if isinstance(message, GenerateRequest):
                return self._generation(message)
            if isinstance(message, Embed):
                return embed_job(self._vectors, message, self._send)
            if isinstance(message, Rank):
                return rank_job(self._vectors, message, self._send)
            self._serve(message)
        except Exception as error:
            self._send(error_message(str(getattr(message, "id", "")), error))
        return None

    def _serve(self, message: Message) -> None:
        tokenizer = self._model.tokenizer
        if isinstance(message, Tokenize):
            tokens = tokenizer.encode(message.text, message.add_special, message.parse_special)
            self._send(Tokens(message.id, list(tokens)))
        elif isinstance(message, Detokenize):
            n_vocab = tokenizer.n_vocab
            if bad := [token for token in message.tokens if not 0 <= token < n_vocab]:
                raise RequestError(f"tokens: ids must be in 0..{n_vocab - 1}, not {bad[0]}")
            self._send(Text(message.id, tokenizer.decode(message.tokens)))
        else:
            raise RunnerError(f'a message of type "{message.type}" is not for a runner')

    def _generation(self, request: GenerateRequest) -> Generation | None:
        if {"embedding", "rerank"} & set(self._model.ready.capabilities):
            raise RequestError(f'"{self._model.name}" does not support {request.kind}')
        n_ctx = n_ctx_of(request.options, self._model.engine.n_ctx)
        prompt = self._prompts(n_ctx).build(request)
        compiled = self._constraints.of(request, prompt.frame)
        if request.debug_render_only:
            self._send(Rendered(request.id, prompt.text, prompt.tokens))
            return None
        sampler = self._sampler(request.options)
        adapters = self._adapters.acquire(request.lora)
        try:
            tokenizer = self._model.tokenizer
            generation = Generation(request, prompt, sampler, tokenizer, n_ctx, self._send, adapters, compiled)
            generation.prefetched = self._model.engine.prefetch(prompt.tokens, adapters.key)
        except BaseException:
            adapters.release()
            raise
        return generation

    def _sampler(self, options: dict[str, Any]) -> Sampler:
        tokenizer = self._model.tokenizer
        params = SamplerParams.from_options({**options, "logit_bias": self._biases(options.get("logit_bias") or {})})
        breakers = self._breakers(params.dry_sequence_breakers) if params.is_dry_enabled else None
        return Sampler(params, self._n_vocab, tokenizer.eog_ids, breakers)

    def _biases(self, biases: dict[str, float]) -> dict[int, float]:
        """Keys are token ids in decimal, or texts, each of whose tokens is biased; and what must never be sampled."""
        result: dict[int, float] = dict.fromkeys(self._model.tokenizer.suppress_ids, -math.inf)
        for key, bias in biases.items():
            is_id = key.lstrip("-").isdecimal()
            tokens = [int(key)] if is_id else self._model.tokenizer.encode(key, add_special=False)
            result.update(dict.fromkeys(tokens, bias))
        return result

    def _find_breakers(self, texts: tuple[str, ...]) -> dict[int, list[list[int]]]:
        """Looks at every piece of the vocabulary, hence the cache around it."""
        tokenizer = self._model.tokenizer
        pieces = [tokenizer.piece(token, special=True) for token in range(tokenizer.n_vocab)]
        return find_breakers(texts, pieces, lambda text: tokenizer.encode(text, add_special=False, parse_special=False))
