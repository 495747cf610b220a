"""A daemon with scripted runners for clients of other people: the extra `clients` of pyproject.toml."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

JINJA = (
    "<think></think>{% if tools %}{{ tools }}{% endif %}"
    "{% for m in messages %}{{ m.tool_calls }}{{ m.content }}{% endfor %}"
)


@pytest.fixture
def url(start_live: Callable[..., Any], add_model: Callable[..., None]) -> str:
    """The address of a daemon whose model `m` thinks and knows tools."""
    add_model("m", jinja=JINJA)
    return str(start_live().url)


@pytest.fixture(autouse=True)
def sockets_left_open() -> Iterator[None]:
    """Collects what a client did not close while the test's filter of warnings still counts."""
    yield
    gc.collect()
