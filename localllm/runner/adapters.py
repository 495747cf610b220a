"""The LoRA adapters that requests use: loaded when the first asks for one, kept while used, the oldest dropped later.

It knows neither what an adapter does nor what a request says.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels_cpu.adapters import MAX_PER_ROW, PLACES
from localllm.errors import RequestError

MAX_BYTES = 2 << 30
"""Adapters that nobody uses go while all take more than this."""

AdapterKey = tuple[tuple[str, float], ...]
"""Digests and scales, in a fixed order: what keys and values of a sequence were computed with."""

logger = logging.getLogger(__name__)


@dataclass
class AdapterSet:
    """Adapters of one request: `entries` are for the engine. `release` is to be called when the request has ended."""

    key: AdapterKey = ()
    entries: tuple[tuple[int, float], ...] = ()
    release: Any = field(default=lambda: None, compare=False)


@dataclass
class _Loaded:
    place: int
    n_bytes: int
    n_users: int = 0


class Adapters:
    """The adapters of one engine. `acquire` is called by one thread at a time, `AdapterSet.release` by any.

    `own` are those of the model, in force for requests that ask for none in particular.
    """

    def __init__(self, engine: Any, own: Sequence[dict[str, Any]] = (), max_bytes: int = MAX_BYTES) -> None:
        self._engine = engine
        self._own = own
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._loaded: dict[str, _Loaded] = {}  # the one used longest ago first

    @property
    def n_bytes(self) -> int:
        """Memory of those that are loaded."""
        with self._lock:
            return sum(one.n_bytes for one in self._loaded.values())

    @property
    def digests(self) -> list[str]:
        """Those that are loaded, the one used longest ago first."""
        with self._lock:
            return list(self._loaded)

    def acquire(self, wanted: Sequence[dict[str, Any]] | None) -> AdapterSet:
        """What a request asks for, loaded: adapters as ModelSpec has them, None for the model's own.

        Raises:
            AdapterError: one cannot be used with this model.
            RequestError: a scale that is no number, or too many adapters.
        """
        given = self._own if wanted is None else wanted
        if not given:
            return AdapterSet()
        key, paths = _key(given), {str(one["digest"]): Path(one["path"]) for one in given}
        if len(key) > MAX_PER_ROW:
            raise RequestError(f"at most {MAX_PER_ROW} adapters can be used at once, not {len(key)}")
        used: list[str] = []
        try:
            places = []
            for digest, _ in key:
                places.append(self._use(digest, paths[digest]))
                used.append(digest)
        except BaseException:
            self._leave(used)
            raise
        entries = tuple((place, scale) for place, (_, scale) in zip(places, key, strict=True))
        return AdapterSet(key, entries, _once(lambda: self._leave(used)))

    def _use(self, digest: str, path: Path) -> int:
        """The place of an adapter, which has one more user."""
        with self._lock:
            one = self._loaded.pop(digest, None)
            if one is not None:
                one.n_users += 1
                self._loaded[digest] = one
                return one.place
        self._make_room(PLACES - 1, self._max_bytes)
        place, n_bytes = self._engine.load_adapter(path)
        logger.info("adapter %.12s is loaded, %d bytes", digest, n_bytes)
        with self._lock:
            self._loaded[digest] = _Loaded(place, n_bytes, 1)
        self._make_room(PLACES, self._max_bytes)
        return int(place)

    def _make_room(self, most: int, max_bytes: int) -> None:
        """Drop adapters that nobody uses while there are more than `most`, or they take more than max_bytes."""
        with self._lock:
            for digest in [d for d, one in self._loaded.items() if one.n_users == 0]:
                n_bytes = sum(one.n_bytes for one in self._loaded.values())
                if len(self._loaded) <= most and n_bytes <= max_bytes:
                    return
                self._engine.drop_adapter(self._loaded.pop(digest).place)
                logger.info("adapter %.12s is dropped", digest)

    def _leave(self, digests: Iterable[str]) -> None:
        with self._lock:
            for digest in digests:
                self._loaded[digest].n_users -= 1


def _key(given: Sequence[dict[str, Any]]) -> AdapterKey:
    """Digests in order, each with the sum of its scales; what comes to 0 is left out.

    Raises: RequestError.
    """
    scales: dict[str, float] = {}
    for one in given:
        scale = one.get("scale", 1.0)
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) < math.inf:
            raise RequestError(f"the scale of an adapter must be a number, not {scale!r}")
        digest = str(one["digest"])
        scales[digest] = scales.get(digest, 0.0) + float(scale)
    return tuple((digest, scale) for digest, scale in sorted(scales.items()) if scale != 0.0)


def _once(action: Any) -> Any:
    """The action, which a second call does not repeat."""
    left = [action]

    def call() -> None:
        with contextlib.suppress(IndexError):
            left.pop()()

    return call
