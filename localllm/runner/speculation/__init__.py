"""Speculative decoding: guesses of the tokens to come, evaluated together; what comes is the same without them."""

from localllm.runner.speculation.speculation import Speculation

__all__ = ["Speculation"]
