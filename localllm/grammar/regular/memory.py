"""A cache that is bounded by what its values cost, and remembers failures too; what they are it does not know."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, cast

from localllm.grammar.errors import ConstraintError

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """Values by key. Beyond a capacity those used longest ago are forgotten; one that alone exceeds it is not kept."""

    def __init__(self, capacity: int, cost: Callable[[Value], int]) -> None:
        self._capacity = capacity
        self._cost = cost
        self._items: OrderedDict[Hashable, tuple[Value | ConstraintError, int]] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made where it is not known.

        Raises: ConstraintError as `make` did.
        """
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return _told(self._items[key][0])
        value: Value | ConstraintError
        try:
            value = make()
        except ConstraintError as error:
            value = error
        cost = 1 if isinstance(value, ConstraintError) else 1 + self._cost(value)
        with self._lock:
            if key not in self._items and cost <= self._capacity:
                self._items[key] = (value, cost)
                self._used += cost
                while self._used > self._capacity:
                    self._used -= self._items.popitem(last=False)[1][1]
        return _told(value)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()
            self._used = 0


def _told(value: Value | ConstraintError) -> Value:
    if isinstance(value, ConstraintError):
        raise value.with_traceback(None)
    return cast(Value, value)
