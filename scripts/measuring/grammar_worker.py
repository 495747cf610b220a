"""The process of one engine: it compiles schemas and leads instances through them; it may hang or die."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from measuring.grammar_cases import Case, accepted_order, compact, in_declared_order
from measuring.grammar_engines import Compiled, Engine, RefusedError, make_engine
from measuring.grammar_vocabulary import Words, read_words

MAX_ASKED = 2_000  # beginnings of texts, in the search for an order of keys that is accepted
WARM_UP = Case(
    "",
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}},
    ((True, {"a": "x", "b": 1.5}),),
)


@dataclass
class Result:
    """What an engine made of a case. Times in nanoseconds: of one compile, and of every mask and accept of all walks.

    `refused`: why it does not take the schema. `false_accepts`, `false_rejects`: texts of instances.
    """

    compile_ns: int = 0
    mask_ns: list[int] = field(default_factory=list)
    accept_ns: list[int] = field(default_factory=list)
    refused: str | None = None
    failed: str | None = None
    false_accepts: list[str] = field(default_factory=list)
    false_rejects: list[str] = field(default_factory=list)


def serve(pipe: Connection, name: str, vocabulary: str, eos: str | None, whitespace: str) -> None:
    """Answer every `Case` with its `Result`, after the engine's version; an engine that is not installed says so."""
    words = read_words(vocabulary, eos)
    try:
        engine, version = make_engine(name, words, whitespace)
    except ImportError as error:
        pipe.send(error)
        return
    run_case(engine, words, WARM_UP)
    pipe.send(version)
    gc.disable()
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        gc.collect()
        pipe.send(run_case(engine, words, case))


def run_case(engine: Engine, words: Words, case: Case) -> Result:
    """Compile a schema and judge all instances."""
    result, schema = Result(), json.dumps(case.schema)
    start = time.perf_counter_ns()
    try:
        compiled = engine.compile(schema)
    except RefusedError as error:
        result.refused = str(error)
        return result
    except Exception as error:  # the engine's fault, which must not end the run
        result.failed = f"{type(error).__name__}: {error}"
        return result
    result.compile_ns = time.perf_counter_ns() - start
    try:
        for is_valid, value in case.instances:
            _judge(compiled, words, case, is_valid, value, result)
    except Exception as error:
        result.failed = f"{type(error).__name__}: {error}"
    return result


def _judge(compiled: Compiled, words: Words, case: Case, is_valid: bool, value: object, result: Result) -> None:
    texts = list(_texts(case, value))
    accepted = next((text for text in texts if _walk(compiled, words, text, result)), None)
    if not is_valid and accepted is not None:
        result.false_accepts.append(accepted)
    if is_valid and texts and accepted is None:
        found = accepted_order(value, lambda text: _takes(compiled, words, text), MAX_ASKED)
        if found is None or not _walk(compiled, words, found, result):
            result.false_rejects.append(texts[0])


def _takes(compiled: Compiled, words: Words, text: str) -> bool:
    """Whether the beginning of a text is taken; no mask is asked for."""
    matcher = compiled.matcher()
    return all(matcher.accept(token) for token in words.encode(text))


def _texts(case: Case, value: object) -> Iterator[str]:
    """The value as it is and, where that differs, with its keys in declared order."""
    written = compact(value)
    if written is not None:
        yield written
        ordered = compact(in_declared_order(value, case.schema))
        if ordered is not None and ordered != written:
            yield ordered


def _walk(compiled: Compiled, words: Words, text: str, result: Result) -> bool:
    """Whether a text is accepted: the mask must allow each of its tokens, and the end token at its end."""
    matcher, clock = compiled.matcher(), time.perf_counter_ns
    for token in [*words.encode(text), words.eos_id]:
        before = clock()
        mask = matcher.mask()
        between = clock()
        is_allowed = bool(int(mask[token >> 5]) >> (token & 31) & 1)
        result.mask_ns.append(between - before)
        if not is_allowed:
            return False
        if token != words.eos_id:
            before = clock()
            is_taken = matcher.accept(token)
            result.accept_ns.append(clock() - before)
            if not is_taken:
                return False
    return True
