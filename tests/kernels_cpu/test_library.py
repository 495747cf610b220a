"""That what a kernel's library holds is its own: also beside libraries that other processes compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from llvmlite.binding import Linkage
from numba.core.ccallback import CFunc

from kernels_cpu.compile import find_kernel
from kernels_cpu.library import KernelLibrary
from kernels_cpu.ops.attention import ATTENTION_TILE
from kernels_cpu.pipeline import KernelCompiler

TILES = [kernel.name for kernel in ATTENTION_TILE.values()]


def _compiled(name: str) -> CFunc:
    options: dict[str, Any] = {"nopython": True, "error_model": "numpy", "pipeline_class": KernelCompiler}
    return numba.cfunc("void(int64, int64, int64)", **options)(find_kernel(name).fn)


@pytest.mark.parametrize("name", ["kernels_cpu.ops.attention:attention_tile_q8_0", "kernels_cpu.ops.rows:rows"])
def test_only_the_kernel_can_be_seen(name: str) -> None:
    """Names of subroutines are unique in a process only, and a visible one would be taken from any library loaded."""
    compiled = _compiled(name)
    assert isinstance(compiled._library, KernelLibrary)
    module, kernel = compiled._library._final_module, name.rpartition(":")[2]
    visible = [
        symbol.name
        for symbols in (module.functions, module.global_variables)
        for symbol in symbols
        if not symbol.is_declaration and symbol.linkage not in (Linkage.internal, Linkage.private)
    ]
    assert len(visible) >= 2 and all(kernel in one for one in visible), visible


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("order", [TILES, TILES[::-1]])
def test_kernels_that_share_subroutines_go_together(tmp_path: Path, order: list[str], apart: bool) -> None:
    """Each type's kernel is compiled first thing in a process, so that what they are made of is numbered alike; or one
    process compiles them all. Loaded into one process they have to be right."""
    env = {**os.environ, "LOCALLLM_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    load = "from kernels_cpu.compile import find_kernel\nfor name in {}: find_kernel(name).load()\n"
    for name in order if apart else ():
        subprocess.run([sys.executable, "-c", load.format([name])], env=env, check=True, timeout=200)
    test = Path(__file__).with_name("test_ops_attention.py")
    run = f"import sys, pytest\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-x', {str(test)!r}]))"
    command = [sys.executable, "-c", load.format(order) + run]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
