"""The drafts of JSON Schema: how each is named, and which keywords it knows."""

from __future__ import annotations

import enum
import re

from localllm.grammar.errors import SchemaError, UnsupportedSchemaError


class Draft(enum.IntEnum):
    """A draft, by its number or year. ANY is that of a schema that names none: 2020-12 and what older ones wrote."""

    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 2019
    D2020 = 2020
    ANY = 9999


_URI = re.compile(r"(?:https?://)?json-schema\.org/(?:draft[-/]([0-9-]+)/)?(?:hyper-)?schema#?/?")
_NUMBERS = {"04": Draft.D4, "06": Draft.D6, "07": Draft.D7, "2019-09": Draft.D2019, "2020-12": Draft.D2020}


def draft_of(uri: object, path: str) -> Draft:
    """The draft that a `$schema` names. Raises UnsupportedSchemaError for others, and for vocabularies of one's own."""
    if not isinstance(uri, str):
        raise SchemaError(f"`$schema` must be a string, not {uri!r}", path=path)
    match = _URI.fullmatch(uri.strip())
    if match is not None:
        draft = _NUMBERS.get(match[1]) if match[1] else Draft.ANY
        if draft is not None:
            return draft
    raise UnsupportedSchemaError(f"unsupported `$schema` {uri!r}", path=path, keyword="$schema")


_D4 = frozenset(
    (
        *("$ref", "type", "enum", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "format", "items", "additionalItems", "maxItems", "minItems"),
        *("uniqueItems", "maxProperties", "minProperties", "required", "properties", "patternProperties"),
        *("additionalProperties", "dependencies", "allOf", "anyOf", "oneOf", "not"),
    )
)
_D6 = _D4 | {"const", "contains", "propertyNames"}
_D7 = _D6 | {"if", "then", "else"}
_D2019 = _D7 | {
    *("$recursiveRef", "dependentRequired", "dependentSchemas", "maxContains", "minContains"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
_D2020 = (_D2019 | {"$dynamicRef", "prefixItems"}) - {"$recursiveRef"}

#: The keywords that say which values are valid, by draft. All others are remarks.
KEYWORDS = {
    Draft.D4: _D4,
    Draft.D6: _D6,
    Draft.D7: _D7,
    Draft.D2019: _D2019,
    Draft.D2020: _D2020,
    Draft.ANY: _D2019 | _D2020,
}
