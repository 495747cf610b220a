"""Reads the JSON and text files of a Hugging Face folder, which nobody vouches for; it does not know what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localllm.errors import ConvertError

MAX_TEXT_BYTES = 1 << 28
"""The largest tokenizer.json that is read; those of 260,000 tokens have 33 MB."""
MAX_INTEGER = 2**31 - 1
_REQUIRED: Any = object()


class Folder:
    """A folder of a model or an adapter."""

    def __init__(self, path: Path) -> None:
        """Raises ConvertError if `path` is no folder."""
        if not path.is_dir():
            raise ConvertError(f"{path}: not a folder, expected one with config.json and model*.safetensors")
        self.path = path

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def raw(self, name: str) -> bytes | None:
        """The bytes of a file, or None if there is none.

        Raises:
            ConvertError: it cannot be read, or has more than MAX_TEXT_BYTES.
        """
        path = self.path / name
        if not path.is_file():
            return None
        try:
            if path.stat().st_size > MAX_TEXT_BYTES:
                raise ConvertError(f"{path}: {path.stat().st_size} bytes, expected at most {MAX_TEXT_BYTES}")
            return path.read_bytes()
        except OSError as error:
            raise ConvertError(f"{path}: cannot be read: {error.strerror}") from error

    def text(self, name: str) -> str | None:
        """The text of a file, or None if there is none.

        Raises:
            ConvertError: as `raw`, or it is not UTF-8.
        """
        raw = self.raw(name)
        try:
            return None if raw is None else raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConvertError(f"{self.path / name}: not UTF-8: {error}") from error

    def json(self, name: str) -> Config:
        """The JSON object in a file; an empty one if there is no such file.

        Raises:
            ConvertError: as `text`, or it is no JSON object.
        """
        values = self._parsed(name, {})
        if not isinstance(values, dict):
            raise ConvertError(f"{self.path / name}: expected a JSON object, got {type(values).__name__}")
        return Config(self.path / name, values)

    def json_list(self, name: str) -> list[Config]:
        """The list of JSON objects in a file; an empty one if there is no such file.

        Raises:
            ConvertError: as `json`.
        """
        values = self._parsed(name, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise ConvertError(f"{self.path / name}: expected a list of JSON objects")
        return [Config(self.path / name, value) for value in values]

    def _parsed(self, name: str, default: Any) -> Any:
        text = self.text(name)
        try:
            return default if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConvertError(f"{self.path / name}: not JSON: {error}") from error


class Config:
    """A JSON object with typed getters, which raise ConvertError naming file, key, value and what was expected.

    Where a getter takes several names, the first that is there counts; null counts as absent.
    """

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Whatever is under a key."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, *names: str, default: int = _REQUIRED, low: int = 0, high: int = MAX_INTEGER) -> int:
        """An integer in low..high."""
        key, value = self._first(names, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if key is not None and (not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high):
            raise self.error(key, value, f"an integer in {low}..{high}")
        return int(value)

    def number(self, *names: str, default: float = _REQUIRED, low: float = -1e30, high: float = 1e30) -> float:
        """A number in low..high."""
        key, value = self._first(names, default)
        good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        if key is not None and not good:
            raise self.error(key, value, f"a number in {low:g}..{high:g}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool | None:
        """A boolean."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def string(self, *names: str, default: str = "") -> str:
        """A string."""
        key, value = self._first(names, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def objects(self, key: str) -> list[Config]:
        """A list of objects; an empty one if there is none."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(key, value, "a list of objects")
        return [Config(self.path, item) for item in value]

    def inner(self, key: str) -> Config:
        """The object under a key; an empty one if there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, value, "an object")
        return Config(self.path, value)

    def error(self, key: str | None, value: object, expected: str) -> ConvertError:
        """The error of a key whose value does not do."""
        shown = json.dumps(value, default=str)
        return ConvertError(f"{self.path}: {key!r} is {shown[:200]}, expected {expected}")

    def _first(self, names: tuple[str, ...], default: Any) -> tuple[str | None, Any]:
        for name in names:
            if name in self:
                return name, self.values[name]
        if default is _REQUIRED:
            raise ConvertError(f"{self.path}: missing {names[0]!r}")
        return None, default
