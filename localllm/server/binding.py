"""Binds a JSON object to the fields of a request as Go binds one to a struct; it knows no endpoint.

Field names match without regard to case, null is an absent value, unknown names are ignored. A value of another
type is refused in Go's words (`json: cannot unmarshal number into Go struct field X.prompt of type string`).
"""

import asyncio
import base64
import binascii
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from localllm.server import go_json

logger = logging.getLogger(__name__)

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
_MAX_LOGGED_NAMES = 1000
_LARGE_BODY_BYTES = 1_000_000
_logged_names: set[tuple[str, str]] = set()


class BindError(ValueError):
    """The body is not a request of this kind; the message is for the client. `path` is the field's, where known."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class ContentEncodingError(ValueError):
    """The body is compressed; `hint` says what to do."""

    hint = "send the body as it is, without Content-Encoding"

    def __init__(self, coding: str) -> None:
        super().__init__(f'content encoding "{coding:.80}" is not supported')


@dataclass(frozen=True)
class Place:
    """Where a value stands: the struct's name, and the path of fields below it."""

    struct: str
    path: str = ""

    def field(self, name: str) -> "Place":
        """The place of a field of the object here."""
        return Place(self.struct, f"{self.path}.{name}" if self.path else name)

    def refuse(self, value: Any, go_type: str) -> BindError:
        """The error for a value of the wrong type."""
        target = f"Go struct field {self.struct}.{self.path}" if self.path else "Go value"
        return BindError(f"json: cannot unmarshal {_kind(value)} into {target} of type {go_type}", self.path)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


class Type(ABC):
    """The type of a field. `default` is its value where the field is absent or null."""

    default: Any
    go_name: str

    @abstractmethod
    def bind(self, value: Any, place: Place) -> Any:
        """The value, checked. Never called with None. Raises: BindError."""


@dataclass(frozen=True)
class String(Type):
    """A string."""

    default: Any = ""
    go_name: str = "string"

    def bind(self, value: Any, place: Place) -> str:
        if not isinstance(value, str):
            raise place.refuse(value, self.go_name)
        return value


@dataclass(frozen=True)
class Bool(Type):
    """A boolean."""

    default: Any = False
    go_name: str = "bool"

    def bind(self, value: Any, place: Place) -> bool:
        if not isinstance(value, bool):
            raise place.refuse(value, self.go_name)
        return value


@dataclass(frozen=True)
class Int(Type):
    """An integer; a number with a fraction or an exponent is none."""

    default: Any = 0
    go_name: str = "int"

    def bind(self, value: Any, place: Place) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return value
        error = place.refuse(value, self.go_name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise BindError(str(error).replace("unmarshal number", f"unmarshal number {value}"), place.path)
        raise error


@dataclass(frozen=True)
class Image(Type):
    """Base64 in the standard alphabet, without a data-URI prefix; the text is passed on."""

    default: Any = None
    go_name: str = "[]uint8"

    def bind(self, value: Any, place: Place) -> str:
        if not isinstance(value, str):
            raise place.refuse(value, self.go_name)
        try:
            base64.b64decode(re.sub(r"[\r\n]", "", value), validate=True)
        except (binascii.Error, ValueError):
            bad = _NOT_BASE64.search(value)
            offset = bad.start() if bad else len(value) // 4 * 4
            raise BindError(f"illegal base64 data at input byte {offset}", place.path) from None
        return value


@dataclass(frozen=True)
class Map(Type):
    """An object of any content."""

    default: Any = None
    go_name: str = "map[string]interface {}"

    def bind(self, value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise place.refuse(value, self.go_name)
        return value


@dataclass(frozen=True)
class Anything(Type):
    """Any JSON value, for the endpoint to judge."""

    default: Any = None
    go_name: str = ""

    def bind(self, value: Any, place: Place) -> Any:
        return value


@dataclass(frozen=True)
class Judged(Type):
    """A value that a function reads, or refuses with a ValueError; `named` puts the field's name before its text.

    `shape` is the JSON Schema of what it takes, for the API's description.
    """

    judge: Callable[[Any], Any]
    named: bool = True
    default: Any = None
    go_name: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, value: Any, place: Place) -> Any:
        try:
            return self.judge(value)
        except ValueError as error:
            prefix = f"invalid {place.path}: " if self.named else ""
            raise BindError(f"{prefix}{error}", place.path) from error


@dataclass(frozen=True)
class List(Type):
    """An array of one type; absent is None."""

    of: Type
    go_name: str = ""
    default: Any = None

    def bind(self, value: Any, place: Place) -> list[Any]:
        if not isinstance(value, list):
            raise place.refuse(value, self.go_name or f"[]{self.of.go_name}")
        return [self.of.default if item is None else self.of.bind(item, place) for item in value]


@dataclass(frozen=True)
class Struct(Type):
    """An object with known fields, bound to a dict that holds every one of them."""

    go_name: str
    fields: Mapping[str, Type]
    default: Any = None

    def bind(self, value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise place.refuse(value, self.go_name)
        bound = {name: kind.default for name, kind in self.fields.items()}
        names = {name.lower(): name for name in self.fields}
        for key, item in value.items():
            name = names.get(key.lower())
            if name is None:
                _log_ignored(place, key)
            elif item is not None:
                bound[name] = self.fields[name].bind(item, place.field(name))
        return bound


def _log_ignored(place: Place, key: str) -> None:
    known = (f"{place.struct}.{place.path}", key)
    if known not in _logged_names and len(_logged_names) < _MAX_LOGGED_NAMES:
        _logged_names.add(known)
        logger.info("ignored unknown field %.80r of %s", key, place.struct)


async def read(request: Request, struct: Struct) -> dict[str, Any]:
    """The body of a request, bound.

    Raises: BindError, BodyTooLargeError, BodyTooSlowError, ContentEncodingError, GoJSONError.
    """
    refuse_encoded(request)
    body = await request.body()
    # A large body takes a second and more, in which the daemon has others to answer.
    return await asyncio.to_thread(_bind, body, struct) if len(body) > _LARGE_BODY_BYTES else _bind(body, struct)


def _bind(body: bytes, struct: Struct) -> dict[str, Any]:
    value = go_json.parse(body)
    place = Place(struct.go_name.rpartition(".")[2])
    return struct.bind({} if value is None else value, place)


def refuse_encoded(request: Request) -> None:
    """Refuse a body that is not sent as it is. Raises: ContentEncodingError."""
    coding = request.headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        raise ContentEncodingError(coding)
