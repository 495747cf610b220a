"""The pages of a KV cache as bytes, those of all layers together; it knows neither what they hold nor who uses them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class KVPages:
    """`layers` are the caches, each uint8 [n_pages, bytes of a page of that layer], which steps read and write."""

    def __init__(self, layers: Sequence[Bytes]) -> None:
        self._layers = list(layers)
        self._ends = np.cumsum([0, *(layer.shape[1] for layer in self._layers)]).tolist()

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, of all layers."""
        return int(self._ends[-1])

    def copy(self, of: int, to: int) -> None:
        """Copy a page to another."""
        for layer in self._layers:
            layer[to] = layer[of]

    def read(self, page: int) -> Bytes:
        """A copy of a page, uint8 [page_bytes]: one layer after another."""
        content = np.empty(self.page_bytes, np.uint8)
        for layer, first, end in zip(self._layers, self._ends, self._ends[1:], strict=False):
            content[first:end] = layer[page]
        return content

    def write(self, page: int, content: Bytes) -> None:
        """Fill a page with what `read` gave of one."""
        for layer, first, end in zip(self._layers, self._ends, self._ends[1:], strict=False):
            layer[page] = content[first:end]
