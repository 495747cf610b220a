"""What is remembered is made once, failures too, and is bounded by its cost."""

import pytest

from localllm.grammar.errors import PatternError, TooComplexError
from localllm.grammar.regular import Language
from localllm.grammar.regular.memory import Memory


def test_values_are_made_once_and_the_oldest_forgotten() -> None:
    made: list[int] = []
    memory: Memory[int] = Memory(10, lambda value: value)

    def value(n: int) -> int:
        return memory.get(n, lambda: made.append(n) or n)

    assert [value(3), value(4), value(3)] == [3, 4, 3]
    value(2)  # 4 was used longest ago
    assert [value(3), value(2), value(4)] == [3, 2, 4]
    assert made == [3, 4, 2, 4]
    value(11)
    value(11)
    assert made == [3, 4, 2, 4, 11, 11]


def test_failures_are_remembered() -> None:
    made: list[int] = []
    memory: Memory[int] = Memory(10, lambda value: value)

    def fail() -> int:
        made.append(1)
        raise TooComplexError("too much")

    for _ in range(2):
        with pytest.raises(TooComplexError, match="too much"):
            memory.get("a", fail)
    assert len(made) == 1


def test_patterns_are_remembered() -> None:
    assert Language.of_regex("^ab|c") is Language.of_regex("^ab|c")
    for _ in range(2):
        with pytest.raises(PatternError) as caught:
            Language.of_regex("(a")
        assert caught.value.position == 0
