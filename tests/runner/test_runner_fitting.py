"""Any conversation in any context: it fits, whole turns go, results stay with their calls; or it is too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.errors import ContextLengthError
from localllm.messages import GenerateRequest
from localllm.runner.fitting import n_ctx_of, room_for_answer, shortened_length
from localllm.runner.prompt import PromptBuilder

CALL = {"function": {"name": "f", "arguments": {}}}
KINDS = st.sampled_from(["user", "assistant", "call", "system"])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages of any roles; each content names its place, and every call has results after it."""
    messages: list[dict[str, Any]] = []
    for kind in draw(st.lists(KINDS, min_size=1, max_size=12)):
        role = "assistant" if kind == "call" else kind
        messages.append({"role": role, "content": ""} | ({"tool_calls": [CALL]} if kind == "call" else {}))
        messages += [{"role": "tool", "content": ""}] * (draw(st.integers(1, 2)) if kind == "call" else 0)
    return [{**m, "content": f"[{i:02}]" + "x" * draw(st.sampled_from([0, 5, 40]))} for i, m in enumerate(messages)]


@pytest.fixture
def fit(script_runner: Callable[..., Any]) -> Callable[..., tuple[list[int], int, str] | None]:
    """fit(messages, n_ctx, truncate, num_predict): the places that are kept, the tokens, the text; None if refused."""
    model = script_runner().model

    def build(
        messages: list[dict[str, Any]], n_ctx: int, truncate: bool | None, num_predict: int
    ) -> tuple[list[int], int, str] | None:
        options = {"num_predict": num_predict}
        request = GenerateRequest("1", "chat", messages=messages, truncate=truncate, options=options)
        try:
            prompt = PromptBuilder("m", model.tokenizer, model.templates, n_ctx).build(request)
        except ContextLengthError as error:
            assert error.n_prompt >= n_ctx == error.n_ctx
            return None
        kept = [i for i in range(len(messages)) if f"[{i:02}]" in prompt.text]
        return kept, len(prompt.tokens), prompt.text

    return build


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversations(), st.integers(16, 400), st.sampled_from([None, True, False]), st.sampled_from([-1, 1, 50]))
def test_what_is_left_of_a_conversation(
    fit: Any, messages: list[dict[str, Any]], n_ctx: int, truncate: bool | None, num_predict: int
) -> None:
    whole = fit(messages, 100_000, None, -1)
    left = fit(messages, n_ctx, truncate, num_predict)
    if left is None:
        assert whole[1] >= n_ctx
        return
    kept, n_tokens, text = left
    assert n_tokens < n_ctx
    if truncate is False or whole[1] <= n_ctx - room_for_answer(num_predict, n_ctx):
        assert left == whole
    if "[...]" in text:  # a text was cut: what its place says may be gone
        assert truncate
        return
    system = [i for i, m in enumerate(messages) if m["role"] == "system"]
    assert set(system) <= set(kept) and len(messages) - 1 in kept
    for i in kept:
        if messages[i]["role"] == "tool":
            call = max(j for j in range(i) if "tool_calls" in messages[j])
            assert set(range(call, i)) <= set(kept)
    others = [i for i in range(len(messages)) if i not in system]
    turns = [i for i in others if messages[i]["role"] == "user" and i > others[0]]
    begins = [i for i in kept if i not in system]
    if turns and fit(messages[turns[-1] :], n_ctx - sum(len(messages[i]["content"]) + 2 for i in system), False, -1):
        assert begins[0] in (others[0], *turns) and begins == [i for i in others if i >= begins[0]]


@given(st.integers(1, 5000), st.integers(4, 300), st.integers(-1, 400))
def test_a_goal_is_near_the_limit_and_stays_where_it_is(n_over: int, n_ctx: int, num_predict: int) -> None:
    n_room = room_for_answer(num_predict, n_ctx)
    limit = n_ctx - n_room
    goal = shortened_length(limit + n_over, n_ctx, n_room)
    step = max(1, n_ctx // 8)
    assert limit - step < goal <= limit and (n_over + limit - goal) % step == 0
    assert 1 <= n_room <= max(1, n_ctx // 4)


@pytest.mark.parametrize(("wanted", "n_ctx"), [(0, 512), (128, 128), (4096, 512), (1, 4), (-5, 4)])
def test_the_context_of_a_request(wanted: int, n_ctx: int) -> None:
    assert n_ctx_of({"num_ctx": wanted}, 512) == n_ctx_of({"num_ctx": wanted, "other": 1}, 512) == n_ctx
    assert n_ctx_of({}, 512) == 512
