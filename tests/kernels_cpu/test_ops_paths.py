"""The operations on the CPU paths that this machine would not choose: lower ones are run, others only compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels_cpu.target import PATHS, TARGET

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOWER = [p for p in ("avx2", "portable") if p in PATHS[PATHS.index(TARGET.path) + 1 :] and TARGET.path != "neon"]
CHECKS = "not in_place and not several and not chunking and not (prompt and window)"
CHECKS += "".join(f" and not {shape}" for shape in ("4-1-256", "3-3-7", "16-2-80", "4-2-96", "2-1-128"))

# Emits the inner loops for another CPU and lets LLVM make assembly of them.
CROSS_COMPILE = """
import sys
import llvmlite.binding as llvm
from llvmlite import ir
from kernels_cpu import target
path, triple, cpu, features = sys.argv[1:]
target.TARGET = target.Target(path, cpu, features)
from kernels_cpu import simd
from kernels_cpu.ops import attention_codes as codes
from kernels_cpu.ops import attention_floats as floats
from kernels_cpu.ops import attention_parts as parts

module = ir.Module()
fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [simd.I64] * 4), "inner_loops")
b = ir.IRBuilder(fn.append_basic_block())
q, k, n, out = fn.args
for size in range(1, parts.BATCH + 1):
    for fmt in floats.FLOATS.values():
        floats.emit_score_blocks(b, fmt, size, 1, [q, k, n, k], out)
        floats.emit_weigh_columns(b, fmt, size, 1, [q, k, n, n, n, n], [out] * size)
    for bits in (8, 4):
        codes.emit_score_blocks(b, bits, size, 1, [q, k, k, n, k], out)
        codes.emit_weigh_block(b, bits, size, 0, [q, k, n, n, n], [out] * size)
x = simd.emit_load(b, simd.V_F32X16, q)
for emit in (simd.emit_exp, parts.emit_exp2, simd.emit_tanh, simd.emit_rint, simd.emit_float_to_half_bits):
    simd.emit_store(b, emit(b, x), out)
b.ret_void()
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
compiled = llvm.parse_assembly(str(module).replace('triple = "unknown-unknown-unknown"', f'triple = "{triple}"'))
compiled.verify()
print(machine.emit_assembly(compiled))
"""


def run(*command: str, **environment: str) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("path", LOWER)
def test_lower_paths_pass_the_same_checks(path: str) -> None:
    files = [str(HERE / "test_ops.py"), str(HERE / "test_ops_attention.py")]
    # Plugins that happen to be installed and only warn are left out.
    command = ["-m", "pytest", "-q", "-x", "-p", "no:asyncio", "-p", "no:cacheprovider", "-k", CHECKS]
    assert " passed" in run(*command, *files, LOCALLLM_CPU=path)


@pytest.mark.slow
@pytest.mark.parametrize("path", LOWER)
def test_lower_paths_quantise_to_the_same_bytes(path: str) -> None:
    command = ["-m", "pytest", "-q", "-x", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    assert " passed" in run(*command, str(HERE / "test_quantize_types.py"), LOCALLLM_CPU=path)


@pytest.mark.parametrize(
    ("path", "triple", "cpu", "features", "expected"),
    [
        ("avx512", "x86_64-unknown-linux-gnu", "znver4", "", "zmm"),
        ("avx2", "x86_64-unknown-linux-gnu", "haswell", "", "vfmadd"),
        ("neon", "aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod,+fullfp16", "fmla"),
        ("portable", "x86_64-unknown-linux-gnu", "x86-64", "", "mulps"),
    ],
)
def test_inner_loops_compile_for_other_cpus(path: str, triple: str, cpu: str, features: str, expected: str) -> None:
    assert expected in run("-c", CROSS_COMPILE, path, triple, cpu, features)
