"""What tests of schemas share: a decision procedure for normal forms, and where bulky data is."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = "LOCALLLM_TEST_SCHEMAS"


@pytest.fixture(scope="session")
def accepts() -> Callable[[Any, Any], bool]:
    """`accepts(shapes, value)`: whether a value is of a normal form (acceptance.py)."""
    spec = importlib.util.spec_from_file_location("localllm_test_acceptance", Path(__file__).parent / "acceptance.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["localllm_test_acceptance"] = module
    spec.loader.exec_module(module)
    found: Callable[[Any, Any], bool] = module.accepts
    return found


@pytest.fixture(scope="session")
def schema_data() -> Path:
    """A folder with json-schema-test-suite and maskbench-sample.jsonl: LOCALLLM_TEST_SCHEMAS, or ../shared/data."""
    given = os.environ.get(DATA)
    folder = Path(given) if given else Path(__file__).parents[4] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{DATA} does not name a folder with json-schema-test-suite and maskbench-sample.jsonl")
    return folder
