"""What a request's `format` and `grammar` ask for, as a grammar; it knows nothing of answers, tools and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from localllm.errors import RequestError
from localllm.grammar.expressions import Expression, Grammar, Literal, choice, sequence
from localllm.grammar.gbnf import parse_gbnf
from localllm.grammar.lark import parse_lark
from localllm.grammar.regular import Language, utf8
from localllm.grammar.schema import compile_schema

TokenIds = Callable[[str], int | None]
"""The id of the token whose text is exactly this, None where there is none."""

OWN_KEYS = ("regex", "choice", "lark")
WHITESPACE_KEY, ORDER_KEY = "x-whitespace", "x-order"
WHITESPACES, ORDERS = ("compact", "flexible"), ("declared", "any")
ANY_OBJECT: dict[str, Any] = {"type": "object"}
MAX_CHOICES = 100_000
# What tells a schema with a property of its own called "regex" or "choice" from ours.
_SCHEMA_KEYS = frozenset(
    (
        "$ref",
        "$schema",
        "$defs",
        "definitions",
        "type",
        "enum",
        "const",
        "properties",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
    )
)


@dataclass(frozen=True)
class Wanted:
    """What an answer must be, and what of that could not be enforced, as texts for people."""

    grammar: Grammar
    warnings: tuple[str, ...] = ()


def wanted_of_format(value: Any, token_ids: TokenIds) -> Wanted:
    """What a `format` that is no empty text asks for; `token_ids` finds tokens by their texts.

    Raises:
        RequestError: it is none, or cannot be enforced; the text says what was expected, or where in it the fault is.
    """
    if value == "json":
        return wanted_of_schema(ANY_OBJECT)
    if not isinstance(value, dict):
        shown = json.dumps(value, ensure_ascii=False, default=str)[:100]
        raise RequestError(f'format: expected "json", a JSON schema or {_own_forms()}, not {shown}')
    own = [key for key in OWN_KEYS if key in value]
    if not own or _SCHEMA_KEYS & value.keys():
        try:
            return wanted_of_schema(value)
        except RequestError as error:
            raise RequestError(f"JSON schema: {error}") from error
    if len(value) > 1:
        other = next(key for key in value if key != own[0])
        raise RequestError(f'format: "{own[0]}" stands alone, not beside "{other}"')
    return Wanted(_READERS[own[0]](value[own[0]], token_ids))


def wanted_of_schema(schema: dict[str, Any]) -> Wanted:
    """JSON that is valid by a schema. Its root may say `x-whitespace` and `x-order`. Raises: RequestError."""
    whitespace = _chosen(schema, WHITESPACE_KEY, WHITESPACES)
    order = _chosen(schema, ORDER_KEY, ORDERS)
    kept = {key: value for key, value in schema.items() if key not in (WHITESPACE_KEY, ORDER_KEY)}
    compiled = compile_schema(kept, whitespace=whitespace, order=order)
    return Wanted(compiled.grammar, tuple(compiled.warnings))


def wanted_of_gbnf(text: str, token_ids: TokenIds) -> Wanted:
    """What a grammar in llama.cpp's GBNF asks for; `token_ids` finds tokens by their texts. Raises: GrammarError."""
    return Wanted(parse_gbnf(text, token_ids=token_ids))


def _chosen(schema: dict[str, Any], key: str, names: tuple[str, ...]) -> Any:
    value = schema.get(key, names[0])
    if value not in names:
        raise RequestError(f"#/{key}: expected {' or '.join(map(json.dumps, names))}, not {json.dumps(value)}")
    return value


def _regex(pattern: Any, token_ids: TokenIds) -> Grammar:
    if not isinstance(pattern, str):
        raise _wrong("regex", "a pattern", pattern)
    return Grammar({"root": utf8(Language.of_regex(pattern, anchored=True))})


def _choices(texts: Any, token_ids: TokenIds) -> Grammar:
    is_list = isinstance(texts, list) and bool(texts) and all(isinstance(text, str) and text for text in texts)
    if not is_list:
        raise _wrong("choice", "an array of texts that are not empty", texts)
    if len(texts) > MAX_CHOICES:
        raise RequestError(f"format.choice: at most {MAX_CHOICES} texts, not {len(texts)}")
    try:
        return Grammar({"root": _one_of(sorted({text.encode() for text in texts}))})
    except UnicodeEncodeError as error:
        raise RequestError(f"format.choice: {error.object!r} holds half a surrogate pair") from None


def _one_of(texts: list[bytes]) -> Expression:
    """One of these, in rising order, as a tree: what several begin with is read once."""
    items: list[Expression] = []
    for _, group in groupby(texts, key=lambda text: text[:1]):
        first, *others = list(group)
        last = others[-1] if others else first
        n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
        rest = [text[n:] for text in (first, *others)]
        items.append(sequence(Literal(first[:n]), _one_of(rest)) if others else Literal(first))
    return choice(items)


def _lark(text: Any, token_ids: TokenIds) -> Grammar:
    if not isinstance(text, str):
        raise _wrong("lark", "a grammar", text)
    return parse_lark(text, token_ids=token_ids)


_READERS = {"regex": _regex, "choice": _choices, "lark": _lark}


def _wrong(key: str, expected: str, value: Any) -> RequestError:
    shown = json.dumps(value, ensure_ascii=False, default=str)[:100]
    return RequestError(f"format.{key}: expected {expected}, not {shown}")


def _own_forms() -> str:
    return ", ".join(f'{{"{key}": …}}' for key in OWN_KEYS)
