"""Which layers of a model see a sliding window of positions; it does not know what the others see."""

from __future__ import annotations

from localllm.models.keys import Keys


def read_windows(keys: Keys, n_layer: int, window: int, period: int) -> tuple[int, ...]:
    """The window of each layer, 0 for layers that see everything.

    `attention.sliding_window_pattern` is an array of flags (1: windowed) or a period, which replaces `period`: the last
    of so many layers sees everything.

    Raises:
        GGUFError: the pattern does not have one flag for each layer.
    """
    flags = keys.flags("attention.sliding_window_pattern", n_layer)
    if flags is not None:
        return tuple(window if flag else 0 for flag in flags)
    period = keys.integer("attention.sliding_window_pattern", period, low=1)
    return tuple(window if layer % period < period - 1 else 0 for layer in range(n_layer))
