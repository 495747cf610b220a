"""A runner without a model: real tokenizers of tiny files, and an engine whose logits are scripted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from localllm import options as model_options
from localllm.engine.errors import KVCacheFullError, NoSlotError
from localllm.engine.prefix_tree import common_length
from localllm.gguf import open_gguf
from localllm.messages import Chunk, Done, Error, GenerateRequest, Message, Ready
from localllm.runner.batch import Batch
from localllm.runner.model import Model
from localllm.runner.service import Preparation
from localllm.runner.templates import Templates
from localllm.tokenizer import Tokenizer, load_tokenizer

STEP_S, ROW_S = 0.004, 0.0005

LogitsOf = Callable[[Sequence[int]], np.ndarray]
OPTIONS = {"temperature": 0, "draft_num_predict": 0}


class FakeSequence:
    """Tokens that count as evaluated."""

    def __init__(self, engine: FakeEngine, known: Sequence[int], key: Hashable) -> None:
        self.engine = engine
        self.key = key
        self._tokens = list(known)
        self.is_open = True
        self.chunk: list[int] = []
        self.n_stages_done = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def n_chunk(self) -> int:
        return len(self.chunk)

    def n_pages_missing(self, n_new: int) -> int:
        return max(0, n_new - self.n_chunk)

    def truncate(self, n: int) -> None:
        assert self.is_open and 0 <= n <= len(self)
        del self._tokens[n:]
        self.chunk, self.n_stages_done = [], 0

    def close(self) -> None:
        self.is_open = False
        self.chunk, self.n_stages_done = [], 0
        self.engine.open_sequences.remove(self)
        self.engine.closed_sequences.append(self)


class FakeEngine:
    """`logits_of(tokens)` are the logits after `tokens`. `steps` records (slot, tokens, wanted) of each entry, once its
    tokens are through.

    A page of its cache is one token. `now_s` is its clock: a step takes STEP_S, and ROW_S for each row, or the share of
    that which belongs to the stages that it goes through.
    """

    n_stages = 1

    def __init__(
        self, n_vocab: int, logits_of: LogitsOf, n_ctx: int, n_batch: int, n_slots: int, n_tokens: int
    ) -> None:
        self.n_vocab, self.n_ctx, self.n_batch = n_vocab, n_ctx, n_batch
        self.n_slots, self.n_tokens = n_slots, n_tokens
        self.logits_of = logits_of
        self.open_sequences: list[FakeSequence] = []
        self.closed_sequences: list[FakeSequence] = []
        self.steps: list[list[tuple[FakeSequence, list[int], str]]] = []
        self.before_step: Callable[[Sequence[Any]], None] = lambda entries: None
        self.now_s = 100.0
        self.n_pages_evicted = self.n_pages_written = self.n_tokens_restored = 0
        self.prefetched: list[tuple[list[int], Hashable]] = []

    @property
    def n_pages(self) -> int:
        return self.n_tokens

    @property
    def n_pages_free(self) -> int:
        return self.n_tokens - self._n_held

    @property
    def _n_held(self) -> int:
        return sum(len(seq) + seq.n_chunk for seq in self.open_sequences)

    @property
    def n_pages_idle(self) -> int:
        return min(self.n_pages_free, sum(map(len, self.closed_sequences)))

    def clock(self) -> float:
        return self.now_s

    def prefetch(self, tokens: Sequence[int], key: Hashable = ()) -> object:
        self.prefetched.append((list(tokens), key))
        return self.prefetched[-1]

    def save_prefixes(self, timeout_s: float) -> None:
        """There is no disk."""

    def n_known(self, tokens: Sequence[int], key: Hashable = ()) -> int:
        others = [seq.tokens for seq in (*self.open_sequences, *self.closed_sequences) if seq.key == key]
        n_known = max((common_length(other, tokens) for other in others), default=0)
        return min(n_known, max(len(tokens) - 1, 0))

    def open_sequence(self, tokens: Sequence[int] = (), key: Hashable = ()) -> FakeSequence:
        if len(self.open_sequences) >= self.n_slots:
            raise NoSlotError(self.n_slots)
        known = tokens[: self.n_known(tokens, key)]
        self.open_sequences.append(FakeSequence(self, known, key))
        return self.open_sequences[-1]

    def step(self, entries: Sequence[Any]) -> list[np.ndarray | None]:
        rows = sum(len(entry.tokens) for entry in entries)
        assert 1 <= rows <= self.n_batch
        assert all(entry.seq.is_open and len(entry.tokens) for entry in entries)
        assert len({id(entry.seq) for entry in entries}) == len(entries)
        assert all(len(entry.seq) + len(entry.tokens) <= self.n_ctx for entry in entries)
        held = self._n_held
        n_new = sum(len(entry.tokens) - entry.seq.n_chunk for entry in entries)
        while self.closed_sequences and held + n_new + sum(map(len, self.closed_sequences)) > self.n_tokens:
            self.closed_sequences.pop(0)
        if held + n_new > self.n_tokens:
            raise KVCacheFullError(n_new, self.n_tokens - held)
        self.before_step(entries)
        self.now_s += STEP_S + ROW_S * sum(self._go(entry, is_last=entry is entries[-1]) for entry in entries)
        through = [entry for entry in entries if not entry.seq.n_chunk]
        self.steps.append([(entry.seq, list(entry.tokens), entry.logits) for entry in through])
        results: list[np.ndarray | None] = []
        for entry in entries:
            if entry.seq.n_chunk:
                results.append(None)
                continue
            entry.seq._tokens.extend(entry.tokens)
            n = {"last": 1, "none": 0}.get(entry.logits, entry.logits)
            ends = range(len(entry.seq) - n + 1, len(entry.seq) + 1)
            results.append(np.stack([self.logits_of(entry.seq._tokens[:end]) for end in ends]) if n else None)
        return results

    def _go(self, entry: Any, is_last: bool) -> float:
        """Take an entry's tokens through their next stages; gives rows, each counted as the share that these are."""
        seq, n_left = entry.seq, self.n_stages - entry.seq.n_stages_done
        n_stages = n_left if entry.n_stages is None else entry.n_stages
        assert 1 <= n_stages <= n_left and (is_last or n_stages == self.n_stages)
        assert not seq.chunk or seq.chunk == list(entry.tokens)
        is_through = n_stages == n_left
        seq.n_stages_done = 0 if is_through else seq.n_stages_done + n_stages
        seq.chunk = [] if is_through else list(entry.tokens)
        return len(entry.tokens) * n_stages / self.n_stages

    @property
    def n_evaluated(self) -> int:
        return sum(len(tokens) for step in self.steps for _, tokens, _ in step)


