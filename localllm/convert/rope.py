"""Reads what a config.json says of rotary embeddings, in old and new spellings; it knows no architecture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localllm.convert.folder import Config
from localllm.gguf.writer import MetadataValue


@dataclass(frozen=True)
class Rope:
    """`metadata` has keys without the architecture; `factors` float32 [n_rot / 2] divide the frequencies, or None."""

    metadata: dict[str, MetadataValue]
    factors: npt.NDArray[np.float32] | None = None


def rope_config(config: Config, kind: str = "full_attention") -> Config:
    """The rotary parameters: `rope_parameters` (of a `kind` of layers), or `rope_scaling` and `rope_theta`."""
    rope = config.inner("rope_parameters")
    if kind in rope:
        rope = rope.inner(kind)
    if not rope.values:
        rope = config.inner("rope_scaling")
    return rope if "rope_theta" in rope else Config(rope.path, {**rope.values, "rope_theta": config.get("rope_theta")})


def read_rope(config: Config, n_rot: int, supported: Sequence[str], freq_base: float = 10000.0) -> Rope:
    """The rotary embedding of `n_rot` elements of a head, whose kind must be one of `supported`.

    `dynamic` changes nothing within the trained context, which is all that a GGUF promises.

    Raises:
        ConvertError: another kind, or numbers that cannot be.
    """
    rope = rope_config(config)
    base = rope.number("rope_theta", default=freq_base, low=1.01)
    metadata: dict[str, MetadataValue] = {"rope.dimension_count": n_rot, "rope.freq_base": base}
    kind = rope.string("rope_type", "type", default="default")
    if kind not in ("default", "dynamic", *supported):
        raise rope.error("rope_type", kind, f"one of default, dynamic, {', '.join(supported)}")
    if kind == "linear":
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": _factor(rope)}
    elif kind == "yarn":
        metadata |= _yarn(config, rope)
    elif kind == "llama3":
        return Rope(metadata, llama3_factors(rope, n_rot, base))
    return Rope(metadata)


def _factor(rope: Config) -> float:
    return rope.number("factor", low=1e-3, high=1e6)


def _yarn(config: Config, rope: Config) -> dict[str, MetadataValue]:
    """YaRN; a GGUF's attn_factor multiplies the usual magnitude 0.1 ln(factor) + 1."""
    factor = _factor(rope)
    trained = config.integer("max_position_embeddings")
    metadata: dict[str, MetadataValue] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": rope.integer(
            "original_max_position_embeddings", default=trained, low=1
        ),
        "rope.scaling.yarn_beta_fast": rope.number("beta_fast", default=32.0, low=1e-6),
        "rope.scaling.yarn_beta_slow": rope.number("beta_slow", default=1.0, low=1e-6),
    }
    if rope.flag("truncate", True) is False:
        raise rope.error("truncate", False, "true")
    mscale, all_dim = rope.number("mscale", default=0.0), rope.number("mscale_all_dim", default=0.0)
    magnitude = _magnitude(factor, 1.0)
    if mscale and all_dim:
        magnitude = _magnitude(factor, mscale) / _magnitude(factor, all_dim)
    magnitude = rope.number("attention_factor", default=magnitude, low=1e-6)
    metadata["rope.scaling.attn_factor"] = magnitude / _magnitude(factor, 1.0)
    return metadata


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def llama3_factors(rope: Config, n_rot: int, base: float) -> npt.NDArray[np.float32]:
    """What Llama 3.1 divides the frequency of each pair by: long waves are stretched, short ones are not.

    Source: the rope scaling of Llama 3.1, as its configuration's four numbers define it.
    """
    factor, trained = _factor(rope), rope.number("original_max_position_embeddings", low=1)
    low = rope.number("low_freq_factor", low=1e-6)
    high = rope.number("high_freq_factor", low=low * (1 + 1e-9))
    waves = 2 * math.pi * base ** (np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)
    smooth = (trained / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(waves < trained / high, 1.0, np.where(waves > trained / low, factor, between))
    return factors.astype(np.float32)
