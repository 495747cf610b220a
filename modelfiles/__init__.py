"""Well-known models: the catalog's data and the name of the default one; it knows nothing of how they are pulled."""

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
