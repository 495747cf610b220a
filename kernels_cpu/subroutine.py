"""Functions that kernels are made of, compiled as parts of each kernel; it does not know what they compute.

Numba compiles a helper that is an `njit` function several times over: with wrappers for Python and for C, to machine
code of its own, and once more within its caller. A subroutine is lowered into the library of its kernel, where LLVM
meets it once. It has the caller's error model: with that of kernels nothing checks for a division by zero.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core.targetconfig import ConfigStack
from numba.extending import intrinsic

from kernels_cpu.pipeline import KernelCompiler


def subroutine(returns: types.Type = types.void, inlined: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: kernels may call this function, which returns `returns`.

    It remains a function of its own, since LLVM is done sooner with several of moderate size, unless it is `inlined`.
    Integers among the arguments are int64; the others, functions too, are of the types that the call gives.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        def typed(tyctx: Any, *args: types.Type) -> Any:
            return returns(*map(_widened, args)), generate

        def generate(ctx: Any, b: Any, sig: Any, args: Any) -> Any:
            # Nothing in a kernel raises, so that no call asks whether something was.
            return ctx.call_internal_no_propagate(b, _descriptor(ctx, fn, sig, inlined), sig, args)[1]

        parameters = [inspect.Parameter("tyctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        parameters += inspect.signature(fn).parameters.values()
        typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        typed.__name__, typed.__doc__ = fn.__name__, fn.__doc__
        return intrinsic(typed)

    return decorate


def _widened(arg: types.Type) -> types.Type:
    arg = types.unliteral(arg)
    return types.int64 if isinstance(arg, types.Integer) else arg


def _descriptor(ctx: Any, fn: Callable[..., Any], sig: Any, inlined: bool) -> Any:
    """The function in the library that is being made, which gets it at the first call."""
    library = ctx.active_code_library
    made = library.subroutines
    if (fn, sig) not in made:
        flags = ConfigStack().top().copy()
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        flags.forceinline = inlined
        pipeline = KernelCompiler(ctx.typing_context, ctx, library, sig.args, sig.return_type, flags, {})
        found = pipeline.compile_extra(fn)
        library.keep_private(found.fndesc.llvm_func_name, ctx.get_env_name(found.fndesc))
        if not inlined:
            library.get_function(found.fndesc.llvm_func_name).add_function_attribute("noinline")
        made[fn, sig] = found.fndesc
    return made[fn, sig]
