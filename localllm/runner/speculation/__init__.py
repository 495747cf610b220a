"""Speculative decoding: guesses of the tokens to come, evaluated together; what comes is the same without them."""

from localllm.runner.speculation.draft_model import DraftEngine, DraftModel
from localllm.runner.speculation.speculation import Speculation

__all__ = ["DraftEngine", "DraftModel", "Speculation"]
