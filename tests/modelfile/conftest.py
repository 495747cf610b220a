"""What records the prompts of makers' templates, for the tests to render and compare in the same way."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def recorder(fixtures_dir: Path) -> ModuleType:
    """tests/fixtures/templates/record_families.py."""
    spec = importlib.util.spec_from_file_location("record_families", fixtures_dir / "templates/record_families.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
