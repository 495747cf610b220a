"""Fixtures every test folder may use; the modules themselves are in tests/fixtures."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import platformdirs
import pytest

FIXTURES = Path(__file__).parent / "fixtures"


def _load(stem: str) -> ModuleType:
    name = f"localllm_test_{stem}"
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look modules up by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """The folder of recorded test data."""
    return FIXTURES


@pytest.fixture(scope="session")
def tiny_models() -> ModuleType:
    """Writers of tiny GGUF models: `tiny_models.script_model(path, pieces)` and others (tests/fixtures/models.py)."""
    return _load("models")


@pytest.fixture(scope="session")
def registry_double() -> ModuleType:
    """`RegistryDouble`, a registry that asks for tokens, redirects, and fails on demand (registry_double.py)."""
    return _load("registry_double")


@pytest.fixture(scope="session")
def parity_models() -> ModuleType:
    """Tiny models with recorded logits: `parity_models.make(name, path)` (tests/fixtures/parity_models.py)."""
    return _load("parity_models")


@pytest.fixture(scope="session")
def lora_files() -> ModuleType:
    """LoRA adapters for tiny models: `lora_files.adapter_for(model, path, recipe)` (tests/fixtures/lora_files.py)."""
    return _load("lora_files")


@pytest.fixture(scope="session")
def upload_double(registry_double: ModuleType) -> ModuleType:
    """`UploadDouble`, a registry that takes uploads (tests/fixtures/upload_double.py)."""
    return _load("upload_double")


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """real_model("smollm2:135m"): the GGUF of a model of the catalog, pulled once and kept in the user's cache folder.

    LOCALLLM_TEST_SMOLLM2 and LOCALLLM_TEST_GEMMA3 may name files that are there already.
    """

    def get(name: str) -> Path:
        given = os.environ.get(f"LOCALLLM_TEST_{name.split(':')[0].upper()}")
        if given:
            return Path(given)
        from localllm.server.pull import inspect
        from modelfiles import read_catalog
        from registry import Catalog, Store, parse_name, pull

        store = Store(Path(platformdirs.user_cache_dir("localllm")) / "test-models")
        if store.find(parse_name(name)) is None:
            for _ in pull(name, store, inspect=inspect, catalog=Catalog(read_catalog())):
                pass
        return store.resolve(parse_name(name)).model_paths[0]

    return get
