"""The fields that OpenAI's requests have in common, and what they say in Ollama's terms; it knows no endpoint.

Every model option may stand at the top level beside `options`, where its name means nothing else to OpenAI.
"""

from dataclasses import dataclass
from typing import Any

from localllm.options import BY_NAME
from localllm.server import inference
from localllm.server.binding import Anything, Bool, Judged, Map, Place, Struct, Type
from localllm.server.openai.errors import InvalidRequestError, told
from localllm.server.schema import Schema, schema_of

MAX_CHOICES = 128
# Other defaults than Ollama's own, and whatever the model's parameters say.
DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
EFFORTS: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
    "ultra": "max",
}


@dataclass(frozen=True)
class Number(Type):
    """Any number."""

    default: Any = None
    go_name: str = "float64"

    def bind(self, value: Any, place: Place) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise place.refuse(value, self.go_name)
        return value


@schema_of.register
def _(kind: Number) -> Schema:
    return {"type": "number"}


def _stop(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"expected a string or an array of strings, not {told(value)}")
    return texts


_OPTION_TYPES: dict[str, Type] = {"integer": Number(), "float32": Number(), "boolean": Bool(default=None)}
OPTION_FIELDS: dict[str, Type] = {
    **{name: _OPTION_TYPES.get(option.type, Anything()) for name, option in BY_NAME.items()},
    "stop": Judged(_stop, shape={"type": ["string", "array"], "items": {"type": "string"}}),
}
"""The model's options, of which OpenAI knows temperature, top_p, seed, stop, logit_bias and two penalties."""


def _elsewhere(value: Any) -> None:
    """An answer would not be what other servers' fields ask for, so they are not ignored. Raises: ValueError."""
    raise ValueError("not supported, use `response_format`, `format` or `grammar`")


_OTHERS_CONSTRAINTS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "json_schema",
)

EXTRA_FIELDS: dict[str, Type] = {
    "options": Map(),
    "keep_alive": inference.FIELDS["keep_alive"],
    "think": inference.FIELDS["think"],
    "format": Anything(),
    **{name: inference.FIELDS[name] for name in ("grammar", "grammar_lazy", "grammar_triggers")},
    **{name: inference.FIELDS[name] for name in ("truncate", "lora")},
    "shift": Bool(),
    **{name: Judged(_elsewhere) for name in _OTHERS_CONSTRAINTS},
}
"""Fields of Ollama's and our own that OpenAI does not have, and those of other servers that are refused.

An answer ends where the context does (`finish_reason` "length"), as OpenAI's do, unless `shift` lets it go on.
"""

NATIVE_FIELDS = ("keep_alive", "lora", "truncate", "shift")
"""Those of them that go into a native body as they are."""

STREAM_FIELDS: dict[str, Type] = {
    "stream": Bool(),
    "progress": Bool(),
    "return_progress": Bool(),
    "stream_options": Struct("openai.StreamOptions", {"include_usage": Bool()}),
}


def options_of(body: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """The options to ask for; `limit` is the most tokens to generate, by whatever name."""
    own = {name: value for name, value in (body["options"] or {}).items() if value is not None}
    given = {name: body[name] for name in BY_NAME if body[name] is not None}
    return {**DEFAULTS, **own, **given, **({} if limit is None else {"num_predict": limit})}


def think_of(body: dict[str, Any], effort: Any, place: str) -> bool | str | None:
    """Whether and how hard to think: our own `think`, else OpenAI's effort. Raises: InvalidRequestError."""
    if body["think"] is not None or effort is None:
        return body["think"]
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise InvalidRequestError(place, f"expected one of {', '.join(EFFORTS)}, not {told(effort)}")
    return EFFORTS[effort]


def format_of(body: dict[str, Any], asked: dict[str, Any] | None, place: str, schema_place: str) -> Any:
    """The native `format` of what is `asked` at `place`; a schema is beside the type or in a `json_schema` object.

    Raises: InvalidRequestError.
    """
    if asked is None:
        return body["format"]
    if body["format"] not in (None, ""):
        raise InvalidRequestError("format", f"cannot be given beside {place}")
    kind = asked.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = asked.get("schema")
        if not isinstance(schema, dict | None):
            raise InvalidRequestError(f"{place}.schema", f"expected a JSON schema, not {told(schema)}")
        return schema or "json"
    if kind != "json_schema":
        raise InvalidRequestError(f"{place}.type", f"expected text, json_object or json_schema, not {told(kind)}")
    named = asked.get("json_schema", asked)
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequestError(schema_place, f"expected a JSON schema, not {told(schema)}")
    return schema


def response_format_of(body: dict[str, Any]) -> Any:
    """The native `format` of chats and completions. Raises: InvalidRequestError."""
    return format_of(body, body["response_format"], "response_format", "response_format.json_schema.schema")


def native_fields(body: dict[str, Any]) -> dict[str, Any]:
    """What a native body takes over as it is."""
    return {name: body[name] for name in NATIVE_FIELDS}


def wants_progress(body: dict[str, Any]) -> bool:
    """Whether a stream is to tell how far its prompt is; the second name is llama-server's."""
    return bool(body["stream"] and (body["progress"] or body["return_progress"]))


def own_fields(body: dict[str, Any]) -> dict[str, Any]:
    """What llama-server's and our own fields say, as fields of the runner's request."""
    return {"template_arguments": body["chat_template_kwargs"] or {}, **inference.grammar_fields(body)}


def n_choices(body: dict[str, Any]) -> int:
    """How many answers are asked for. Raises: InvalidRequestError."""
    n = 1 if body["n"] is None else body["n"]
    if not 1 <= n <= MAX_CHOICES:
        raise InvalidRequestError("n", f"must be in 1..{MAX_CHOICES}, not {n}")
    return int(n)


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether the answer tells counts of tokens: always as one object, in a stream where that was asked for."""
    return not body["stream"] or bool(body["stream_options"] and body["stream_options"]["include_usage"])


def is_tokens(value: Any) -> bool:
    """Whether a value is a list of token ids."""
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
