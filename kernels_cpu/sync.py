"""Atomics, a spin barrier and calls by address, for Numba code that runs without the GIL.

A barrier lives in 16 int64 words: [0] arrivals, [8] generation, each on a cache line of its own.
Waiting spins for a short while and then yields the core at every look, so that a machine with more
runnable threads than cores slows down and does not collapse.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels_cpu.simd import AVX2, I32, I64, NEON, const, emit_ptr
from kernels_cpu.subroutine import subroutine

# Measured on two cores: more spins gain nothing when every thread has a core, and cost dearly when not.
SPINS_BEFORE_YIELD = 200


@intrinsic
def atomic_add(tyctx, addr, v):  # type: ignore[no-untyped-def]
    """Add `v` to the int64 at `addr`; gives the old value. Sequentially consistent."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return b.atomic_rmw("add", emit_ptr(b, a[0], I64), a[1], "seq_cst")

    return types.int64(types.int64, types.int64), gen


@intrinsic
def atomic_exchange(tyctx, addr, v):  # type: ignore[no-untyped-def]
    """Store `v` at `addr`; gives the old value. Sequentially consistent."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return b.atomic_rmw("xchg", emit_ptr(b, a[0], I64), a[1], "seq_cst")

    return types.int64(types.int64, types.int64), gen


@intrinsic
def atomic_load(tyctx, addr):  # type: ignore[no-untyped-def]
    """The int64 at `addr`, sequentially consistent."""
    return types.int64(types.int64), lambda ctx, b, sig, a: b.load_atomic(emit_ptr(b, a[0], I64), "seq_cst", 8)


@intrinsic
def cpu_relax(tyctx):  # type: ignore[no-untyped-def]
    """Tell the core that this is a waiting loop."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        if AVX2:
            nothing = ir.FunctionType(ir.VoidType(), [])
            b.call(cgutils.get_or_insert_function(b.module, nothing, "llvm.x86.sse2.pause"), [])
        elif NEON:
            hint = ir.FunctionType(ir.VoidType(), [I32])
            b.call(cgutils.get_or_insert_function(b.module, hint, "llvm.aarch64.hint"), [const(I32, 1)])
        return ctx.get_dummy_value()

    return types.void(), gen


@intrinsic
def call_kernel(tyctx, address, row, thread, n_threads):  # type: ignore[no-untyped-def]
    """Call the kernel at `address`."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        fty = ir.FunctionType(ir.VoidType(), [I64] * 3)
        b.call(b.inttoptr(a[0], fty.as_pointer()), a[1:])
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 4), gen


# Resolved by the JIT from the process: libc's, or the Windows kernel's.
yield_core: Any = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


@subroutine(inlined=True)
def pause(k: int) -> None:
    """The k-th look of a waiting loop: spin first, then give the core away."""
    if k < SPINS_BEFORE_YIELD:
        cpu_relax()
    else:
        yield_core()


@subroutine(inlined=True)
def barrier(state: int, n: int) -> None:
    """Wait until all n threads have arrived at the barrier whose words are at `state`."""
    if n > 1:
        generation = atomic_load(state + 64)
        if atomic_add(state, 1) == n - 1:
            atomic_exchange(state, 0)
            atomic_add(state + 64, 1)
        else:
            k = 0
            while atomic_load(state + 64) == generation:
                pause(k)
                k += 1
