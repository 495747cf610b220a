"""Dataclasses that travel as JSON objects; it does not know which there are."""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar


class FrameError(ValueError):
    """The bytes on the pipe are not a frame of this protocol."""


_R = TypeVar("_R", bound="Record")


@dataclass(frozen=True)
class Record:
    """A dataclass that turns into a JSON object and back; unknown keys are ignored, absent ones take their default."""

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON-able dict (nested records too)."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls: type[_R], obj: dict[str, Any]) -> _R:
        """The inverse of `to_json`. Raises: FrameError where a required field is missing."""
        if not isinstance(obj, dict):
            raise FrameError(f"{cls.__name__}: not an object")
        values = {}
        for f in dataclasses.fields(cls):
            if f.name in obj:
                record = f.metadata.get("record")
                value = obj[f.name]
                values[f.name] = record.from_json(value) if record is not None and value is not None else value
        try:
            return cls(**values)
        except TypeError as error:
            raise FrameError(f"{cls.__name__}: {error}") from error


def _plain(value: Any) -> Any:
    return value.to_json() if isinstance(value, Record) else value
