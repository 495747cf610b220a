"""Numba's way from a function to LLVM, without what kernels have no use for; it does not know kernels.

Left out are the passes that serve arrays, closures, exceptions, `with`, unrolling over literals, Numba's own inlining,
variables that change their type, counts of references, and the annotated listing. A variable has one type throughout,
and what is not taken by a branch must have types too.
"""

from __future__ import annotations

import operator
from typing import Any

from numba import types
from numba.core import lowering
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import BaseNativeLowering, NoPythonBackend, NopythonTypeInference
from numba.core.typing.templates import Signature
from numba.core.untyped_passes import FixupArgs, IRProcessing, TranslateByteCode
from numba.extending import _Intrinsic

from kernels_cpu import KernelError
from kernels_cpu.library import KernelLibrary
from kernels_cpu.simd import Vec

OPERATORS = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "floordiv", "mod", "truediv", "and_", "or_", "xor", "lshift", "rshift"),
        *("iadd", "isub", "imul", "ifloordiv", "eq", "ne", "lt", "le", "gt", "ge"),
    )
)
PLAIN_TYPES = (types.Integer, types.Float, types.Boolean, types.Function, types.TypeRef, Vec)

_known: dict[tuple[types.Type, tuple[types.Type, ...]], Signature] = {}


class _Typing:
    """Numba's typing context, which answers at once what an operator or an intrinsic gives that it was asked before.

    Numba asks all templates of an operator, most of them NumPy's, at every operation, twice over. What it finds follows
    from the types alone where these are plain, which literals here are not: they count as their type.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, func: Any, args: tuple[types.Type, ...], kws: Any) -> Any:
        """The signature of a call."""
        plain = tuple(map(types.unliteral, args))
        if kws or not _is_simple(func) or not all(isinstance(arg, PLAIN_TYPES) for arg in plain):
            return self._context.resolve_function_type(func, args, kws)
        return _signature(self._context, func, plain)


def _is_simple(func: Any) -> bool:
    if not isinstance(func, types.Function) or any(template.prefer_literal for template in func.templates):
        return False
    return isinstance(func.typing_key, _Intrinsic) or func.typing_key in OPERATORS


def _signature(context: Any, func: Any, args: tuple[types.Type, ...]) -> Signature:
    """What `func` takes and gives for arguments of the types `args`."""
    if (func, args) not in _known:
        _known[func, args] = context.resolve_function_type(func, args, {})
    return _known[func, args]


class _Lower(lowering.Lower):
    """Lowers operators as they were typed."""

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """The value of a binary operation, without Numba's search for one that is special to a constant operand."""
        context, builder = self.context, self.builder
        func = context.typing_context.resolve_value_type(op)
        typed = _signature(context.typing_context, func, self.fndesc.calltypes[expr].args)
        operands = [
            context.cast(builder, self.loadvar(var.name), self.typeof(var.name), ty)
            for var, ty in zip((expr.lhs, expr.rhs), typed.args, strict=True)
        ]
        result = context.get_function(func, typed)(builder, operands)
        return context.cast(builder, result, typed.return_type, resty)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(BaseNativeLowering):
    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Raises: KernelError where a value would have to be counted, as nothing here does."""
        models = state.targetctx.data_model_manager
        counted = [name for name, ty in state.typemap.items() if models[ty].contains_nrt_meminfo()]
        if counted:
            raise KernelError(f"{state.func_id.func_name}: values on the heap: {', '.join(counted)}")
        return bool(super().run_pass(state))

    @property
    def lowering_class(self) -> type:
        return _Lower


PASSES = (TranslateByteCode, FixupArgs, IRProcessing, NopythonTypeInference, _Lowering, NoPythonBackend)


class KernelCompiler(CompilerBase):
    """To be given as `pipeline_class`."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *args: Any) -> None:
        super().__init__(_Typing(typing_context), target_context, library, *args)

    def compile_extra(self, func: Any) -> Any:
        """Compiles a function, where there is no library yet into one of its own."""
        if self.state.library is None:
            self.state.library = KernelLibrary(self.state.targetctx.codegen(), func.__qualname__)
            self.state.library.enable_object_caching()
        return super().compile_extra(func)

    def define_pipelines(self) -> list[PassManager]:
        """The one way of compiling."""
        passes = PassManager("kernel")
        for one in PASSES:
            passes.add_pass(one, one.__name__)
        passes.finalize()
        return [passes]
