"""One request on its way through the model: what to evaluate next, and what its logits lead to; it knows no others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from localllm.chat import Thinking
from localllm.engine import Entry
from localllm.engine.prefix_tree import common_length
from localllm.engine.sequence import Logits
from localllm.errors import SamplingError
from localllm.grammar.errors import ConstraintError
from localllm.messages import Done, GenerateRequest, Message, Prefill, Stats
from localllm.runner.adapters import AdapterSet
from localllm.runner.answer import Answer, LogprobEntry, Shown
from localllm.runner.chunks import Chunks
from localllm.runner.constrained import Constrained
from localllm.runner.constraints import Compiled
from localllm.runner.fitting import n_kept
from localllm.runner.prompt import Prompt
from localllm.runner.sequences import SequenceLike
from localllm.sampling import Sampler, logprobs
from localllm.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no -inf

# Generation is bounded by this many times the context, whatever num_predict says.
MAX_CONTEXTS = 10
# Of the tokens that a lazy grammar could begin with, so many may be sampled in vain.
MAX_REFUSED = 256
# Tokens that one step may take from an answer: the one sampled last, and those that a constraint forces after it.
MAX_DECODED = 32


class Generation:
    """`pending` are the tokens still to be evaluated: the rest of the prompt, later the token sampled last, and those
    that its constraint, `compiled`, leaves no choice of. Without `jumps`, and where log-probabilities are wanted, the
    same tokens are evaluated one by one. The last `n_draft` of them are guesses of what follows (`guess`): those that
    would have come anyway are taken, with the logits of a single step, and the sequence forgets the others. `n_drafts`
    such drafts were evaluated, of `n_drafted` tokens, `n_accepted` of which came.

    `n_forced` counts the tokens that there was no choice of, `n_shifts` how often the context was full.
    `seq` is None until the request is admitted to the batch. `is_done` once its last message has been sent. Whoever
    takes it out of the way releases its `adapters`.
    """

    def __init__(
        self,
        request: GenerateRequest,
        prompt: Prompt,
        sampler: Sampler,
        tokenizer: Tokenizer,
        n_ctx: int,
        send: Callable[[Message], None],
        adapters: AdapterSet | None = None,
        compiled: Compiled | None = None,
        jumps: bool = True,
    ) -> None:
        self.adapters = adapters or AdapterSet()
        self.id = request.id
        self.is_interactive = request.is_interactive
        self.prompt = prompt
        self.seq: SequenceLike | None = None
        self.pending: list[int] = list(prompt.tokens)
        self.is_done = False
        self.n_forced = self.n_shifts = self.n_draft = 0
        self.n_drafts = self.n_drafted = self.n_accepted = 0
        self.prefetched: object = None  # what was read for its prompt waits for as long as this is held
        self._request = request
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._n_ctx = n_ctx
        self._send = send
        self._chunks = Chunks(request.id)
        stops = (*(request.options.get("stop") or ()), *prompt.stops)
        is_single_call = not request.parallel_tool_calls
        self._answer = Answer(tokenizer, stops, prompt.reader, prompt.visible, is_single_call)
        self._limit = n_predicted_at_most(request.options.get("num_predict", -1), n_ctx)
        self._generated: list[int] = []
        self._n_cached = self._n_shifted = 0
        self._n_told = -1
        self._n_decided = self._n_thinking = 0
        self._n_unsure = 0  # tokens of the sequence that were guessed and have not come
        self._started_ns = self._prompt_done_ns = 0
        self._compiled = compiled
        self._constrained: Constrained | None = None
        self._forced: deque[int] = deque()
        self._jumps = jumps and not self._wants_logprobs
        self._sampler.accept_prompt(prompt.tokens)

    @property
    def is_decoding(self) -> bool:
        """What is waiting are tokens of the answer, no more than belong into one step."""
        return bool(self._generated) and 1 <= len(self.pending) <= MAX_DECODED

    @property
    def n_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self._generated)

    @property
    def generated(self) -> Sequence[int]:
        """The answer's tokens so far, the pending ones among them, but not those that are guessed."""
        return self._generated

    @property
    def n_left(self) -> int:
        """How many more tokens its answer may have."""
        return self._limit - len(self._generated)

    @property
    def n_draft_at_most(self) -> int:
        """How many tokens may be guessed now: no more than the request permits and the next step could lead to."""
        assert self.seq is not None
        permitted = self._request.options.get("draft_num_predict", -1)
        n_rows = MAX_DECODED - len(self.pending)
        n_room = self._n_ctx - len(self.seq) - len(self.pending)
        return max(0, min(n_rows, self.n_left - 1, n_room, n_rows if permitted < 0 else permitted))

    @property
    def has_started(self) -> bool:
        """Whether it has been admitted to the batch, though it may be paused."""
        return self._started_ns > 0

    @property
    def is_constrained(self) -> bool:
        return self._compiled is not None

    @property
    def n_ready(self) -> int:
        """How many pending tokens the context has room for."""
        assert self.seq is not None
        return min(len(self.pending), self._n_ctx - len(self.seq))

    def start(self, seq: SequenceLike) -> None:
        """Admit it to the batch, for the first time or again, with a sequence that holds the beginning of `pending`."""
        self.seq, self.prefetched = seq, None
        del self.pending[: len(seq)]
        if self._compiled is not None and self._constrained is None:
            self._constrained = Constrained(self._compiled, self._tokenizer, self._sampler.n_vocab)
        if not self._started_ns:
            self._n_cached = len(seq)
            self._started_ns = time.perf_counter_ns()
            self._tell_prefill(len(seq))

    def pause(self) -> SequenceLike:
        """Leave the batch until the next `start`: all that was evaluated is pending again, for any sequence.

        What follows is the same, bit for bit, whether the sequence given back is still there by then or not.
        """
        assert self.seq is not None
        self.drop_guesses()
        seq, self.seq = self.seq, None
        self.pending = [*seq.tokens, *self.pending]
        return seq

    def make_room(self) -> None:
        """Before a step: where the context is full, drop half of what is not kept and evaluate the rest again.

        Without `shift` the request ends here.
        """
        assert self.seq is not None
        if len(self.seq) < self._n_ctx or self.is_done:
            return
        if not self._request.shift:
            self._finish("length")
            return
        tokens = list(self.seq.tokens)
        n_prompt = len(self.prompt.tokens)
        n_keep = n_kept(self._request.options.get("num_keep", 0), tokens, n_prompt, self._tokenizer.bos_id, self._n_ctx)
        n_drop = max(1, (len(tokens) - n_keep) // 2)
        self.seq.truncate(n_keep)
        self.pending = tokens[n_keep + n_drop :] + self.pending
        self._n_shifted += n_drop
        self.n_shifts += 1

    def guess(self, tokens: Sequence[int]) -> None:
        """Before a step, while decoding: guess what follows, at most `n_draft_at_most` tokens."""
        self.drop_guesses()
        self.pending.extend(tokens)
        self.n_draft = len(tokens)

    def drop_guesses(self) -> None:
        """Evaluate no guesses in the next step."""
        del self.pending[len(self.pending) - self.n_draft :]
        self.n_draft = 0

    def entry(self, n: int, n_stages: int | None = None) -> Entry:
        """Its part in the next step: the first n pending tokens, with the logits that it wants of them; with `n_stages`
        they go through so many further stages of the model."""
        n_draft = max(0, n - self._n_certain)
        is_wanted = n >= self._n_certain and self._limit > 0
        logits: Logits = "none" if not is_wanted else n_draft + 1 if n_draft else "last"
        return Entry(self.seq, self.pending[:n], logits, self.adapters.entries, n_draft, n_stages)  # type: ignore[arg-type]

    @property
    def _n_certain(self) -> int:
        """How many of the pending tokens are no guesses."""
        return len(self.pending) - self.n_draft

    def advance(self, n_evaluated: int, logits: npt.NDArray[np.float32] | None) -> None:
        """After a step with its `entry`; `logits` are the rows, float32 [k, n_vocab], that this wanted.

        Raises:
            SamplingError: no token can be sampled.
        """
        guesses = self.pending[self._n_certain : n_evaluated]
        self.drop_guesses()
        del self.pending[:n_evaluated]
        if self._request.progress and not self._prompt_done_ns:
            self._tell_prefill(len(self.prompt.tokens) - len(self.pending))
        if self.pending:
            return
        if not self._prompt_done_ns:
            self._prompt_done_ns = time.perf_counter_ns()
        if logits is None:
            self._finish("length")
        elif not guesses:
            self._take(logits[-1])
        else:
            self._take_as_guessed(guesses, logits)

    def _take_as_guessed(self, guesses: list[int], logits: npt.NDArray[np.float32]) -> None:
        """Take tokens one after the other for as long as they are those guessed: row i is what follows the first i
        guesses. Nothing that is taken depends on the guesses after it."""
        assert self.seq is not None
        n_right, self._n_unsure = 0, len(guesses)
        self.n_drafts += 1
        self.n_drafted += len(guesses)
        try:
            while not self.pending and not self.is_done:
                self._take(logits[n_right])
                if not self.is_done:  # else its last token is not evaluated, guessed or not
                    n = common_length(self.pending, guesses[n_right:])
                    del self.pending[:n]
                    n_right, self._n_unsure = n_right + n, self._n_unsure - n
                    self.n_accepted += n
        finally:
            self.seq.truncate(len(self.seq) - self._n_unsure)
            self._n_unsure = 0

    def _tell_prefill(self, n_processed: int) -> None:
        """Say how much of the prompt has been evaluated; what is evaluated again after a pause is not told twice."""
        if n_processed > self._n_told:
            self._n_told = n_processed
            elapsed_ns = time.perf_counter_ns() - self._started_ns
            n_tokens, truncated = len(self.prompt.tokens), self._truncated()
            self._send(Prefill(self.id, n_tokens, self._n_cached, n_processed, elapsed_ns, truncated))

    def _take(self, logits: npt.NDArray[np.float32]) -> None:
        logits = logits[: self._tokenizer.n_vocab]  # a model may have more rows than there are tokens
        if not self._forced:  # the first tokens, or more of what was too long for one step
            self._force()
        if self._forced:
            self._pass_over(self._forced.popleft(), logits)
        else:
            token = self._sampled(logits)
            self._sampler.accept(token)
            self._add(token, self._logprob_entry(logits, token))
        if self._jumps and not self._forced and not self.is_done:
            self._force()
        while self._jumps and self._forced and not self.is_done:
            self._pass_over(self._forced.popleft())

    def _force(self) -> None:
        """Find the tokens that must come next."""
        if self._constrained:
            self._forced.extend(self._constrained.forced(self._generated, self._n_forced_at_most()))

    def _pass_over(self, token: int, logits: npt.NDArray[np.float32] | None = None) -> None:
        """Take a token that there was no choice of; its logits are known where it waited for its turn."""
        self._sampler.pass_over(token)
        self.n_forced += 1
        self._add(token, None if logits is None else self._logprob_entry(logits, token))

    def _sampled(self, logits: npt.NDArray[np.float32]) -> int:
        if self._constrained is None:
            return self._sampler.sample(logits)
        masked = self._constrained.masked(logits)
        try:
            for _ in range(MAX_REFUSED):
                token = self._sampler.sample(masked)
                if not self._constrained.refuses(token):
                    return token
                masked[token] = -np.inf
            raise ConstraintError("the grammar takes nothing of what its trigger is met with")
        except SamplingError:
            if np.isfinite(masked.max()):
                raise ConstraintError("logit_bias and ignore_eos leave no token that the constraint allows") from None
            raise

    def _n_forced_at_most(self) -> int:
        assert self.seq is not None
        n_evaluated = len(self.seq) - self._n_unsure
        return min(MAX_DECODED - 1, self.n_left, self._n_ctx - n_evaluated - len(self.pending))

    def _add(self, token: int, entry: LogprobEntry | None = None) -> None:
        """Take a token of the answer and show what can be shown; it is evaluated next, unless this was the end."""
        self._generated.append(token)
        if self._constrained:
            self._constrained.accept(token)
        if token in self._tokenizer.eog_ids:
            self._finish("stop")
            return
        shown = self._answer.feed(token, entry)
        self._show(shown)
        if shown.is_stopped or (self._constrained and self._constrained.is_finished):
            self._finish("stop")
        elif len(self._generated) >= self._limit:
            self._finish("length")
        else:
            self.pending.append(token)

    @property
    def _wants_logprobs(self) -> bool:
        return self._request.logprobs or bool(self._request.options.get("n_probs"))

    def _logprob_entry(self, logits: npt.NDArray[np.float32], token: int) -> LogprobEntry | None:
        if not self._wants_logprobs:
            return None
        n_probs = self._request.options.get("n_probs") or 0
        value, top = logprobs(logits, token, max(self._request.top_logprobs, n_probs))
        alternatives = [{"token": self._text(i), **self._figures(i, v)} for i, v in top]
        return {"token": "", **self._figures(token, value), "top_logprobs": alternatives}

    def _figures(self, token: int, value: float) -> dict[str, Any]:
        return {
            "logprob": max(value, LOWEST_LOGPROB),
            "bytes": list(self._tokenizer.piece(token, special=True)),
        }

    def _text(self, token: int) -> str:
        return self._tokenizer.piece(token, special=True).decode(errors="replace")

    def _show(self, shown: Shown) -> None:
        if shown.parts:
            # Tokens whose text was held back are of the kind that it came out as.
            if isinstance(shown.parts[0], Thinking):
                self._n_thinking += len(self._generated) - self._n_decided
            self._n_decided = len(self._generated)
        for chunk in self._chunks.of(shown.parts, shown.logprobs):
            self._send(chunk)

    def _finish(self, reason: str) -> None:
        """Send what was held back (after a stop string there is nothing), and the end."""
        self._show(self._answer.flush())
        warnings = list(self._compiled.warnings) if self._compiled else []
        self._send(Done(self.id, reason, self._stats(), self._context(), self._truncated(), self._stop(), warnings))
        self.is_done = True

    def _stop(self) -> str | None:
        """The request's stop string that ended the answer; those of the template are nobody's business."""
        return None if self._answer.stop in self.prompt.stops else self._answer.stop

    def _stats(self) -> Stats:
        now = time.perf_counter_ns()
        return Stats(
            prompt_eval_count=len(self.prompt.tokens),
            prompt_eval_duration_ns=self._prompt_done_ns - self._started_ns,
            eval_count=len(self._generated),
            eval_duration_ns=now - self._prompt_done_ns,
            prompt_eval_cached_count=self._n_cached,
            thinking_count=self._n_thinking,
            draft_count=self.n_drafted,
            draft_accepted_count=self.n_accepted,
        )

    def _context(self) -> list[int] | None:
        if self._request.raw or self._request.tokens is not None or self._request.kind != "generate":
            return None
        return [*self.prompt.tokens, *self._generated]

    def _truncated(self) -> dict[str, int] | None:
        """What the model did not see: of the prompt, and by shifting the context."""
        dropped = {
            "messages": self.prompt.n_dropped_messages,
            "tokens": self.prompt.n_dropped_tokens,
            "shifted": self._n_shifted,
        }
        return dropped if any(dropped.values()) else None


def n_predicted_at_most(num_predict: int, n_ctx: int) -> int:
    """The limit on generated tokens: a negative number, or one above ten contexts, is ten contexts."""
    most = MAX_CONTEXTS * n_ctx
    return most if num_predict < 0 else min(num_predict, most)
