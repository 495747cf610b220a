"""What the API's description says of an endpoint, told in front of its function; it knows no endpoint.

@described("the next message of a conversation", body=CHAT_REQUEST, answer=CHAT_ANSWER, streams=NDJSON, errors=(404,))
async def chat(request: Request) -> Response: ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from localllm.server.binding import Struct, Type
from localllm.server.streaming import NDJSON

SSE = "text/event-stream"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

__all__ = ["NDJSON", "SSE", "Description", "described", "description_of"]

_ATTRIBUTE = "localllm_description"


@dataclass(frozen=True)
class Description:
    """One endpoint. `body` and `query` are what binds the request, so that the document cannot differ from it.

    `form` are the fields of a multipart body beside its `file`, `answer` is the JSON of a 200, `media_type` what a 200
    is instead, `streams` the media type of an answer in pieces. `errors` are statuses of refusals beside those that
    every endpoint has.
    """

    summary: str
    body: Struct | None = None
    form: Mapping[str, Type] = field(default_factory=dict)
    query: Mapping[str, Type] = field(default_factory=dict)
    answer: Type | None = None
    media_type: str = ""
    streams: str = ""
    errors: tuple[int, ...] = ()


def described(summary: str, **fields: Any) -> Callable[[Endpoint], Endpoint]:
    """A decorator that gives an endpoint its Description; see there for `fields`."""
    description = Description(summary, **fields)

    def attach(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, description)
        return endpoint

    return attach


def description_of(endpoint: Callable[..., Any]) -> Description | None:
    """What was told of an endpoint, None where nothing was."""
    found = getattr(endpoint, _ATTRIBUTE, None)
    return found if isinstance(found, Description) else None
