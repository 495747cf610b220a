"""The hyperparameters that all transformer architectures share; an architecture's own ones are read in its file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels_cpu.graph import RopeSpec
from localllm.errors import UnsupportedModelError
from localllm.models.keys import MAX_NUMBER, Keys

MAX_LAYERS = 512
MIN_FREQ_BASE = 1.01
LAYER_NORMED = ("bert", "nomic-bert")
"""Architectures without RMS norms."""
MIN_SCALING_FACTOR = 1e-3


@dataclass(frozen=True)
class HParams:
    """Sizes of a model; `n_head`, `n_head_kv` and `n_ff` have one entry for each layer."""

    arch: str
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_layer: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    head_dim: int
    n_rot: int
    rms_eps: float

    def n_q(self, layer: int) -> int:
        """Width of a layer's queries, and of what attention gives."""
        return self.n_head[layer] * self.head_dim

    def n_kv(self, layer: int) -> int:
        """Width of a layer's keys, and of its values."""
        return self.n_head_kv[layer] * self.head_dim


def read_hparams(keys: Keys, n_vocab: int) -> HParams:
    """The shared hyperparameters of a model with a vocabulary of `n_vocab` tokens.

    Raises:
        GGUFError: a key is missing, has a wrong type or does not go with the others.
        UnsupportedModelError: the file is right, but asks for what is not supported.
    """
    n_layer = keys.integer("block_count", low=1, high=MAX_LAYERS)
    n_embd = keys.integer("embedding_length", low=1)
    n_head = keys.integer_per_layer("attention.head_count", n_layer, low=1)
    n_head_kv = keys.integer_per_layer("attention.head_count_kv", n_layer, n_head, low=1)
    _check_heads(keys, n_head, n_head_kv)
    head_dim = _head_dim(keys, n_embd, n_head[0])
    n_rot = keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if n_rot % 2:
        raise keys.error("rope.dimension_count", "an even number", n_rot)
    _refuse_what_is_not_supported(keys)
    return HParams(
        arch=keys.arch,
        n_ctx_train=keys.integer("context_length", low=1),
        n_vocab=n_vocab,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_ff=keys.integer_per_layer("feed_forward_length", n_layer, low=1),
        head_dim=head_dim,
        n_rot=n_rot,
        rms_eps=_rms_eps(keys),
    )


def _rms_eps(keys: Keys) -> float:
    """0 where there are layer norms instead."""
    return keys.number("attention.layer_norm_rms_epsilon", 0.0 if keys.arch in LAYER_NORMED else None, low=0.0)


def read_rope(keys: Keys, n_ctx_train: int) -> RopeSpec:
    """The rotary embedding that `rope.*` describes, without per-pair factors.

    With YaRN, llama.cpp's `yarn_log_multiplier` m replaces the magnitude by (1 + 0.1 ln f) / (1 + 0.1 m ln f) for
    f = 1 / freq_scale.
    """
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(f"unsupported rope scaling: `{kind}` (supported: linear, none, yarn)")
    freq_base = keys.number("rope.freq_base", 10000.0, low=MIN_FREQ_BASE)
    freq_scale = 1.0 if kind == "none" else 1.0 / _scaling_factor(keys)
    ext_factor = keys.number("rope.scaling.yarn_ext_factor", -1.0)
    if ext_factor < 0:
        ext_factor = 1.0 if kind == "yarn" else 0.0
    attn_factor = keys.number("rope.scaling.attn_factor", 1.0)
    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if ext_factor == 0.0:
        attn_factor *= keys.number("rope.scaling.yarn_attn_factor", 1.0)
    elif freq_scale > 1.0:
        attn_factor /= 1.0 + 0.1 * math.log(1.0 / freq_scale)
    elif log_multiplier:
        attn_factor /= 1.0 + 0.1 * log_multiplier * math.log(1.0 / freq_scale)
    return RopeSpec(
        freq_base=freq_base,
        freq_scale=freq_scale,
        ext_factor=ext_factor,
        attn_factor=attn_factor,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, low=1e-6),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, low=1e-6),
        n_ctx_orig=keys.integer("rope.scaling.original_context_length", 0) or n_ctx_train,
    )


def _scaling_factor(keys: Keys) -> float:
    """How much longer the context was made: 1.0 where the file says 0 or nothing."""
    key = "rope.scaling.factor" if "rope.scaling.factor" in keys else "rope.scale_linear"
    factor = keys.number(key, 0.0, low=0.0)
    if 0.0 < factor < MIN_SCALING_FACTOR:
        raise keys.error(key, f"0 or a number in {MIN_SCALING_FACTOR:g}..{MAX_NUMBER:g}", factor)
    return factor or 1.0


def _check_heads(keys: Keys, n_head: tuple[int, ...], n_head_kv: tuple[int, ...]) -> None:
    for layer, (heads, heads_kv) in enumerate(zip(n_head, n_head_kv, strict=True)):
        if heads % heads_kv:
            raise keys.error("attention.head_count_kv", f"a divisor of layer {layer}'s {heads} heads", heads_kv)


def _head_dim(keys: Keys, n_embd: int, n_head: int) -> int:
    key_length = keys.integer("attention.key_length", 0)
    if key_length == 0 and n_embd % n_head:
        raise keys.error("attention.head_count", f"a divisor of embedding_length = {n_embd}", n_head)
    head_dim = key_length or n_embd // n_head
    value_length = keys.integer("attention.value_length", 0) or n_embd // n_head
    if value_length != head_dim:
        raise UnsupportedModelError(f"unsupported head sizes: keys of {head_dim} and values of {value_length} elements")
    return head_dim


def _refuse_what_is_not_supported(keys: Keys) -> None:
    n_expert = keys.integer("expert_count", 0)
    if n_expert > 0:
        raise UnsupportedModelError(f"unsupported model: `{keys.arch}` with {n_expert} experts (supported: dense)")
    if keys.number("attention.clamp_kqv", 0.0) > 0:
        raise UnsupportedModelError(f"unsupported model: `{keys.arch}` with attention.clamp_kqv")
