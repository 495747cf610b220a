"""Memory counts where it is touched only, and code that is given back still runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from kernels_cpu.memory import give_back_code, untouched


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_untouched_memory_is_zeros_that_take_nothing() -> None:
    before = resident_bytes()
    arrays = [untouched(1 << 20) for _ in range(64)]
    assert resident_bytes() - before < 16 << 20
    for array in arrays:
        assert array.shape == (1 << 20,) and array.dtype == np.uint8 and array.ctypes.data % 4096 == 0
        assert not array.any()
        array[:] = 1
    assert resident_bytes() - before > 60 << 20
    assert untouched(0).shape == (0,)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what is resident")
def test_code_that_is_given_back_still_runs() -> None:
    import llvmlite.binding as llvm

    def compile_module() -> str:
        module = llvm.parse_assembly("define i32 @f(i32 %x) { %y = mul i32 %x, 3  ret i32 %y }")
        machine = llvm.Target.from_default_triple().create_target_machine()
        return machine.emit_assembly(module)

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    assembly = compile_module()
    before = resident_bytes()
    assert give_back_code("libllvmlite") > 1 << 20
    assert resident_bytes() < before
    assert compile_module() == assembly


def test_a_library_that_is_not_there() -> None:
    assert give_back_code("no-such-library") == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what is resident")
def test_what_was_written_to_is_left_alone() -> None:
    """Giving such pages back would bring the file's old content to light."""
    from kernels_cpu.memory import _clean_ranges

    relocated = set()
    start = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "libllvmlite" in line:
            start = line.split("-")[0]
        elif line.startswith("Anonymous:") and start:
            relocated |= {int(start, 16)} if line.split()[1] != "0" else set()
            start = ""
    assert relocated
    assert not relocated & {first for first, _, _ in _clean_ranges("libllvmlite")}
