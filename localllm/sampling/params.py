"""The parameters of the sampler chain, with llama.cpp's defaults; it knows nothing of where they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from localllm.errors import OptionError

RANDOM_SEED = 0xFFFFFFFF
DRY_SEQUENCE_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True)
class SamplerParams:
    """One request's sampling parameters; names are those of the API options.

    A window (`repeat_last_n`, `dry_penalty_last_n`) of 0 is off, a negative one is the whole history.
    A negative `seed`, or 0xFFFFFFFF, means a fresh random seed per sampler. `temperature` <= 0 is greedy.
    """

    seed: int = RANDOM_SEED
    min_keep: int = 0
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = DRY_SEQUENCE_BREAKERS
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: OptionError for a value that no formula can take."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise OptionError(f'option "{f.name}" must be a finite number, not {value}')
        if self.repeat_penalty <= 0:
            raise OptionError(f'option "repeat_penalty" must be above 0, not {self.repeat_penalty}')
        if self.mirostat not in (0, 1, 2):
            raise OptionError(f'option "mirostat" must be 0, 1 or 2, not {self.mirostat}')

    @property
    def is_dry_enabled(self) -> bool:
        return self.dry_multiplier != 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> SamplerParams:
        """Take what concerns sampling out of the model options; absent or null entries keep the default."""
        names = {f.name for f in fields(cls)}
        given = {name: value for name, value in options.items() if name in names and value is not None}
        if "dry_sequence_breakers" in given:
            given["dry_sequence_breakers"] = tuple(given["dry_sequence_breakers"])
        if "logit_bias" in given:
            given["logit_bias"] = {int(token): float(bias) for token, bias in _pairs(given["logit_bias"])}
        return cls(**given)


def _pairs(logit_bias: Any) -> list[tuple[Any, Any]]:
    """Both spellings in use: {"id": bias} and [[id, bias], ...]."""
    if isinstance(logit_bias, Mapping):
        return list(logit_bias.items())
    return [(token, bias) for token, bias in logit_bias]
