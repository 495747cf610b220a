"""The chain as a whole: order, naive references, seeds, greedy, bad logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from localllm.errors import OptionError, SamplingError
from localllm.sampling import Sampler, SamplerParams, find_breakers, logprobs
from localllm.sampling.candidates import Candidates, top_indices
from localllm.sampling.dry import z_lengths
from localllm.sampling.rng import MersenneTwister

logit_arrays = hnp.arrays(
    np.float32,
    st.integers(1, 300),
    elements=st.one_of(st.floats(-40, 40, width=32), st.sampled_from([0.0, 1.0, 2.0]), st.just(-np.inf)),
).filter(lambda a: np.isfinite(a).any())

params_strategy = st.builds(
    SamplerParams,
    seed=st.integers(0, 2**32 - 2),
    min_keep=st.integers(0, 5),
    temperature=st.floats(-0.5, 3),
    dynatemp_range=st.sampled_from([0.0, 0.5, 2.0]),
    top_k=st.integers(-1, 50),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1.2),
    typical_p=st.floats(0, 1),
    top_n_sigma=st.floats(-1, 3),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.floats(0, 0.6),
    repeat_penalty=st.floats(0.5, 2),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    dry_multiplier=st.sampled_from([0.0, 1.0]),
    mirostat=st.integers(0, 2),
    mirostat_tau=st.floats(0, 8),
)


@given(logits=logit_arrays, params=params_strategy, seed=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_any_parameters_choose_a_possible_token_and_leave_the_logits_alone(
    logits: np.ndarray, params: SamplerParams, seed: int
) -> None:
    before = logits.copy()
    sampler = Sampler(params, len(logits))
    sampler.accept_prompt(np.random.default_rng(seed).integers(0, len(logits), 20).tolist())
    for _ in range(3):
        token = sampler.sample(logits)
        assert 0 <= token < len(logits)
        assert logits[token] != -np.inf
        sampler.accept(token)
    assert np.array_equal(logits, before)


@given(logits=logit_arrays, k=st.integers(1, 320))
def test_top_indices_equal_a_full_stable_sort(logits: np.ndarray, k: int) -> None:
    reference = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    assert top_indices(logits, k).tolist() == reference


def test_top_indices_of_a_large_vocabulary_with_many_ties() -> None:
    logits = np.random.default_rng(0).integers(0, 50, 20000).astype(np.float32)
    reference = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    for k in (1, 40, 311, 312, 313, 5000, 20000):
        assert top_indices(logits, k).tolist() == reference[:k]


def naive_chain(logits: np.ndarray, p: SamplerParams, history: list[int]) -> dict[int, float]:
    """Penalties, top-k, typical, top-p, min-p, temperature, written down plainly; the final probabilities by id."""
    x = {i: float(v) for i, v in enumerate(logits)}
    window = history[-p.repeat_last_n :]
    for token in set(window):
        x[token] = x[token] * p.repeat_penalty if x[token] <= 0 else x[token] / p.repeat_penalty
        x[token] -= window.count(token) * p.frequency_penalty + p.presence_penalty
    order = sorted(x, key=lambda i: (-x[i], i))[: p.top_k]

    def softmax(ids: list[int], temperature: float = 1.0) -> dict[int, float]:
        weights = {i: math.exp((x[i] - max(x[j] for j in ids)) / temperature) for i in ids}
        return {i: w / sum(weights.values()) for i, w in weights.items()}

    if p.typical_p < 1:
        q = softmax(order)
        entropy = -sum(v * math.log(v) for v in q.values())
        ranked, order, total = sorted(order, key=lambda i: abs(-math.log(q[i]) - entropy)), [], 0.0
        for i in ranked:
            order.append(i)
            total += q[i]
            if total > p.typical_p:
                break
    q = softmax(order)
    ranked, order, total = sorted(order, key=lambda i: -q[i]), [], 0.0
    for i in ranked:
        order.append(i)
        total += q[i]
        if total >= p.top_p:
            break
    best = max(softmax(order).values())
    order = [i for i, v in softmax(order).items() if v >= p.min_p * best]
    return softmax(order, p.temperature)


@pytest.mark.parametrize("seed", range(4))
def test_frequencies_follow_a_naive_chain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, 60).astype(np.float32)
    history = rng.integers(0, 60, 30).tolist()
    params = SamplerParams(
        seed=seed,
        temperature=0.8,
        top_k=12,
        top_p=0.9,
        min_p=0.03,
        typical_p=[1.0, 0.8][seed % 2],
        repeat_last_n=10,
        repeat_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=0.1,
    )
    sampler = Sampler(params, 60)
    sampler.accept_prompt(history)
    n = 4000
    counts = np.bincount([sampler.sample(logits) for _ in range(n)], minlength=60)
    expected = naive_chain(logits, params, history)
    assert set(np.flatnonzero(counts)) <= set(expected)
    for token, probability in expected.items():
        assert abs(counts[token] / n - probability) < 5 * math.sqrt(probability * (1 - probability) / n) + 1e-9


def test_the_stream_is_that_of_the_cpp_standard_library() -> None:
    """std::mt19937 is specified by its 10000th number from the default seed 5489: 4123659995."""
    state = np.random.RandomState(5489)
    assert int.from_bytes(state.bytes(4 * 10000)[-4:], "little") == 4123659995
    words = np.frombuffer(np.random.RandomState(5489).bytes(8), "<u4")
    assert MersenneTwister(5489).uniform() == (int(words[0]) + int(words[1]) * 2**32) / 2**64


def test_equal_seeds_draw_equally_whatever_other_samplers_do() -> None:
    logits = np.random.default_rng(3).normal(0, 1, 500).astype(np.float32)
    params = SamplerParams(seed=42, temperature=1.2)
    alone = Sampler(params, 500)
    reference = [alone.sample(logits) for _ in range(40)]
    first, other = Sampler(params, 500), Sampler(SamplerParams(seed=7), 500)
    mixed = []
    for i in range(40):
        mixed.append(first.sample(logits))
        for _ in range(i % 3):
            other.sample(logits)
    assert mixed == reference
    third = Sampler(SamplerParams(seed=43, temperature=1.2), 500)
    assert [third.sample(logits) for _ in range(40)] != reference


@pytest.mark.parametrize("seed", [-1, 0xFFFFFFFF])
def test_the_random_seed_differs_between_samplers(seed: int) -> None:
    logits = np.zeros(1000, np.float32)
    texts = {
        tuple(sampler.sample(logits) for _ in range(8))
        for sampler in [Sampler(SamplerParams(seed=seed, top_k=0), 1000) for _ in range(3)]
    }
    assert len(texts) == 3


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_greedy_takes_the_best_and_of_equals_the_first(temperature: float) -> None:
    logits = np.array([0, 3, 1, 3], np.float32)
    for seed in range(3):
        assert Sampler(SamplerParams(seed=seed, temperature=temperature), 4).sample(logits) == 1


def test_greedy_still_applies_bias_penalties_and_typical() -> None:
    logits = np.array([2.0, 2.5, 0], np.float32)
    greedy: dict[str, Any] = {"temperature": 0.0, "seed": 0}
    assert Sampler(SamplerParams(**greedy, logit_bias={1: -5.0, 77: 9.0}), 3).sample(logits) == 0
    assert Sampler(SamplerParams(**greedy, ignore_eos=True), 3, eog_ids=[1]).sample(logits) == 0
    sampler = Sampler(SamplerParams(**greedy, repeat_penalty=2.0), 3)
    sampler.accept(1)
    assert sampler.sample(logits) == 0
    skewed = np.log(np.array([0.4, 0.2, 0.2, 0.2], np.float32))
    assert Sampler(SamplerParams(**greedy, typical_p=0.5), 4).sample(skewed) == 1


def test_the_window_of_penalties_forgets() -> None:
    logits = np.array([1.0, 0.9, 0, 0, 0, 0, 0], np.float32)
    sampler = Sampler(SamplerParams(temperature=0.0, repeat_penalty=2.0, repeat_last_n=2), 7)
    sampler.accept_prompt([0, 0])
    assert sampler.sample(logits) == 1
    sampler.accept_prompt([5, 6])
    assert sampler.sample(logits) == 0


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_bad_logits_are_an_error(bad: list[float], temperature: float) -> None:
    logits = np.array(bad, np.float32)
    with pytest.raises(SamplingError, match="logits hold"):
        Sampler(SamplerParams(temperature=temperature), 2).sample(logits)
    with pytest.raises(SamplingError):
        logprobs(logits, 0, 1)


def test_dynamic_temperature_formula() -> None:
    from localllm.sampling.temperature import Temperature

    p = np.array([0.5, 0.25, 0.125, 0.125], np.float32)
    share = 1.75 * math.log(2) / math.log(4)
    temperature = 0.3 + (1.3 - 0.3) * share**0.7
    candidates = Candidates(np.log(p))
    Temperature(0.8, 0.5, 0.7).apply(candidates)
    expected = p ** (1 / temperature)
    assert candidates.probabilities() == pytest.approx(expected / expected.sum(), rel=1e-4)


def test_mirostat_2_truncates_and_learns() -> None:
    from localllm.sampling.mirostat import Mirostat

    p = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32)
    mirostat = Mirostat(tau=1.0, eta=0.1, seed=5)
    chosen = mirostat.select(Candidates(np.log(p)))
    kept = p[:2] / p[:2].sum()  # surprise of at most 2 bits
    assert chosen in (0, 1)
    assert mirostat.mu == pytest.approx(2 - 0.1 * (-math.log2(kept[chosen]) - 1.0), rel=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise_near_tau(version: int) -> None:
    n = 5000
    p = 1 / np.arange(1, n + 1, dtype=np.float64) ** 1.1
    p /= p.sum()
    logits = np.log(p).astype(np.float32)
    params = SamplerParams(seed=9, temperature=1.0, mirostat=version, mirostat_tau=3.0, top_k=1)
    sampler = Sampler(params, n)
    tokens = [sampler.sample(logits) for _ in range(600)]
    assert len(set(tokens)) > 5  # top_k does not take part
    surprise = -np.log2(p[tokens[100:]]).mean()
    assert 2.0 < surprise < 4.5


def test_logprobs_are_those_of_the_model() -> None:
    logits = np.array([-0.693147, -1.203973, -1.609438, -30], np.float32)
    value, top = logprobs(logits, 0, 2)
    assert value == pytest.approx(math.log(0.5), abs=1e-4)
    assert [i for i, _ in top] == [0, 1]
    assert [v for _, v in top] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-4)
    assert logprobs(logits, 2) == (pytest.approx(math.log(0.2), abs=1e-4), [])


def test_params_from_options() -> None:
    options = {"temperature": 0.5, "top_k": None, "num_ctx": 9, "logit_bias": {"5": 1}, "dry_sequence_breakers": ["x"]}
    params = SamplerParams.from_options(options)
    assert (params.temperature, params.top_k, params.logit_bias) == (0.5, 40, {5: 1.0})
    assert params.dry_sequence_breakers == ("x",)
    assert SamplerParams.from_options({"logit_bias": [[3, -2.5]]}).logit_bias == {3: -2.5}


@pytest.mark.parametrize(
    "options", [{"repeat_penalty": 0.0}, {"temperature": math.nan}, {"top_p": math.inf}, {"mirostat": 3}]
)
def test_values_that_no_formula_can_take(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        SamplerParams.from_options(options)


@given(st.lists(st.integers(0, 2), max_size=40))
def test_z_lengths(sequence: list[int]) -> None:
    n = len(sequence)
    naive = [next((m for m in range(n - i, 0, -1) if sequence[:m] == sequence[i : i + m]), 0) for i in range(1, n)]
    assert z_lengths(sequence)[1:] == naive


def test_breakers_inside_and_across_tokens() -> None:
    pieces = [b"a", b"x\n", b"foo<", b"<|", b"end", b"\n"]
    breakers = find_breakers(["\n", "<|", ""], pieces, lambda text: [len(text)])
    assert breakers == {1: [[]], 5: [[]], 2: [[1]], 3: [[]]}


def test_a_breaker_of_several_tokens_ends_the_repeat() -> None:
    from localllm.sampling.dry import Dry

    def penalised(breakers: dict[int, list[list[int]]]) -> bool:
        dry = Dry(1.0, 2.0, 2, -1, breakers)
        for token in [0, 1, 2, 3, 9, 0, 1, 2]:
            dry.accept(token)
        logits = np.zeros(10, np.float32)
        dry.apply(logits)
        return bool(logits[3] < 0)

    assert penalised({})
    assert penalised({0: [[7]]})
    assert not penalised({0: [[1]]})


@pytest.mark.parametrize("more", [{}, {"xtc_probability": 0.5, "xtc_threshold": 0.1}, {"mirostat": 2}, {"mirostat": 1}])
def test_passing_over_a_token_is_like_sampling_it_without_a_choice(more: dict[str, Any]) -> None:
    params = SamplerParams(seed=3, repeat_penalty=1.2, temperature=1.0, top_p=1.0, min_p=0.0, **more)
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    only = np.where(np.arange(50) == 7, logits, np.float32(-np.inf))
    one, other = Sampler(params, 50), Sampler(params, 50)
    for _ in range(20):
        assert one.sample(only) == 7
        one.accept(7)
        other.pass_over(7)
        token = one.sample(logits)
        assert other.sample(logits) == token
        one.accept(token)
        other.accept(token)
