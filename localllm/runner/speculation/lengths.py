"""How much of each draft is worth evaluating; it knows neither tokens nor where drafts come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# A step with drafts must promise so many times the rate of one without: what is promised is a guess, and drafts take
# time outside of the step too.
MIN_GAIN = 1.12


def best_lengths(
    chances: Sequence[Sequence[float]], cost: Callable[[int], float], n_certain: int, n_rows: int
) -> list[int]:
    """For each of the sequences in a step of `n_certain` rows the length of its draft, at most `n_rows` more in all.

    `chances[i][j]` is the chance that the first j + 1 tokens of draft i come, and falls with j; `cost` gives that of a
    step by its rows. A step brings a token for each sequence and those of the drafts that come; the lengths are those
    that bring the most for the cost.
    """
    n = len(chances)
    tokens = sorted(((chance, -j, i) for i, row in enumerate(chances) for j, chance in enumerate(row)), reverse=True)
    best_rate, n_best, expected = MIN_GAIN * n / cost(n_certain) if n else 0.0, 0, float(n)
    for k, (chance, _, _) in enumerate(tokens[:n_rows], 1):
        expected += chance
        if (rate := expected / cost(n_certain + k)) > best_rate:
            best_rate, n_best = rate, k
    lengths = [0] * n
    for _, _, i in tokens[:n_best]:
        lengths[i] += 1
    return lengths
