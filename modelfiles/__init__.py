"""Well-known models: the catalog, Modelfiles of families, the default name; it knows nothing of how they are pulled."""

import sys
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_MODEL = "smollm2:135m"


def read_catalog() -> dict[str, dict[str, Any]]:
    """The parsed `catalog.toml`, as `registry.Catalog` takes it."""
    return tomllib.loads(files(__name__).joinpath("catalog.toml").read_text(encoding="utf-8"))


def family_modelfile(name: str) -> bytes | None:
    """The Modelfile of a family (`llama3.1`), None where there is none: its model, and the template, the stops and the
    parameters that its makers publish.

    The template writes what the makers' own writes, tools and thinking included, so that a model made from it has the
    capabilities that the template in its file gives it.
    """
    return _families().get(name.lower())


def families() -> list[str]:
    """The families that have a Modelfile, in order."""
    return sorted(_families())


def _families() -> dict[str, bytes]:
    suffix = ".modelfile"
    found = (file for file in files(__name__).iterdir() if file.name.endswith(suffix))
    return {file.name.removesuffix(suffix): file.read_bytes() for file in found}
