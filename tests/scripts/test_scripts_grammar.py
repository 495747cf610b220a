"""How instances are led through engines of constrained output, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from measuring.grammar import Side, figures, lines
from measuring.grammar_cases import Case, accepted_order, compact, in_declared_order, read_cases
from measuring.grammar_engines import RefusedError
from measuring.grammar_vocabulary import Words, read_words
from measuring.grammar_worker import run_case

END = 256
WORDS = Words([bytes([byte]) for byte in range(256)] + [b""], {END: "<end>"}, END, lambda text: list(text.encode()))


class OneText:
    """An engine that takes one text, whatever the schema, and refuses the schema `false`."""

    def __init__(self, text: str) -> None:
        self._tokens = [*text.encode(), END]
        self._place = 0

    def compile(self, schema: str) -> OneText:
        if schema == "false":
            raise RefusedError("false: nothing fits")
        return self

    def matcher(self) -> OneText:
        self._place = 0
        return self

    def mask(self) -> np.ndarray:
        words = np.zeros(9, np.uint32)
        token = self._tokens[self._place]
        words[token >> 5] |= np.uint32(1 << (token & 31))
        return words.view(np.int32)

    def accept(self, token: int) -> bool:
        self._place += 1
        return token == self._tokens[self._place - 1]


def test_verdicts_are_compared_with_labels() -> None:
    engine = OneText('{"b":1}')
    case = Case("a case", {}, ((True, {"b": 1}), (False, [2]), (True, {"c": 1}), (False, {"b": 1})))
    result = run_case(engine, WORDS, case)
    assert result.false_rejects == ['{"c":1}'] and result.false_accepts == ['{"b":1}']
    assert len(result.accept_ns) == 7 + 0 + 2 + 7 and len(result.mask_ns) == 8 + 1 + 3 + 8
    assert run_case(engine, WORDS, Case("", False, ())).refused == "false: nothing fits"


def test_an_instance_may_come_in_declared_order() -> None:
    schema = {"properties": {"a": True, "b": True}}
    case = Case("", schema, ((True, {"b": 1, "a": 2}),))
    assert not run_case(OneText('{"a":2,"b":1}'), WORDS, case).false_rejects
    assert run_case(OneText('{"a":2,"b":2}'), WORDS, case).false_rejects == ['{"b":1,"a":2}']


def test_another_order_is_searched_for_valid_instances() -> None:
    text = '{"c":[{},[]],"a":{"y":null,"x":2}}'
    value = {"a": {"x": 2, "y": None}, "c": [{}, []]}
    assert accepted_order(value, text.startswith, 100) == text
    assert accepted_order(value, text.startswith, 5) is None
    assert accepted_order({"a": 1}, text.startswith, 100) is None
    case = Case("", {}, ((True, value), (False, value)))
    result = run_case(OneText(text), WORDS, case)
    assert result.false_rejects == [] and result.false_accepts == []


def test_an_engine_that_fails_ends_its_case_alone() -> None:
    found = run_case(OneText("[]"), WORDS, Case("", {}, ((True, []), (True, "[]]"))))
    assert found.failed is None and found.false_rejects == ['"[]]"']
    short = OneText("[]")
    short._tokens.pop()
    assert "IndexError" in str(run_case(short, WORDS, Case("", {}, ((True, []),))).failed)


def test_declared_order_is_found_below_references_and_alternatives() -> None:
    schema = {
        "$ref": "#/$defs/a~1b",
        "$defs": {"a/b": {"anyOf": [{"properties": {"x": {"items": {"required": ["p", "q"]}}}}]}},
        "required": ["w"],
    }
    value = {"other": 1, "w": 2, "x": [{"q": 1, "p": 2}]}
    assert compact(in_declared_order(value, schema)) == '{"w":2,"x":[{"p":2,"q":1}],"other":1}'
    named = {"patternProperties": {"^n": {"properties": {"a": True, "b": True}}, "(": False}}
    assert compact(in_declared_order({"n1": {"b": 1, "a": 2}}, named)) == '{"n1":{"a":2,"b":1}}'
    assert compact("\ud800") is None


def test_times_are_over_what_all_sides_take() -> None:
    cases = [Case("", {}, ((True, "a"),)), Case("", {}, ((True, "a"),)), Case("", False, ())]
    ours, theirs = (Side(name, "1", [run_case(OneText('"a"'), WORDS, case) for case in cases]) for name in "xy")
    theirs.results[0].failed = "timed out"
    first, second = figures([ours, theirs])
    assert (first["taken"], second["taken"], first["shared"]) == (2, 1, 1)
    assert second["failed"] == ["timed out"] and second["reasons"] == {"false": 1}
    assert first["mask_us"]["n"] == second["mask_us"]["n"] == 4 and first["compile_ms"]["n"] == 1
    assert len(lines([first, second])) == 8


@pytest.fixture
def byte_vocabulary(tmp_path: Path) -> Path:
    """A byte-level `tokenizer.json` of 256 tokens and an end token."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    model = tokenizers.models.BPE({letter: number for number, letter in enumerate(sorted(letters))}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_pieces_are_the_bytes_of_tokens(byte_vocabulary: Path, tiny_model: Path) -> None:
    words = read_words(byte_vocabulary)
    assert sorted(words.pieces) == [b"", *(bytes([byte]) for byte in range(256))]
    assert words.texts == {words.eos_id: "<|im_end|>"} and words.special_ids == []
    assert b"".join(words.pieces[token] for token in words.encode("käse\n")) == "käse\n".encode()
    with pytest.raises(ValueError, match="--eos"):
        read_words(byte_vocabulary, "<nothing>")
    assert read_words(tiny_model).n_vocab == 300


def test_the_benchmark_runs(run_bench: Callable[..., dict[str, Any]], byte_vocabulary: Path, tmp_path: Path) -> None:
    rows = [
        {
            "name": "pair",
            "schema": {"properties": {"a": {"type": "integer"}}},
            "tests": [{"valid": True, "data": {"a": 1}}],
        },
        {"name": "wrong", "schema": {"type": "integer"}, "tests": [{"valid": True, "data": "no"}]},
        {"name": "refused", "schema": {"type": 5}, "tests": []},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [case.name for case in read_cases(path)] == ["pair", "wrong", "refused"]
    (ours,) = run_bench("bench-grammar", byte_vocabulary, path, "--engines", "localllm")["engines"]
    assert (ours["taken"], ours["refused"], ours["false_rejects"], ours["failed"]) == (2, 1, 1, [])
    assert ours["mask_us"]["n"] > 5 and ours["compile_ms"]["p50"] > 0
