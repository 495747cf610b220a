"""Which CPU path the kernels are compiled for; it knows instruction sets but emits none.

Paths, best first: `avx512` (AVX-512 with VNNI), `avxvnni` (AVX2 with its VNNI, as laptops have it), `avx2` (AVX2 with
FMA and F16C), `neon` (Arm with dot products), `portable` (plain LLVM vectors, no target intrinsic). The first, second
and fourth have been compiled but never run by their authors. The host's features choose; `LOCALLLM_CPU` forces a lower
one, so that one machine can test them all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import llvmlite.binding as llvm

from kernels_cpu import KernelError

PATHS = ("avx512", "avxvnni", "avx2", "neon", "portable")

_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"}
_AVX2 = {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt"}
# What a forced lower path may use, spelled for LLVM: everything above it is switched off.
_CPU_NAME = {"avxvnni": "alderlake", "avx2": "haswell", "portable": "x86-64"}


@dataclass(frozen=True)
class Target:
    """A CPU path with the LLVM processor name and feature string it compiles for."""

    path: str
    cpu_name: str
    features: str


def _host_features() -> dict[str, bool]:
    return dict(llvm.get_host_cpu_features())


def _best_path(machine: str, features: dict[str, bool]) -> str:
    on = {name for name, enabled in features.items() if enabled}
    if machine in ("x86_64", "amd64"):
        if on >= _AVX512 | _AVX2:
            return "avx512"
        if on >= _AVX2:
            return "avxvnni" if "avxvnni" in on else "avx2"
        return "portable"
    if machine in ("aarch64", "arm64") and "dotprod" in on:
        return "neon"
    return "portable"


def _forced_features(path: str) -> str:
    if path == "portable":
        return "+sse2,+cx16"
    extra = {"avxvnni"} if path == "avxvnni" else set()
    return ",".join(f"+{name}" for name in sorted(_AVX2 | extra | {"sse4.2", "ssse3", "avx", "cx16", "sahf"}))


def detect(force: str | None = None) -> Target:
    """The target for this host; `force` (default: the variable LOCALLLM_CPU) names a lower path.

    Raises: KernelError when the forced path is unknown or needs features that the host lacks.
    """
    force = os.environ.get("LOCALLLM_CPU", "").strip() if force is None else force
    machine = llvm.get_process_triple().split("-")[0]
    features = _host_features()
    best = _best_path(machine, features)
    if not force or force == best:
        spelled = ",".join(("+" if on else "-") + name for name, on in sorted(features.items()))
        return Target(best, llvm.get_host_cpu_name(), spelled)
    if force not in PATHS:
        raise KernelError(f'unknown CPU path: LOCALLLM_CPU="{force}" (expected one of: {", ".join(PATHS)})')
    lacks_vnni = force == "avxvnni" and not features.get("avxvnni")
    if PATHS.index(force) < PATHS.index(best) or force == "neon" or lacks_vnni:
        raise KernelError(f'LOCALLLM_CPU="{force}" needs a CPU that this host is not (its best path: {best})')
    if machine not in ("x86_64", "amd64"):
        return Target("portable", llvm.get_host_cpu_name(), "")
    return Target(force, _CPU_NAME[force], _forced_features(force))


TARGET = detect()
