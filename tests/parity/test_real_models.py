"""Real models against exact arithmetic: no further from it than llama.cpp is, on the same files.

The references hold, for some 900 teacher-forced tokens of varied text, the likeliest next tokens and
their log probabilities by a float32 run of the dequantised weights, and llama.cpp's own mean distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from localllm.engine import Engine, Entry
from localllm.gguf import open_gguf
from localllm.tokenizer import load_tokenizer

pytestmark = [pytest.mark.parity, pytest.mark.integration, pytest.mark.timeout(900)]

# llama.cpp's agreement with the exact run on the likeliest token.
TOP1_LLAMACPP = {"smollm2:135m": 0.968, "gemma3:270m": 0.953}
# llama.cpp's own logits are further from the exact ones than ours: where its lead is 0.34, the exact lead is 0.17.
NEAR_TIE = 0.4


@dataclass
class Case:
    """A loaded model and its reference."""

    name: str
    engine: Engine
    reference: dict[str, np.ndarray]

    def logits(self, ids: list[int], chunk: int) -> np.ndarray:
        """All logits of a text, evaluated in chunks: float32 [n, n_vocab]."""
        seq = self.engine.open_sequence()
        parts = []
        for i in range(0, len(ids), chunk):
            (found,) = self.engine.step([Entry(seq, ids[i : i + chunk], "all")])
            assert found is not None
            parts.append(found.copy())
        seq.close()
        return np.concatenate(parts)


@pytest.fixture(scope="module", params=list(TOP1_LLAMACPP))
def case(request: pytest.FixtureRequest, real_model: Callable[[str], Path], fixtures_dir: Path) -> Iterator[Case]:
    with open_gguf(real_model(request.param)) as gguf:
        engine = Engine.load(gguf, n_ctx=2048, n_slots=2)
        path = fixtures_dir / "real" / f"{request.param.replace(':', '-')}.npz"
        with np.load(path) as reference:
            yield Case(request.param, engine, dict(reference))
        engine.close()


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def divergence(exact: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """KL(exact || ours) in nats over the 256 recorded tokens and one bucket for all others: [n].

    The bucket makes it a little less than the whole sum, here by less than 1e-5.
    """
    p, q = np.exp(exact), np.exp(ours)
    rest_p, rest_q = np.maximum(1 - p.sum(axis=1), 1e-12), np.maximum(1 - q.sum(axis=1), 1e-12)
    return (p * (exact - ours)).sum(axis=1) + rest_p * np.log(rest_p / rest_q)


def test_no_further_from_exact_than_llamacpp(case: Case) -> None:
    ids, top = case.reference["tokens"].tolist(), case.reference["top_ids"]
    ours = log_probabilities(case.logits(ids, 100))
    kl = divergence(case.reference["top_logp"].astype(np.float64), np.take_along_axis(ours, top, axis=1)).mean()
    top1 = (ours.argmax(axis=1) == top[:, 0]).mean()
    print(f"{case.name}: mean KL {kl:.2e} (llama.cpp {case.reference['kl_llamacpp']:.2e}), top-1 {top1:.3f}")
    assert kl <= 0.6 * case.reference["kl_llamacpp"]
    assert top1 >= TOP1_LLAMACPP[case.name]


def test_greedy_text_is_llamacpps_up_to_near_ties(case: Case) -> None:
    """64 greedy tokens after each of 20 prompts; beyond a step where two tokens were close, texts may part."""
    compared = 0
    ref = case.reference
    for prompt, want, gaps in zip(ref["prompt_ids"], ref["greedy_ids"], ref["greedy_gap"], strict=True):
        seq = case.engine.open_sequence()
        (logits,) = case.engine.step([Entry(seq, prompt[prompt >= 0].tolist(), "last")])
        for token, gap in zip(want.tolist(), gaps, strict=True):
            assert logits is not None
            got = int(np.argmax(logits[0]))
            if got != token:
                assert gap <= NEAR_TIE, f"{prompt}: {got} and not {token} where llama.cpp's lead is {gap:.2f}"
                break
            compared += 1
            (logits,) = case.engine.step([Entry(seq, [token], "last")])
        seq.close()
    assert compared > 200


def test_the_published_ids_of_the_prompts(case: Case, real_model: Callable[[str], Path]) -> None:
    with open_gguf(real_model(case.name)) as gguf:
        tokenizer = load_tokenizer(gguf)
    prompts = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a small village"]
    for text, ids in zip(prompts, case.reference["prompt_ids"], strict=False):
        assert tokenizer.encode(text) == ids[ids >= 0].tolist()


def test_bits_do_not_depend_on_chunks(case: Case) -> None:
    ids = case.reference["tokens"].tolist()[:70]
    whole = case.logits(ids, 70)
    for chunk in (1, 7, 33):
        np.testing.assert_array_equal(case.logits(ids, chunk), whole)
