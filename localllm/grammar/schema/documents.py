"""Where the parts of a schema are and what its references mean; what keywords say it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin

from localllm.grammar.errors import SchemaError, UnsupportedSchemaError
from localllm.grammar.schema.drafts import Draft, draft_of

_SINGLE = (
    *("additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
RECURSIVE = "$recursiveAnchor"


@dataclass(eq=False)
class Resource:
    """A schema with a URI of its own: the document, or a part with `$id`. `dynamic` are its dynamic anchors."""

    uri: str
    draft: Draft
    dynamic: dict[str, Place] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Place:
    """A schema where it stands: `path` is its JSON pointer from the document's root."""

    schema: Any
    path: str
    resource: Resource


def pointer(path: str, *steps: str | int) -> str:
    """The JSON pointer (as a fragment) to a part of what is at `path`."""
    return "/".join((path, *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)))


class Document:
    """An index of a schema: its parts by identity, its resources by URI, its anchors."""

    def __init__(self, schema: object) -> None:
        self._places: dict[int, Place] = {}
        self._resources: dict[str, Place] = {}
        self._named: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic_names: set[str] = set()
        draft = Draft.ANY
        if isinstance(schema, dict) and "$schema" in schema:
            draft = draft_of(schema["$schema"], "#")
        self.root = Place(schema, "#", Resource("", draft))
        if isinstance(schema, dict):
            self._index(schema, "#", self.root.resource)
            self.root = self._places[id(schema)]
        self._resources.setdefault("", self.root)

    @property
    def has_dynamic_anchors(self) -> bool:
        return bool(self._dynamic_names)

    def place(self, parent: Place, schema: object, *steps: str | int) -> Place:
        """Where a part of `parent` stands."""
        found = self._places.get(id(schema))
        if found is not None and found.schema is schema:
            return found
        path = pointer(parent.path, *steps)
        if isinstance(schema, dict):
            self._index(schema, path, parent.resource)
            return self._places[id(schema)]
        return Place(schema, path, parent.resource)

    def _index(self, schema: dict[str, Any], path: str, resource: Resource) -> None:
        known = self._places.get(id(schema))
        if known is not None:
            if known.resource.uri != resource.uri and "$id" not in schema:
                raise UnsupportedSchemaError("one object is part of two resources", path=path, keyword="$id")
            return
        resource, anchors = self._identify(schema, path, resource)
        here = self._places[id(schema)] = Place(schema, path, resource)
        if resource.uri not in self._resources:
            self._resources[resource.uri] = here
        for anchor in anchors:
            self._anchors[resource.uri, anchor] = here
        self._note_dynamic(schema, here)
        for step, part in parts_of(schema):
            self._index(part, f"{path}/{step}", resource)

    def _identify(self, schema: dict[str, Any], path: str, resource: Resource) -> tuple[Resource, list[str]]:
        """The resource a schema belongs to, which may begin with it, and its anchors."""
        draft = resource.draft
        anchors = [schema["$anchor"]] if "$anchor" in schema and draft >= Draft.D2019 else []
        name = schema.get("id" if draft == Draft.D4 else "$id")
        if name is None and draft == Draft.ANY and isinstance(schema.get("id"), str):
            self._named.setdefault(join(resource.uri, schema["id"]).rstrip("#"), Place(schema, path, resource))
        if not isinstance(name, str) or (draft <= Draft.D7 and "$ref" in schema):
            return resource, [anchor for anchor in anchors if isinstance(anchor, str)]
        uri, _, fragment = name.partition("#")
        if fragment:
            anchors.append(fragment)
        if uri:
            if path != "#" and "$schema" in schema:
                draft = draft_of(schema["$schema"], path)
            resource = Resource(join(resource.uri, uri), draft)
        return resource, [anchor for anchor in anchors if isinstance(anchor, str)]

    def _note_dynamic(self, schema: dict[str, Any], here: Place) -> None:
        resource = here.resource
        name = schema.get("$dynamicAnchor")
        if isinstance(name, str) and resource.draft >= Draft.D2020:
            self._anchors[resource.uri, name] = here
            resource.dynamic[name] = here
            self._dynamic_names.add(name)
        is_root = self._resources[resource.uri] is here
        if schema.get(RECURSIVE) is True and is_root and resource.draft in (Draft.D2019, Draft.ANY):
            resource.dynamic[RECURSIVE] = here
            self._dynamic_names.add(RECURSIVE)

    def resolve(self, reference: object, place: Place, keyword: str) -> Place:
        """What a reference that stands at `place` means. Raises SchemaError where it means nothing."""
        path = pointer(place.path, keyword)
        if not isinstance(reference, str):
            raise SchemaError(f"`{keyword}` must be a string, not {reference!r}", path=path)
        uri, _, fragment = join(place.resource.uri, reference).partition("#")
        root = self._resources.get(uri) or self._named.get(uri)
        if root is None:
            root = self._named.get(join(self.root.resource.uri, reference).rstrip("#"))
            if root is not None:
                return root
            message = f"the reference {reference!r} leads out of the schema"
            raise UnsupportedSchemaError(message, path=path, keyword=keyword)
        fragment = unquote(fragment)
        found = self._follow(root, fragment)
        if found is None and not fragment.startswith("/") and fragment:
            found = self._anchors.get((root.resource.uri, fragment)) or self._named.get(f"{uri}#{fragment}")
        if found is None:
            raise SchemaError(f"the reference {reference!r} leads to nothing", path=path)
        return found

    def _follow(self, root: Place, fragment: str) -> Place | None:
        """What is at a JSON pointer below a resource's root."""
        if not fragment:
            return root
        if not fragment.startswith("/"):
            return None
        last, value, steps = root, root.schema, []
        for token in fragment[1:].split("/"):
            step = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
            steps.append(step)
            known = self._places.get(id(value)) if isinstance(value, dict) else None
            if known is not None:
                last, steps = known, []
        return self.place(last, value, *steps) if steps else last


def join(base: str, reference: str) -> str:
    """The URI that a reference means where `base` is the URI of what it stands in."""
    if not reference or reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:  # brackets that hold no address
        return reference


def parts_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly in a schema, without true and false, with their pointers."""
    for keyword in _SINGLE:
        part = schema.get(keyword)
        if isinstance(part, dict):
            yield keyword, part
    items = schema.get("items")
    if isinstance(items, dict):
        yield "items", items
    elif isinstance(items, list):
        yield from ((f"items/{index}", part) for index, part in enumerate(items) if isinstance(part, dict))
    for keyword in _LISTS:
        found = schema.get(keyword)
        if isinstance(found, list):
            yield from ((f"{keyword}/{index}", part) for index, part in enumerate(found) if isinstance(part, dict))
    for keyword in _MAPS:
        found = schema.get(keyword)
        if isinstance(found, dict):
            for name, part in found.items():
                if isinstance(part, dict):
                    yield pointer(keyword, name), part
