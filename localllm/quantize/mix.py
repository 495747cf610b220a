"""Which type each tensor gets in a preset; it reads no data and writes nothing.

Facts of llama.cpp's `llama-quantize`, b11434: the same tensors get the same types. A rule looks at what a tensor is
for, which one of its kind it is, and a few traits of the model; None leaves it the preset's base type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localllm.gguf.header import TensorHeader
from localllm.gguf.types import GGMLType
from localllm.quantize.kept import keeps_type
from localllm.quantize.presets import Preset
from localllm.quantize.traits import Traits

Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = (GGMLType[f"Q{n}_K"] for n in range(2, 7))
Q8_0 = GGMLType.Q8_0
FLOATS = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})

# The first part that a name holds says what a tensor is for.
_ROLES = (
    *(("attn_qkv.weight", "attn_v"), ("attn_kv_b.weight", "attn_v"), ("attn_v.weight", "attn_v")),
    *(("attn_k.weight", "attn_k"), ("attn_q.weight", "attn_q"), ("attn_output.weight", "attn_output")),
    *(("ffn_up", "ffn_up"), ("ffn_gate", "ffn_gate"), ("ffn_down", "ffn_down")),
)
_OUTPUT = "output.weight"
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")

# Where rows hold no whole number of a type's blocks: blocks of 32, of about as many bits or more.
_FALLBACKS = {
    Q2_K: GGMLType.Q4_0,
    Q3_K: GGMLType.Q4_0,
    GGMLType.TQ1_0: GGMLType.Q4_0,
    GGMLType.TQ2_0: GGMLType.Q4_0,
    GGMLType.IQ4_XS: GGMLType.IQ4_NL,
    Q4_K: GGMLType.Q5_0,
    Q5_K: GGMLType.Q5_1,
    Q6_K: GGMLType.Q8_0,
}


@dataclass(frozen=True)
class Place:
    """Where a tensor stands: the `i`-th of `n` of its role, in a model with these traits."""

    i: int
    n: int
    traits: Traits
    has_imatrix: bool

    @property
    def gets_more(self) -> bool:
        """The first and the last eighth, and every third one between them."""
        eighth = self.n // 8
        return self.i < eighth or self.i >= 7 * self.n // 8 or (self.i - eighth) % 3 == 2

    @property
    def is_early(self) -> bool:
        return self.i < self.n // 8

    @property
    def shares_heads(self) -> bool:
        """Whether four queries or more share a value head, so that values are few."""
        return self.traits.n_gqa >= 4


Rule = Callable[[Place], GGMLType | None]

_ATTN_V: dict[str, Rule] = {
    "Q2_K": lambda p: Q4_K if p.shares_heads else Q3_K,
    "Q2_K_S": lambda p: Q4_K if p.shares_heads else None,
    "Q3_K_M": lambda p: Q5_K if p.i < 2 else Q4_K,
    "Q3_K_L": lambda p: Q5_K,
    "Q4_K_S": lambda p: Q5_K if p.i < 4 else None,
    "Q4_K_M": lambda p: Q6_K if p.gets_more else None,
    "Q5_K_M": lambda p: Q6_K if p.gets_more else None,
    "IQ4_NL": lambda p: Q5_K if p.shares_heads else None,
    "IQ4_XS": lambda p: Q5_K if p.shares_heads else None,
}
_FFN_DOWN: dict[str, Rule] = {
    "Q2_K": lambda p: Q3_K,
    "Q2_K_S": lambda p: Q4_K if p.is_early else None,
    "Q3_K_M": lambda p: Q5_K if p.i < p.n // 16 else Q4_K,
    "Q3_K_L": lambda p: Q5_K,
    "Q4_K_S": lambda p: Q5_K if p.is_early else None,
    "Q4_K_M": lambda p: Q6_K if p.gets_more else None,
    "Q5_K_M": lambda p: Q6_K if p.gets_more else None,
    "IQ4_NL": lambda p: Q5_K if p.is_early and not p.has_imatrix else None,
    "IQ4_XS": lambda p: Q5_K if p.is_early and not p.has_imatrix else None,
    "Q4_0": lambda p: GGMLType.Q4_1 if p.is_early and p.has_imatrix else None,
    "Q5_0": lambda p: GGMLType.Q5_1 if p.is_early and p.has_imatrix else None,
}
_FFN_DOWN_OF_FALCON: dict[str, Rule] = {
    "Q3_K_M": lambda p: Q5_K if p.i < p.n // 16 else Q4_K if p.gets_more else Q3_K,
    "Q3_K_L": lambda p: Q4_K,
    "Q4_K_S": lambda p: None,
    "Q4_K_M": lambda p: Q6_K if p.i < p.n // 16 else Q5_K if p.gets_more else Q4_K,
}
_ATTN_OUTPUT = {"Q2_K": Q3_K, "Q3_K_M": Q4_K, "Q3_K_L": Q5_K}
_ATTN_OUTPUT_OF_FALCON = {"Q3_K_L": Q4_K}
_ATTN_OUTPUT_OF_8_EXPERTS = dict.fromkeys(("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"), Q5_K)


def choose_types(
    tensors: Iterable[TensorHeader], preset: Preset, traits: Traits, *, has_imatrix: bool = False
) -> dict[str, GGMLType]:
    """The type of every tensor, by name; those that are never quantised keep theirs."""
    listed = sorted(tensors, key=_rank)
    chooser = _Chooser(listed, preset, traits, has_imatrix)
    return {tensor.name: chooser.type_of(tensor) for tensor in listed}


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)", name)
    return int(match[1]) if match else -1


def _rank(tensor: TensorHeader) -> tuple[int, bytes]:
    """Layer by layer, then by name: the order in which tensors of a role are counted."""
    return _layer(tensor.name), tensor.name.encode()


def role_of(name: str) -> str | None:
    """What a tensor is for, as far as a rule asks. A fused `attn_qkv` counts as `attn_v`."""
    return next((role for part, role in _ROLES if part in name), None)


class _Chooser:
    """Goes through the tensors of a model in order and counts those of a role."""

    def __init__(self, listed: list[TensorHeader], preset: Preset, traits: Traits, has_imatrix: bool) -> None:
        self._preset, self._traits, self._has_imatrix = preset, traits, has_imatrix
        self._is_tied = all(tensor.name != _OUTPUT for tensor in listed)
        self._n_attn_v = sum(1 for tensor in listed if role_of(tensor.name) == "attn_v")
        self._seen = {"attn_v": 0, "ffn_down": 0}

    def type_of(self, tensor: TensorHeader) -> GGMLType:
        if keeps_type(tensor, self._traits.architecture):
            return tensor.type
        if self._preset.base in FLOATS:
            return self._preset.base
        return _fitting(tensor, self._wanted(tensor))

    def _wanted(self, tensor: TensorHeader) -> GGMLType:
        if _stays_at_8_bits(tensor.name, self._traits.architecture):
            return Q8_0
        if tensor.name == _OUTPUT or (self._is_tied and tensor.name in _EMBEDDINGS):
            return self._of_head(tensor)
        if self._preset.base is GGMLType.MXFP4:
            return self._of_experts(tensor)
        if tensor.name in _EMBEDDINGS:
            return Q4_K if self._preset.name in ("TQ1_0", "TQ2_0") else self._preset.base
        return self._of_role(tensor.name) or self._preset.base

    def _of_head(self, tensor: TensorHeader) -> GGMLType:
        base = self._preset.base
        whole = tensor.shape[0] % base.block_size == 0
        if base in (GGMLType.MXFP4, Q8_0) or not whole or self._traits.architecture == "falcon":
            return Q8_0
        return Q6_K

    def _of_experts(self, tensor: TensorHeader) -> GGMLType:
        """MXFP4 for stacks of experts, 8 bits for the rest. Bailing's third has other stacks too."""
        is_stack = len(tensor.shape) > 2 and tensor.shape[2] > 1
        if self._traits.architecture == "bailingmoe3":
            is_stack = is_stack and (role_of(tensor.name) or "").startswith("ffn_")
        return GGMLType.MXFP4 if is_stack else Q8_0

    def _of_role(self, name: str) -> GGMLType | None:
        role = role_of(name)
        if role == "attn_v":
            return self._of_attn_v()
        if role == "ffn_down":
            return self._of_ffn_down(name)
        if role == "attn_k":
            return Q8_0 if self._traits.n_expert == 8 else None
        return self._of_attn_output() if role == "attn_output" else None

    def _of_attn_v(self) -> GGMLType | None:
        place = self._next("attn_v", self._n_attn_v)
        rule = _ATTN_V.get(self._preset.name)
        chosen = rule(place) if rule else None
        if self._traits.n_expert == 8:
            return Q8_0
        if self._traits.is_70b and (chosen or self._preset.base) in (Q3_K, Q4_K):
            return Q5_K
        return chosen

    def _of_ffn_down(self, name: str) -> GGMLType | None:
        place = self._next("ffn_down", self._traits.n_layer)
        if self._traits.n_expert > 1 and _layer(name) >= 0:
            place = Place(_layer(name), place.n, self._traits, self._has_imatrix)  # a layer may have several
        rules = _FFN_DOWN | _FFN_DOWN_OF_FALCON if self._traits.architecture == "falcon" else _FFN_DOWN
        rule = rules.get(self._preset.name)
        return rule(place) if rule else None

    def _of_attn_output(self) -> GGMLType | None:
        if self._traits.architecture == "falcon":
            return _ATTN_OUTPUT_OF_FALCON.get(self._preset.name)
        types = _ATTN_OUTPUT_OF_8_EXPERTS if self._traits.n_expert == 8 else _ATTN_OUTPUT
        return types.get(self._preset.name)

    def _next(self, role: str, n: int) -> Place:
        i = self._seen[role]
        self._seen[role] += 1
        return Place(i, n, self._traits, self._has_imatrix)


def _stays_at_8_bits(name: str, architecture: str) -> bool:
    return architecture == "glm5-next" and any(part in name for part in ("attn_q_a", "attn_q_b", "nextn.eh_proj"))


def _fitting(tensor: TensorHeader, wanted: GGMLType) -> GGMLType:
    """`wanted`, or where rows do not fill its blocks a type of smaller blocks, at last F16."""
    columns = tensor.shape[0]
    if columns % wanted.block_size == 0:
        return wanted
    fallback = _FALLBACKS.get(wanted, wanted)
    return fallback if columns % fallback.block_size == 0 else GGMLType.F16
