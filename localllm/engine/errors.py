"""What the engine raises when it has no room; it does not know what should give way."""

from __future__ import annotations

from localllm.errors import LocalLLMError


class KVCacheFullError(LocalLLMError):
    """A step needs more pages of the KV cache than are free. Nothing was run, and no sequence changed."""

    def __init__(self, n_needed: int, n_free: int) -> None:
        super().__init__(f"the KV cache is full: {n_needed} pages needed, {n_free} free")
        self.n_needed = n_needed
        self.n_free = n_free


class NoPlaceError(LocalLLMError):
    """As many adapters are loaded as there can be."""

    def __init__(self, n_places: int) -> None:
        super().__init__(f"all {n_places} places for adapters are in use")
        self.n_places = n_places


class NoSlotError(LocalLLMError):
    """As many sequences are open as the engine was loaded for."""

    def __init__(self, n_slots: int) -> None:
        super().__init__(f"all {n_slots} sequence slots are in use")
        self.n_slots = n_slots
