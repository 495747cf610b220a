"""What `type` and the keywords about numbers and strings say."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from localllm.grammar.errors import PatternError, SchemaError, TooComplexError, UnsupportedSchemaError
from localllm.grammar.regular import Language
from localllm.grammar.schema import ranges
from localllm.grammar.schema.documents import Place, pointer
from localllm.grammar.schema.drafts import Draft
from localllm.grammar.schema.nodes import ANY_STRING
from localllm.grammar.schema.shapes import NumberRange
from localllm.grammar.schema.sites import Site
from localllm.grammar.schema.values import count_of, expect, number_of

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ALL_TYPES = frozenset(TYPES)

NUMBER_KEYWORDS = frozenset(("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"))
STRING_KEYWORDS = frozenset(("maxLength", "minLength", "pattern", "format"))

# Formats that drafts define, by what no regular language is.
_UNENFORCED = frozenset(("idn-email", "idn-hostname", "regex"))


def types_of(place: Place) -> frozenset[str]:
    """The types that `type` permits."""
    value = place.schema["type"]
    if isinstance(value, str):
        value = [value]
    elif not isinstance(value, list) or not value:
        message = f"`type` must be the name of a type, or a list of such names, not {value!r:.100}"
        raise SchemaError(message, path=pointer(place.path, "type"))
    for name in value:
        if not isinstance(name, str) or name not in ALL_TYPES:
            message = f"`type` must be one of {', '.join(TYPES)}, not {name!r:.100}"
            raise SchemaError(message, path=pointer(place.path, "type"))
    return frozenset(value)


def numbers_of(place: Place, present: frozenset[str]) -> ranges.Ranges:
    """The numbers within the bounds. Bounds that are excluded may be said by true, as draft 4 has it."""
    least, excludes_least = _bound(place, present, "minimum", "exclusiveMinimum", max)
    most, excludes_most = _bound(place, present, "maximum", "exclusiveMaximum", min)
    step = None
    if "multipleOf" in present:
        step = number_of(place, "multipleOf")
        if step <= 0:
            message = f"`multipleOf` must be more than 0, not {place.schema['multipleOf']!r}"
            raise SchemaError(message, path=pointer(place.path, "multipleOf"))
    return ranges.canonical(
        NumberRange(
            least=least,
            most=most,
            excludes_least=excludes_least,
            excludes_most=excludes_most,
            is_integer=step is not None and step.denominator == 1,
            multiple_of=step,
        )
    )


def _bound(
    place: Place, present: frozenset[str], keyword: str, exclusive: str, tighter: Callable[..., Fraction]
) -> tuple[Fraction | None, bool]:
    bound = number_of(place, keyword) if keyword in present else None
    if exclusive not in present:
        return bound, False
    value = place.schema[exclusive]
    if isinstance(value, bool) and place.resource.draft in (Draft.D4, Draft.ANY):
        return bound, value and bound is not None
    other = number_of(place, exclusive)
    if bound is None:
        return other, True
    found = tighter(bound, other)
    return found, found == other


def strings_of(site: Site) -> Language | None:
    """The strings of the lengths, the pattern and the format; None: there are none.

    A format that no draft defines permits everything; one that a draft defines is enforced or refused.
    """
    place, present = site.place, site.present
    found = ANY_STRING
    if "pattern" in present:
        expect(place.schema["pattern"], str, "a regular expression", place, "pattern")
        try:
            found = language_of_pattern(place.schema["pattern"], pointer(place.path, "pattern"), "pattern")
        except UnsupportedSchemaError as error:
            site.leave_out(error)
    if "format" in present:
        expect(place.schema["format"], str, "the name of a format", place, "format")
        language = _language_of_format(site, place.schema["format"])
        found = _narrowed(site, found, language, "format")
    least = count_of(place, "minLength") if "minLength" in present else 0
    most = count_of(place, "maxLength") if "maxLength" in present else None
    if least or most is not None:
        if most is not None and least > most:
            return None
        lengths = Language.of_length(least, most)
        found = _narrowed(site, found, lengths, "minLength" if most is None else "maxLength")
    return None if found.is_empty else found


def _narrowed(site: Site, found: Language, by: Language, keyword: str) -> Language:
    """The strings of both languages, of which the second is what `keyword` says."""
    try:
        return site.table.languages.both(found, by)
    except TooComplexError as error:
        path = pointer(site.place.path, keyword)
        site.leave_out(UnsupportedSchemaError(f"beside the rest, {error}", path=path, keyword=keyword))
        return found


def _language_of_format(site: Site, name: str) -> Language:
    language = Language.of_format(name)
    if language is not None:
        return language
    if name in _UNENFORCED:
        message = f"the format {name!r} cannot be enforced"
        path = pointer(site.place.path, "format")
        site.leave_out(UnsupportedSchemaError(message, path=path, keyword="format"))
    return ANY_STRING


def language_of_pattern(pattern: str, path: str, keyword: str) -> Language:
    """The strings that a regular expression is found in."""
    try:
        return Language.of_regex(pattern)
    except (PatternError, TooComplexError) as error:
        raise UnsupportedSchemaError(str(error), path=path, keyword=keyword) from error