class Runner:
    """Preparation and batch in one thread; `sent` are the messages to the daemon."""

    def __init__(self, tokenizer: Tokenizer, templates: Templates, engine: FakeEngine, n_parallel: int) -> None:
        self.tokenizer, self.engine = tokenizer, engine
        self.sent: list[Message] = []
        self.model = Model("m", engine, tokenizer, templates, n_parallel, Ready(engine.n_ctx))
        self.preparation = Preparation(self.model, self.sent.append)
        self.batch = Batch(engine, n_parallel, self.sent.append, clock=engine.clock)
        self.n_requests = 0

    def submit(self, prompt: str = "<|assistant|>", **fields: Any) -> str:
        """A raw prompt unless told otherwise; options as in the API, with OPTIONS unless told otherwise."""
        self.n_requests += 1
        fields = {"id": str(self.n_requests), "kind": "generate", "raw": fields.get("kind") != "chat"} | fields
        fields["options"] = model_options.resolve({}, OPTIONS | fields.get("options", {}))
        generation = self.preparation.handle(GenerateRequest(prompt=prompt, **fields))
        if generation is not None:
            self.batch.submit(generation)
        return str(fields["id"])

    def run(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not (self.batch._active or self.batch._waiting):
                return
            self.batch.step()
        raise AssertionError("no end")

    def generate(self, prompt: str = "<|assistant|>", **fields: Any) -> Result:
        request_id = self.submit(prompt, **fields)
        self.run()
        return self.result(request_id)

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> Result:
        return self.generate("", kind="chat", messages=messages, **fields)

    def result(self, request_id: str) -> Result:
        return Result([m for m in self.sent if getattr(m, "id", None) == request_id])


class Result:
    """The messages of one request."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.chunks = [m for m in messages if isinstance(m, Chunk)]
        self.pieces = [chunk.text for chunk in self.chunks]
        self.text = "".join(self.pieces)
        self.thinking = "".join(chunk.thinking for chunk in self.chunks)
        self.functions = [call["function"] for chunk in self.chunks for call in chunk.tool_calls]
        self.logprobs = [entry for chunk in self.chunks for entry in chunk.logprobs]

    @property
    def done(self) -> Done:
        done = self.messages[-1]
        assert isinstance(done, Done), done
        return done

    @property
    def error(self) -> Error:
        error = self.messages[-1]
        assert isinstance(error, Error), error
        return error


def successor_logits(tokenizer: Tokenizer, pieces: Sequence[str | bytes], loop: bool) -> LogitsOf:
    """After <|assistant|> the pieces, then EOS or from the start again: one successor for each token, logit 20."""
    ids = {tokenizer.piece(token, special=True): token for token in reversed(range(tokenizer.n_vocab))}
    chain = [ids[piece if isinstance(piece, bytes) else piece.encode()] for piece in ("<|assistant|>", *pieces)]
    following = dict(zip(chain, [*chain[1:], chain[1] if loop else ids[b"<|eos|>"]], strict=True))

    def logits_of(tokens: Sequence[int]) -> np.ndarray:
        logits = np.zeros(tokenizer.n_vocab, np.float32)
        logits[following.get(tokens[-1], ids[b"<|eos|>"])] = 20
        return logits

    return logits_of


@pytest.fixture(params=[1, 6])
def n_stages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The stages of a FakeEngine's model."""
    monkeypatch.setattr(FakeEngine, "n_stages", request.param)
    return int(request.param)


@pytest.fixture
def script_runner(tmp_path: Path, tiny_models: ModuleType) -> Callable[..., Runner]:
    """`script_runner(pieces, loop=…, n_ctx=…, …)`: a runner whose greedy text is the pieces."""

    def make(
        pieces: Sequence[str | bytes] = ("ab", "cd", "ef"),
        *,
        loop: bool = False,
        n_ctx: int = 4096,
        n_batch: int = 64,
        n_parallel: int = 1,
        n_slots: int | None = None,
        n_tokens: int | None = None,
        logits_of: LogitsOf | None = None,
        template: str | None = None,
        go: str | None = None,
        add_bos: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> Runner:
        path = tmp_path / "script.gguf"
        own = [piece for piece in pieces if piece not in tiny_models.SPECIALS]
        tiny_models.script_model(path, own, loop=loop, add_bos=add_bos)
        with open_gguf(path) as gguf:
            tokenizer = load_tokenizer(gguf)
            values = dict(gguf.metadata) | (metadata or {})
        if template is not None:
            values["tokenizer.chat_template"] = template
        templates = Templates(values, go, "<|bos|>", "<|eos|>")
        engine = FakeEngine(
            tokenizer.n_vocab,
            logits_of or successor_logits(tokenizer, pieces, loop),
            n_ctx,
            n_batch,
            n_parallel + 2 if n_slots is None else n_slots,
            n_parallel * n_ctx if n_tokens is None else n_tokens,
        )
        return Runner(tokenizer, templates, engine, n_parallel)

    return make
