"""Which context a model gets in how much memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.scheduler import context
from localllm.scheduler.context import ContextSize, ContextWish, automatic_ctx, fit, longest_fitting, pool_size, steps
from localllm.scheduler.memory import MAX_AUTOMATIC_CTX, MemoryEstimate

AUTOMATIC = ContextWish(0, is_automatic=True)
MB, GB = 1 << 20, 1 << 30
# The shapes of Llama 3.1 8B, Llama 3.2 1B and SmolLM2 135M.
LARGE = MemoryEstimate(5 * GB, 131072.0, 300 * MB, 131072)
MIDDLE = MemoryEstimate(800 * MB, 32768.0, 100 * MB, 131072)
SMALL = MemoryEstimate(100 * MB, 23040.0, 20 * MB, 8192)

estimates = st.builds(
    MemoryEstimate,
    st.integers(0, 10**10),
    st.sampled_from([0.0, 0.5, 2048.0, 131072.0]),
    st.integers(0, 10**9),
    st.sampled_from([0, 512, 2047, 5000, 8192, 131072]),
    st.sampled_from([0.0, 640.5]),
)
rooms = st.integers(-(10**9), 10**11)


def test_steps_are_far_apart() -> None:
    assert steps(9000)[-6:] == [2048, 3072, 4096, 6144, 8192, 9000]
    assert steps(8192)[-3:] == [4096, 6144, 8192] and steps(5) == [5]


@pytest.mark.parametrize(
    ("cost", "room", "chosen"),
    [
        *((LARGE, 64 * GB, 32768), (LARGE, 14 * GB, 32768), (LARGE, 8 * GB, 8192), (LARGE, 6 * GB, 2048)),
        *((LARGE, 0, 2048), (MIDDLE, 4 * GB, 32768), (MIDDLE, 2 * GB, 16384), (MIDDLE, 1 * GB, 2048)),
        *((SMALL, 64 * GB, 8192), (SMALL, 400 * MB, 6144), (MemoryEstimate(1, 1.0, 0, 512), 0, 512)),
    ],
)
def test_the_context_that_is_chosen(cost: MemoryEstimate, room: int, chosen: int) -> None:
    assert automatic_ctx(cost, room) == chosen


@given(estimates, rooms)
def test_what_is_chosen_takes_its_share_at_most_unless_it_is_the_least(cost: MemoryEstimate, room: int) -> None:
    chosen = automatic_ctx(cost, room)
    assert 1 <= chosen <= (cost.n_ctx_train or chosen) and chosen <= MAX_AUTOMATIC_CTX
    if chosen > min(2048, cost.n_ctx_train or 2048):
        assert chosen * cost.bytes_per_token <= context.CONTEXT_SHARE * (room - cost.fixed_bytes)


@given(estimates, rooms, st.floats(0.99, 1.01))
def test_a_little_more_or_less_memory_is_one_step_at_most(cost: MemoryEstimate, room: int, factor: float) -> None:
    lengths = steps(cost.capped(MAX_AUTOMATIC_CTX))
    left = max(0, room - cost.fixed_bytes)
    one, other = (automatic_ctx(cost, cost.fixed_bytes + int(n)) for n in (left, left * factor))
    assert one == other or abs(lengths.index(one) - lengths.index(other)) == 1


@given(estimates, rooms, st.integers(0, 10**6), st.booleans(), st.integers(1, 32))
def test_what_fits_fits(cost: MemoryEstimate, room: int, num_ctx: int, is_automatic: bool, num_parallel: int) -> None:
    wish = ContextWish(num_ctx or 1, is_automatic)
    size = fit(wish, cost, room, num_parallel)
    if size is None:
        asked = context.wanted_ctx(wish, cost, room)
        assert cost.total_bytes(asked, asked) > room
        return
    assert cost.total_bytes(size.num_ctx, size.num_kv) <= room + 1
    assert size.num_ctx <= size.num_kv <= size.num_ctx * min(num_parallel, context.KV_CACHE_CONTEXTS)
    assert size.num_ctx >= cost.capped(wish.num_ctx)
    assert is_automatic or size.num_ctx == cost.capped(wish.num_ctx)


@given(estimates, rooms)
def test_the_largest_that_is_named_fits_and_one_page_more_does_not(cost: MemoryEstimate, room: int) -> None:
    longest = longest_fitting(cost, room)
    if longest:
        assert fit(ContextWish(longest, False), cost, room, 1) is not None
    if longest + 32 < (cost.n_ctx_train or 10**9):
        assert cost.total_bytes(longest + 32, longest + 32) >= room


def test_an_explicit_context_is_had_as_it_is_up_to_the_trained_one() -> None:
    assert fit(ContextWish(100, False), SMALL, GB, 1) == ContextSize(100, 100)
    assert fit(ContextWish(100_000, False), SMALL, GB, 1) == ContextSize(8192, 8192)
    assert fit(ContextWish(100_000, False), LARGE, 8 * GB, 1) is None


@pytest.mark.parametrize(
    ("num_ctx", "num_parallel", "room", "expected"),
    [
        (1000, 16, 10**9, 4000),
        (1000, 1, 10**9, 1000),
        (1000, 16, 26_000, 1000),
        (1000, 16, 66_000, 2000),
        (1000, 16, 0, 1000),
    ],
)
def test_the_kv_cache_has_a_whole_context_and_what_a_share_of_memory_gives(
    num_ctx: int, num_parallel: int, room: int, expected: int
) -> None:
    assert pool_size(MemoryEstimate(1000, 4.0, 1000, 4096), num_ctx, num_parallel, room) == expected


def test_without_keys_and_values_there_is_nothing_to_share() -> None:
    assert pool_size(MemoryEstimate(1000, 0.0, 1000, 512), 512, 16, 10**9) == 512
