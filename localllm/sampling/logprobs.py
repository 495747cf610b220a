"""Log-probabilities of the model itself, before any sampler; it knows nothing of text."""

from __future__ import annotations

import numpy as np

from localllm.sampling.candidates import Floats, check_logits, top_indices


def logprobs(logits: Floats, token: int, n_top: int = 0) -> tuple[float, list[tuple[int, float]]]:
    """Natural log-probability of `token`, and of the n_top likeliest tokens in falling order.

    `logits` is float32[n_vocab], raw and left unchanged.

    Raises:
        SamplingError: the logits hold a NaN or +inf, or nothing but -inf.
    """
    check_logits(logits)
    peak = logits.max()
    log_total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    top = top_indices(logits, n_top) if n_top > 0 else ()
    return float(logits[token]) - log_total, [(int(i), float(logits[i]) - log_total) for i in top]
