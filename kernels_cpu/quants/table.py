"""The quant types that have kernels, by ggml type id."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_cpu import KernelError
from kernels_cpu.compile import Kernel
from kernels_cpu.quants import (
    bf16,
    f16,
    f32,
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    iq4_nl,
    iq4_xs,
    mxfp4,
    nvfp4,
    q1_0,
    q2_0,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    tq1_0,
    tq2_0,
)
from kernels_cpu.quants.floats import FloatFormat
from kernels_cpu.quants.format import Format


@dataclass(frozen=True)
class QuantType:
    """A format and its kernels: products with activations of 8 and 16 bits (float types: the same, of float32)."""

    format: Format | FloatFormat
    linear: Kernel
    linear_16: Kernel
    embedding: Kernel

    @property
    def takes_floats(self) -> bool:
        """Whether activations stay float32 (else they are quantised to 8 bits)."""
        return isinstance(self.format, FloatFormat)


_MODULES = (
    *(f32, f16, bf16),
    *(q4_0, q4_1, q5_0, q5_1, q8_0),
    *(q2_k, q3_k, q4_k, q5_k, q6_k),
    *(iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq4_nl, iq4_xs),
    *(mxfp4, nvfp4, tq1_0, tq2_0, q1_0, q2_0),
)
QUANT_TYPES = {m.FORMAT.type_id: QuantType(m.FORMAT, m.linear, m.linear_16, m.embedding) for m in _MODULES}


def quant_type(type_id: int, tensor: str) -> QuantType:
    """The type of a tensor. Raises: KernelError naming the tensor and the types that are supported."""
    if type_id not in QUANT_TYPES:
        known = ", ".join(q.format.name for q in QUANT_TYPES.values())
        raise KernelError(f"tensor `{tensor}`: unsupported quant type {type_id} (supported: {known})")
    return QUANT_TYPES[type_id]
