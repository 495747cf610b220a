"""The products of every type compiled for CPUs that this machine is not: by which instruction LLVM does it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CROSS_COMPILE = """
import sys
import llvmlite.binding as llvm
from llvmlite import ir
from kernels_cpu import target
path, triple, cpu, features = sys.argv[1:]
target.TARGET = target.Target(path, cpu, features)
from kernels_cpu import simd, tiles
from kernels_cpu.quants.table import QUANT_TYPES

module = ir.Module()
for quant in QUANT_TYPES.values():
    fmt = quant.format
    for bits in (8, 16):
        fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [simd.I64] * 5), f"{fmt.name}_{bits}")
        b = ir.IRBuilder(fn.append_basic_block())
        shape = tiles.MANY_SHAPE
        accs = tiles._zeros(b, shape)
        tiles._emit_tile(b, fmt, bits, shape, tiles._Operands(*fn.args[:4]), accs)
        for k, (acc,) in enumerate(accs):
            simd.emit_store(b, b.load(acc), fn.args[4], 64 * k)
        b.ret_void()
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
compiled = llvm.parse_assembly(str(module).replace('triple = "unknown-unknown-unknown"', f'triple = "{triple}"'))
compiled.verify()
print(machine.emit_assembly(compiled))
"""


@pytest.mark.parametrize(
    ("path", "triple", "cpu", "features", "expected"),
    [
        ("avx512", "x86_64-unknown-linux-gnu", "znver4", "", "vpdpbusd"),
        pytest.param("avxvnni", "x86_64-unknown-linux-gnu", "alderlake", "", "vpdpbusd", marks=pytest.mark.slow),
        pytest.param(
            *("neon", "aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod,+fullfp16", "sdot"), marks=pytest.mark.slow
        ),
        pytest.param("avx2", "x86_64-unknown-linux-gnu", "haswell", "", "vpmaddubsw", marks=pytest.mark.slow),
    ],
)
def test_products_compile_for_other_cpus(path: str, triple: str, cpu: str, features: str, expected: str) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CROSS_COMPILE, path, triple, cpu, features]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert expected in done.stdout
    assert "zmm" not in done.stdout or path == "avx512"
