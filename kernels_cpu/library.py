"""What LLVM does with the code of a kernel; it does not know how the code came about.

Numba optimises each module of a library, links them, and optimises the whole twice more, in between taking out counts
of references. Kernels count none, so that one optimisation of the whole will do. Vectors are written out and inner
loops unrolled, so that looking for vectors in loops would cost time and gain nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary
from numba.core.typing.templates import Signature

OPTIMISATION = 2


class KernelLibrary(JITCodeLibrary):
    """The modules of one kernel."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.subroutines: dict[tuple[Callable[..., Any], Signature], Any] = {}
        """Numba's descriptors of the functions that were compiled for this library."""
        self._private: list[str] = []

    def keep_private(self, *names: str) -> None:
        """Functions and variables of these names are nobody's but this library's.

        Numba numbers functions in each process anew, so that two of different processes may have the same name. Were
        they visible, then of libraries that are loaded from the disk cache one would call what belongs to another.
        """
        self._private += names

    def add_llvm_module(self, ll_module: Any) -> None:
        """Links a module into the library, as it is."""
        self._final_module.link_in(ll_module)

    def _optimize_final_module(self) -> None:
        module = self._final_module
        module.data_layout = self._codegen._data_layout
        private = set(self._private)
        for symbols in (module.functions, module.global_variables):
            for symbol in symbols:
                if symbol.name in private:
                    symbol.linkage = "internal"
        options = binding.create_pipeline_tuning_options(speed_level=OPTIMISATION)
        options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
        builder = binding.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(module, builder)
