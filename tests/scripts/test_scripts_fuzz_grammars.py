"""What the fuzzer feeds the readers of grammars: a sample of it, without the guidance of coverage."""

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.grammar.errors import ConstraintError


def _script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "fuzz-grammars"
    loader = importlib.machinery.SourceFileLoader("fuzz_grammars", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


SCRIPT = _script()
TARGETS = SCRIPT.targets()


@pytest.mark.parametrize("reader", TARGETS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_texts_are_refused_or_taken(reader: str, data: st.DataObject) -> None:
    pieces = [*SCRIPT.KEYWORDS[reader], *SCRIPT.SEEDS[reader]]
    drawn = st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=12).map("".join)
    text = (
        data.draw(drawn).encode("utf-8", "surrogatepass")
        if reader != "schema-tree"
        else data.draw(st.binary(max_size=80))
    )
    try:
        TARGETS[reader](text)
    except ConstraintError as error:
        assert str(error)


@pytest.mark.parametrize("reader", TARGETS)
def test_seeds_are_taken(reader: str) -> None:
    taken = 0
    for seed in SCRIPT.SEEDS[reader]:
        try:
            TARGETS[reader](seed.encode())
            taken += 1
        except ConstraintError:
            pass
    assert taken
