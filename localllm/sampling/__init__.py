"""From logits to a token id: llama.cpp's sampler chain; it knows nothing of text, models or batches."""

from localllm.sampling.chain import Sampler
from localllm.sampling.dry import Breakers, find_breakers
from localllm.sampling.logprobs import logprobs
from localllm.sampling.params import SamplerParams
from localllm.sampling.stop import StopMatcher

__all__ = ["Breakers", "Sampler", "SamplerParams", "StopMatcher", "find_breakers", "logprobs"]
