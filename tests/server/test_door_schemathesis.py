"""Requests made at random from the API's own description: none ends in a 500 or in a status that is not described.

The default run makes a few of each kind, the slow one 10,000 in all, half of them against the description. The daemon
is a process of its own, its runners are fakes.
"""

import random
from collections.abc import Callable
from typing import Any

import hypothesis
import openai
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from localllm.server.app import REFUSALS, ROUTES
from localllm.server.openapi import document

Start = Callable[..., Any]
Add = Callable[..., None]

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DOCUMENT = document(ROUTES, REFUSALS)
OPERATIONS = [operation.ok() for operation in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]
SAID = [{"role": "user", "content": "hello"}]
GOOD: dict[str, dict[str, Any]] = {
    "/api/show": {},
    "/api/generate": {"prompt": "one two", "stream": False},
    "/api/chat": {"messages": SAID, "stream": False},
    "/api/render": {"messages": SAID},
    "/api/load": {"stream": False},
    "/api/embed": {"input": ["one", "two"]},
    "/api/embeddings": {"prompt": "one"},
    "/api/rerank": {"query": "one", "documents": ["one", "two"]},
    **{path: {"query": "one", "documents": ["one"]} for path in ("/rerank", "/v1/rerank", "/v1/reranking")},
    "/v1/batches": {"endpoint": "/v1/chat/completions", "completion_window": "24h"},
    "/v1/embeddings": {"input": ["one", "two"]},
    "/api/tokenize": {"text": "one"},
    "/api/detokenize": {"tokens": [111, 110]},
    "/api/create": {"from": "m", "stream": False},
    "/api/copy": {"source": "m", "destination": "n"},
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "one two"},
    "/v1/responses": {"input": "one two"},
    "/v1/messages": {"messages": SAID, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": SAID},
}
JINJA = "{% if tools %}{{ tools }}{% endif %}<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
N_QUICK, N_SLOW = 2, 10_000
# What asks other machines for models.
ELSEWHERE = ("/api/pull",)


def cases(operation: Any, known: dict[str, str]) -> st.SearchStrategy[Any]:
    """Requests that the description allows, and such that it does not.

    By themselves few would get past the first check: so half of them are a request that is answered, with some of
    its fields as made, and name what is there (`known`).
    """
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    made = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])
    return st.builds(_nearly_good, made, st.just(known), st.booleans(), st.integers(0, 2**32))


def _nearly_good(case: Any, known: dict[str, str], is_near: bool, seed: int) -> Any:
    if not is_near:
        return _asking_nobody(case, known)
    if isinstance(case.body, dict) and (good := GOOD.get(case.operation.path)) is not None:
        kept = random.Random(seed).sample(sorted(case.body), min(len(case.body), seed % 3))
        names = (
            {"model": known["model"]} if case.operation.path != "/v1/batches" else {"input_file_id": known["file_id"]}
        )
        case.body = {**good, **{name: case.body[name] for name in kept}, **names}
    for name in case.path_parameters or {}:
        case.path_parameters[name] = known.get(name, case.path_parameters[name])
    return _asking_nobody(case, known)


def _asking_nobody(case: Any, known: dict[str, str]) -> Any:
    """A model that is to be made of one that is not here would be asked of other machines."""
    if case.operation.path == "/api/create" and isinstance(case.body, dict) and isinstance(case.body.get("from"), str):
        case.body["from"] = known["model"]
    return case


def check(operation: Any, url: str, known: dict[str, str], n_examples: int) -> None:
    session = requests.Session()
    session.trust_env = False

    @hypothesis.settings(
        max_examples=n_examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=cases(operation, known))
    def run(case: Any) -> None:
        response = case.call(base_url=url, session=session, timeout=20)
        case.validate_response(response, checks=CHECKS)

    with session:
        run()


def known_ids(url: str) -> dict[str, str]:
    """What can stand in paths: a file and a batch of the daemon, made here."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    return {"file_id": file.id, "batch_id": batch.id, "model": "m", "digest": f"sha256:{'0' * 64}"}


def run_all(start_live: Start, add_model: Add, n_examples: int) -> None:
    add_model(
        jinja="{% if tools %}{{ tools }}{% endif %}<think></think>{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    daemon = start_live()
    wanted = [operation for operation in OPERATIONS if operation.path not in ELSEWHERE]
    # What is there must be there for all others.
    wanted.sort(key=lambda operation: operation.method == "delete")
    known = known_ids(daemon.url)
    # Where nothing can be varied there is one example.
    n_each = max(1, n_examples // sum(bool(one.body or one.query or one.path_parameters) for one in wanted))
    failures = []
    for operation in wanted:
        try:
            check(operation, daemon.url, known, n_each)
        except Exception as error:
            failures.append(f"{operation.label}: {error}")
    assert not failures, "\n\n".join(failures)
    assert "Traceback" not in daemon.stop()[1]


def test_a_few(start_live: Start, add_model: Add) -> None:
    run_all(start_live, add_model, N_QUICK * len(OPERATIONS))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many(start_live: Start, add_model: Add) -> None:
    run_all(start_live, add_model, N_SLOW)
