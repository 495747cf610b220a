"""One step of a model: ids of many sequences in, logits out; it knows nothing of text, requests or sampling."""

from localllm.engine.engine import BACKENDS, Engine
from localllm.engine.errors import KVCacheFullError, NoPlaceError, NoSlotError
from localllm.engine.sequence import Entry, Sequence

__all__ = ["BACKENDS", "Engine", "Entry", "KVCacheFullError", "NoPlaceError", "NoSlotError", "Sequence"]
