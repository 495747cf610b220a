"""What the engine raises when it has no room; it does not know what should give way."""

from __future__ import annotations

from localllm.errors import LocalLLMError


class KVCacheFullError(LocalLLMError):
    """A step needs more pages of the KV cache than are free. Nothing was run, and no sequence changed."""

    def __init__(self, n_needed: int, n_free: int) -> None:
        super().__init__(f"the KV cache is full: {n_needed} pages needed, {n_free} free")
        self.n_needed = n_needed
        self.n_free = n_free


class NoSlotError(LocalLLMError):
    """As many sequences are open as the engine was loaded for."""

    def __init__(self, n_slots: int) -> None:
        super().__init__(f"all {n_slots} sequence slots are in use")
        self.n_slots = n_slots
