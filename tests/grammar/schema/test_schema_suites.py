"""Schemas with labelled instances: an accepted schema's grammar takes the valid ones and no other.

Cases of our own always run; the official suite and real schemas where they are (`schema_data`).
"""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from localllm.grammar import twin
from localllm.grammar.constraint import Constraint
from localllm.grammar.errors import ConstraintError, GrammarError, UnsatisfiableSchemaError
from localllm.grammar.expressions import Grammar
from localllm.grammar.lowering import lower
from localllm.grammar.schema import compile_schema
from localllm.grammar.vocabulary import Vocabulary
from measuring.grammar_cases import Case, compact, read_cases

CASES = Path(__file__).with_name("cases.jsonl")
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
MAX_STEPS = 3_000  # of reading one instance, orders of keys included
END = 256
PIECES = [bytes([byte]) for byte in range(256)] + [b"", b'":', b'",', b'"}', b'{"', b'["', b"true", b"12", b"ab", b"}}"]
# To draft 4 the number 1.0 is no integer, however it is written.
INTEGERS_OF_DRAFT_4 = {"Github_trivial---o14485"}


class Undecided(Exception):  # noqa: N818
    """An instance has more orders of keys than are tried."""


class Reader:
    """Whether a grammar takes a value, its keys in any order and whole numbers with a fraction or without."""

    def __init__(self, grammar: Grammar) -> None:
        self._automaton = twin.Automaton(lower(grammar))
        self._steps = 0

    def takes(self, value: Any) -> bool:
        self._steps = 0
        return any(state.is_complete for state in self._after(value, self._automaton.start()))

    def _after(self, value: Any, state: twin.State) -> Iterator[twin.State]:
        if isinstance(value, dict):
            yield from self._after_members(value, self._read(state, "{"), is_first=True)
        elif isinstance(value, list):
            yield from self._after_items(value, self._read(state, "["), is_first=True)
        else:
            whole = int(value) if isinstance(value, float) and value.is_integer() else value
            for text in {compact(value), compact(whole)}:
                yield from self._alive(self._read(state, text))

    def _after_members(self, rest: dict[str, Any], state: twin.State, is_first: bool) -> Iterator[twin.State]:
        if not rest:
            yield from self._alive(self._read(state, "}"))
        for name in rest:
            begun = self._read(state, ("" if is_first else ",") + f"{compact(name)}:")
            for after in self._after(rest[name], begun) if begun.configurations else ():
                others = {other: rest[other] for other in rest if other != name}
                yield from self._after_members(others, after, is_first=False)

    def _after_items(self, rest: list[Any], state: twin.State, is_first: bool) -> Iterator[twin.State]:
        if not rest:
            yield from self._alive(self._read(state, "]"))
            return
        for after in self._after(rest[0], state if is_first else self._read(state, ",")):
            yield from self._after_items(rest[1:], after, is_first=False)

    def _read(self, state: twin.State, text: str) -> twin.State:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Undecided
        return self._automaton.after_bytes(state, text.encode())

    @staticmethod
    def _alive(state: twin.State) -> Iterator[twin.State]:
        if state.configurations or state.is_complete:
            yield state


def wrong_verdicts(case: Case) -> list[str]:
    """What is wrong with the grammar of a schema that is not refused.

    Raises:
        ConstraintError: it is refused.
    """
    wrong = []
    try:
        reader = Reader(compile_schema(case.schema).grammar)
    except (UnsatisfiableSchemaError, GrammarError):
        return [f"{case.name}: no value fits" for is_valid, _ in case.instances if is_valid]
    for is_valid, value in case.instances:
        if compact(value) is None:
            continue
        try:
            if reader.takes(value) != is_valid:
                wrong.append(f"{case.name}: {'refused' if is_valid else 'accepted'}: {compact(value)}")
        except Undecided:
            pass
    return wrong


def judge(cases: Iterable[Case], limit: float) -> None:
    """No verdict is wrong, and at most a share of the schemas is refused."""
    wrong, refused, n = [], Counter[str](), 0
    for case in cases:
        n += 1
        try:
            wrong += wrong_verdicts(case)
        except ConstraintError as error:
            refused[getattr(error, "keyword", type(error).__name__)] += 1
    assert not wrong, "\n".join(wrong)
    assert sum(refused.values()) <= limit * n, refused


def suite(folder: Path, draft: str) -> Iterator[Case]:
    for path in sorted((folder / "json-schema-test-suite" / draft).glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            schema = group["schema"]
            if isinstance(schema, dict) and "$schema" not in schema:
                schema = {"$schema": DRAFTS[draft], **schema}
            instances = tuple((test["valid"], test["data"]) for test in group["tests"])
            yield Case(f"{path.stem}: {group['description']}", schema, instances)


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case.name)
def test_own_cases(case: Case) -> None:
    assert not wrong_verdicts(case)


@pytest.mark.parity
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_official_suite(schema_data: Path, draft: str) -> None:
    # A `format` is asserted here; what tells that it is an annotation alone is no fault.
    judge((case for case in suite(schema_data, draft) if not case.name.startswith("format:")), limit=0.15)


@pytest.mark.parity
def test_real_schemas(schema_data: Path) -> None:
    cases = read_cases(schema_data / "maskbench-sample.jsonl")
    judge((case for case in cases if case.name not in INTEGERS_OF_DRAFT_4), limit=0.05)


def random_answer(constraint: Constraint, rng: random.Random) -> str | None:
    """A text of random tokens, half of them such as end something; None where it does not end in time."""
    matcher, answer = constraint.matcher(), bytearray()
    mask = np.zeros(constraint.vocabulary.n_words, np.uint32)
    for step in range(500):
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        assert allowed, bytes(answer)
        if END in allowed and (len(allowed) == 1 or rng.random() < 0.5):
            return answer.decode()
        ending = [token for token in allowed if PIECES[token][:1] in (b'"', b"}", b"]", b",", b":")]
        token = rng.choice(
            ending if ending and (step > 100 or rng.random() < 0.5) else [t for t in allowed if t != END]
        )
        assert matcher.accept(token)
        answer += PIECES[token]
    return None


def check_answers(cases: Iterable[Case], n_answers: int) -> int:
    """Random answers are valid to the package jsonschema; how many there were."""
    vocabulary = Vocabulary(PIECES, [END], [])
    rng, n = random.Random(1), 0
    for case in cases:
        try:
            constraint = Constraint(compile_schema(case.schema).grammar, vocabulary)
        except ConstraintError:
            continue
        validator = jsonschema.validators.validator_for(case.schema, jsonschema.Draft202012Validator)(case.schema)
        for _ in range(n_answers):
            answer = random_answer(constraint, rng)
            if answer is not None:
                n += 1
                with warnings.catch_warnings():  # of Python's, on patterns that mean something else to it
                    warnings.simplefilter("ignore")
                    error = next(validator.iter_errors(json.loads(answer)), None)
                assert error is None, (case.name, answer, error)
    return n


def test_random_answers_of_own_cases_are_valid() -> None:
    assert check_answers(read_cases(CASES), 6) > 100


@pytest.mark.parity
def test_random_answers_of_real_schemas_are_valid(schema_data: Path) -> None:
    cases = read_cases(schema_data / "maskbench-sample.jsonl")
    assert check_answers((case for case in cases if not decides_by_format(case.schema)), 2) > 1400


def decides_by_format(schema: Any) -> bool:
    """Whether it may matter that jsonschema, as it is used here, takes a `format` for a remark."""
    text = json.dumps(schema)
    return '"format"' in text and any(f'"{keyword}"' in text for keyword in ("oneOf", "not", "if"))
