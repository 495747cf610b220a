"""Reads an architecture's hyperparameters from GGUF metadata, within bounds; it does not know what they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localllm.errors import GGUFError

if TYPE_CHECKING:
    from localllm.gguf import GGUFFile

MAX_INTEGER = 2**31 - 1
MAX_NUMBER = 1e9
"""Bounds of what a hyperparameter can sensibly be, where it has no narrower ones."""


class Keys:
    """The metadata under `<arch>.`; getters take the key without this prefix.

    All raise GGUFError where a value has another type or lies outside its range, or is missing and has no default.
    """

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self._file = file
        self.arch = arch

    def __contains__(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self._file.metadata

    def integer(self, key: str, default: int | None = None, *, low: int = 0, high: int = MAX_INTEGER) -> int:
        """An integer in low..high."""
        return self._in_range(key, self._get(key, int, default), low, high)

    def number(
        self, key: str, default: float | None = None, *, low: float = -MAX_NUMBER, high: float = MAX_NUMBER
    ) -> float:
        """A number in low..high."""
        value: float = self._get(key, float, default)
        if not low <= value <= high:
            raise self.error(key, f"a number in {low:g}..{high:g}", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value: bool = self._get(key, bool, default)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value: str = self._get(key, str, default)
        return value

    def integer_per_layer(
        self, key: str, n_layer: int, default: tuple[int, ...] | None = None, *, low: int = 0
    ) -> tuple[int, ...]:
        """One integer >= low for each layer: an array of `n_layer`, or one number for all."""
        if default is not None and key not in self:
            return default
        values = self._file.get_per_layer(f"{self.arch}.{key}", int, n_layer)
        return tuple(self._in_range(key, value, low, MAX_INTEGER) for value in values)

    def flags(self, key: str, n_layer: int) -> tuple[bool, ...] | None:
        """One flag for each layer, if the key holds an array (of numbers or booleans); else None."""
        array = self._file.metadata.raw(f"{self.arch}.{key}")
        if array is None:
            return None
        if array.length != n_layer:
            raise self.error(key, f"{n_layer} values, one for each layer", array.length)
        return tuple(bool(value) for value in array.tolist())

    def error(self, key: str, expected: str, got: object) -> GGUFError:
        """The error of a key whose value does not do."""
        return GGUFError(f"metadata key `{self.arch}.{key}`: expected {expected}, got {got}")

    def _get(self, key: str, kind: Any, default: Any) -> Any:
        full = f"{self.arch}.{key}"
        return self._file.get(full, kind) if default is None else self._file.get(full, kind, default)

    def _in_range(self, key: str, value: int, low: int, high: int) -> int:
        if not low <= value <= high:
            raise self.error(key, f"an integer in {low}..{high}", value)
        return value
