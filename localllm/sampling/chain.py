"""The chain of samplers in llama.cpp's order; it knows nothing of text, batches or other requests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from localllm.sampling.candidates import Candidates, Floats, check_logits
from localllm.sampling.dist import Dist
from localllm.sampling.dry import Breakers, Dry
from localllm.sampling.logit_bias import LogitBias
from localllm.sampling.min_p import MinP
from localllm.sampling.mirostat import Mirostat, MirostatV1
from localllm.sampling.params import SamplerParams
from localllm.sampling.penalties import Penalties
from localllm.sampling.temperature import Temperature
from localllm.sampling.top_k import TopK
from localllm.sampling.top_n_sigma import TopNSigma
from localllm.sampling.top_p import TopP
from localllm.sampling.typical_p import TypicalP
from localllm.sampling.xtc import Xtc

Adjustment = LogitBias | Penalties | Dry
Filter = TopNSigma | TopK | TypicalP | TopP | MinP | Xtc


class Sampler:
    """One request's sampler: its history, its random stream and nothing shared.

    Order: logit bias, penalties, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature, draw.
    With mirostat: logit bias, temperature, mirostat. With temperature <= 0 the best remaining token is taken.
    """

    def __init__(
        self, params: SamplerParams, n_vocab: int, eog_ids: Iterable[int] = (), breakers: Breakers | None = None
    ) -> None:
        """`eog_ids` are banned by `ignore_eos`; `breakers` come from `find_breakers`."""
        p = params
        self.n_vocab = n_vocab
        self._bias = LogitBias(p.logit_bias, eog_ids if p.ignore_eos else (), n_vocab)
        self._penalties = Penalties(p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
        self._dry = Dry(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, breakers)
        dense: list[Adjustment] = [self._bias] if p.mirostat else [self._bias, self._penalties, self._dry]
        self._dense = [sampler for sampler in dense if sampler.is_active]
        self._filters = [] if p.mirostat else [f for f in _filters(p) if f.is_active]
        self._temperature = (
            Temperature(p.temperature)
            if p.mirostat
            else Temperature(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
        )
        self._last = _last(p, n_vocab)
        # Only these two can remove the best token; without them greedy needs no filter at all.
        may_drop_best = any(isinstance(f, TypicalP | Xtc) for f in self._filters)
        self._is_argmax = self._temperature.is_greedy and not may_drop_best

    def accept(self, token: int) -> None:
        """Add a token, sampled or not, to the history."""
        self._penalties.accept(token)
        self._dry.accept(token)

    def accept_prompt(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.accept(token)

    def pass_over(self, token: int) -> None:
        """Accept a token that there was no choice of: generators move on as if it had been sampled."""
        for f in self._filters:
            if isinstance(f, Xtc):
                f.skip()
        if not self._is_argmax:
            self._last.skip()
        self.accept(token)

    def sample(self, logits: Floats) -> int:
        """Choose a token id from float32[n_vocab], which is left unchanged. Does not `accept` it.

        Raises:
            SamplingError: the logits hold a NaN or +inf, or nothing but -inf.
        """
        if self._dense:
            logits = logits.astype(np.float32)
            for sampler in self._dense:
                sampler.apply(logits)
        check_logits(logits)
        if self._is_argmax:
            return int(logits.argmax())
        candidates = Candidates(logits)
        for f in self._filters:
            f.apply(candidates)
        self._temperature.apply(candidates)
        return self._last.select(candidates)


def _filters(p: SamplerParams) -> list[Filter]:
    return [
        TopNSigma(p.top_n_sigma),
        TopK(p.top_k, p.min_keep),
        TypicalP(p.typical_p, p.min_keep),
        TopP(p.top_p, p.min_keep),
        MinP(p.min_p, p.min_keep),
        Xtc(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed),
    ]


def _last(p: SamplerParams, n_vocab: int) -> Dist | Mirostat:
    if p.mirostat == 1:
        return MirostatV1(p.mirostat_tau, p.mirostat_eta, p.seed, n_vocab)
    if p.mirostat:
        return Mirostat(p.mirostat_tau, p.mirostat_eta, p.seed)
    return Dist(p.seed)
