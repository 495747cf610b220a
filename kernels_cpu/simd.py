"""SIMD values for Numba: LLVM vector types, and @intrinsic functions on them.

The only file that knows an instruction set. Each operation exists twice: `emit_*` takes an LLVM
builder (for kernels that are generated), and the @intrinsic of the same name is callable from a
Numba function. Addresses are plain int64; nothing here checks bounds, owners keep arrays alive.

Vectors have 16 lanes of 32 bits (or 64 of 8) on every target; LLVM splits what the CPU cannot
hold. Float operations are strict: no reassociation, one rounding each, sums in one fixed order, so
that a result does not depend on what surrounds it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model, typeof_impl

from kernels_cpu.target import TARGET

PATH = "avx2" if TARGET.path == "avxvnni" else TARGET.path
"""The path as far as registers go."""

AVX512 = PATH == "avx512"
AVX2 = PATH in ("avx512", "avx2")
VNNI = TARGET.path in ("avx512", "avxvnni")
NEON = PATH == "neon"
FMA = AVX2 or NEON
SIGNED_CODES = NEON or (AVX2 and not VNNI)
"""Whether codes above 127 are multiplied as signed bytes."""

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_ELEMENT = {"i8": I8, "i16": I16, "i32": I32, "i64": I64, "f16": F16, "f32": F32, "f64": F64}
_SCALAR = {
    "i8": types.int8,
    "i16": types.int16,
    "i32": types.int32,
    "i64": types.int64,
    "f32": types.float32,
    "f64": types.float64,
}

Builder: TypeAlias = ir.IRBuilder


class Vec(types.Type):
    """The Numba type of a vector of `n` lanes of `elt` ("i8", "f32", ...)."""

    def __init__(self, elt: str, n: int) -> None:
        self.elt, self.n = elt, n
        super().__init__(name=f"{elt}x{n}")

    def ll(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(_ELEMENT[self.elt], self.n)

    @property
    def is_float(self) -> bool:
        """Whether lanes are floating point."""
        return self.elt[0] == "f"


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, fe_type.ll())


@typeof_impl.register(Vec)
def _typeof_vec(val: Vec, c: Any) -> types.TypeRef:
    return types.TypeRef(val)


i8x16, i8x32, i8x64 = (Vec("i8", n) for n in (16, 32, 64))
i16x16, i16x32 = (Vec("i16", n) for n in (16, 32))
i32x8, i32x16 = (Vec("i32", n) for n in (8, 16))
f32x16, f16x16, f64x16 = Vec("f32", 16), Vec("f16", 16), Vec("f64", 16)

V_I8X64, V_I32X16, V_F32X16 = i8x64.ll(), i32x16.ll(), f32x16.ll()
V_F16X16 = f16x16.ll()

# --------------------------------------------------------------------------- emitting


def const(lty: ir.Type, v: Any) -> ir.Constant:
    """An LLVM constant; `v` a scalar for all lanes or a sequence of one value a lane."""
    if isinstance(lty, ir.VectorType):
        vs = list(v) if isinstance(v, (list, tuple, range)) else [v] * lty.count
        return ir.Constant(lty, [ir.Constant(lty.element, x) for x in vs])
    return ir.Constant(lty, v)


def call_llvm(b: Builder, name: str, ret: ir.Type, *args: ir.Value) -> ir.Value:
    """Call the LLVM intrinsic or external function `name`."""
    fn = cgutils.get_or_insert_function(b.module, ir.FunctionType(ret, [a.type for a in args]), name)
    return b.call(fn, args)


def emit_ptr(b: Builder, addr: ir.Value, lty: ir.Type, offset: int = 0) -> ir.Value:
    """`addr + offset` as a pointer to `lty`."""
    if offset:
        addr = b.add(addr, const(I64, offset))
    return b.inttoptr(addr, lty.as_pointer())


def emit_load(b: Builder, lty: ir.Type, addr: ir.Value, offset: int = 0) -> ir.Value:
    """Unaligned load of `lty` from `addr + offset`."""
    return b.load(emit_ptr(b, addr, lty, offset), align=1)


def emit_prefetch(b: Builder, addr: ir.Value) -> None:
    """Ask for the cache line at `addr`, which need not be mapped."""
    pointer = b.inttoptr(addr, I8.as_pointer())
    call_llvm(b, "llvm.prefetch.p0", ir.VoidType(), pointer, const(I32, 0), const(I32, 3), const(I32, 1))


def emit_store(b: Builder, value: ir.Value, addr: ir.Value, offset: int = 0) -> None:
    """Unaligned store of `value` to `addr + offset`."""
    b.store(value, emit_ptr(b, addr, value.type, offset), align=1)


def _loop_not_unrolled(module: ir.Module) -> ir.MDValue:
    """A new `llvm.loop` node; such a node begins with itself."""
    disable = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    node = ir.values.MDValue(module, [disable], name=str(len(module.metadata)))
    node.operands = (node, disable)
    return node


def emit_loop(
    b: Builder,
    start: ir.Value,
    stop: ir.Value,
    step: int,
    carried: Sequence[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """`for i in range(start, stop, step)` over int64: `body(i, values)` gives the carried values of the next turn.

    LLVM is told not to unroll it: a body that fills the registers would spill, and all would compile longer.
    """
    before = b.block
    head, inside, after = (b.append_basic_block(name) for name in ("loop", "loop.body", "loop.end"))
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(start, before)
    values = [b.phi(v.type) for v in carried]
    for phi, v in zip(values, carried, strict=True):
        phi.add_incoming(v, before)
    b.cbranch(b.icmp_signed("<", i, stop), inside, after)
    b.position_at_end(inside)
    for phi, v in zip(values, body(i, values), strict=True):
        phi.add_incoming(v, b.block)
    i.add_incoming(b.add(i, const(I64, step)), b.block)
    b.branch(head).set_metadata("llvm.loop", _loop_not_unrolled(b.module))
    b.position_at_end(after)
    return values


def emit_switch(b: Builder, value: ir.Value, cases: Sequence[int], body: Callable[[int], None]) -> None:
    """`body(case)` emitted for each case of the int64 `value`; nothing happens for others."""
    after = b.append_basic_block("switch.end")
    switch = b.switch(value, after)
    for case in cases:
        block = b.append_basic_block(f"case{case}")
        switch.add_case(const(I64, case), block)
        b.position_at_end(block)
        body(case)
        b.branch(after)
    b.position_at_end(after)


def emit_splat(b: Builder, lty: ir.VectorType, scalar: ir.Value) -> ir.Value:
    """`scalar` in every lane."""
    undef = ir.Constant(lty, ir.Undefined)
    u = b.insert_element(undef, scalar, const(I32, 0))
    return b.shuffle_vector(u, undef, const(ir.VectorType(I32, lty.count), 0))


def emit_shuffle(b: Builder, x: ir.Value, lanes: Sequence[int], y: ir.Value | None = None) -> ir.Value:
    """Lanes of `x` (and `y`, numbered after those of `x`) in a new order."""
    return b.shuffle_vector(x, x if y is None else y, const(ir.VectorType(I32, len(lanes)), list(lanes)))


def emit_slice(b: Builder, x: ir.Value, k: int, m: int) -> ir.Value:
    """The k-th of m equal slices of `x`."""
    n = x.type.count // m
    return emit_shuffle(b, x, range(k * n, (k + 1) * n))


def emit_join(b: Builder, parts: list[ir.Value]) -> ir.Value:
    """Concatenate 2^k vectors of one type."""
    while len(parts) > 1:
        n = parts[0].type.count
        parts = [emit_shuffle(b, parts[i], range(2 * n), parts[i + 1]) for i in range(0, len(parts), 2)]
    return parts[0]


def emit_fma(b: Builder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x·y + z, rounded once where the CPU can, twice on the portable path."""
    if not FMA:
        return b.fadd(b.fmul(x, y), z)
    suffix = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
    return call_llvm(b, f"llvm.fma.{suffix}", x.type, x, y, z)


def emit_half_to_float(b: Builder, h: ir.Value) -> ir.Value:
    """f16 (or i16 bits) to f32, exactly.

    Without F16C LLVM would call a library function that the JIT cannot resolve, which aborts the
    process; so the portable path works on the bits: denormals, infinities and NaN included.
    """
    n = h.type.count
    fty, ity = ir.VectorType(F32, n), ir.VectorType(I32, n)
    if AVX2 or NEON:
        half = h if h.type.element == F16 else b.bitcast(h, ir.VectorType(F16, n))
        return b.fpext(half, fty)
    i = b.zext(b.bitcast(h, ir.VectorType(I16, n)), ity)
    magnitude = b.and_(i, const(ity, 0x7FFF))
    scaled = b.fmul(b.bitcast(b.shl(magnitude, const(ity, 13)), fty), const(fty, 2.0**112))
    special = b.icmp_unsigned(">=", magnitude, const(ity, 0x7C00))
    bits = b.or_(b.bitcast(scaled, ity), b.select(special, const(ity, 0x7F800000), const(ity, 0)))
    return b.bitcast(b.or_(bits, b.shl(b.and_(i, const(ity, 0x8000)), const(ity, 16))), fty)


def emit_load_f16(b: Builder, addr: ir.Value, offset: int = 0) -> ir.Value:
    """16 halves at `addr + offset` as <16 x float>."""
    return emit_half_to_float(b, emit_load(b, ir.VectorType(I16, 16), addr, offset))


def emit_float_to_half_bits(b: Builder, x: ir.Value) -> ir.Value:
    """f32 to f16 as i16 bits, round half to even, overflow to infinity."""
    n = x.type.count
    hty, ity, fty = ir.VectorType(I16, n), ir.VectorType(I32, n), x.type
    if AVX2 or NEON:
        return b.bitcast(b.fptrunc(x, ir.VectorType(F16, n)), hty)
    i = b.bitcast(x, ity)
    sign = b.and_(b.lshr(i, const(ity, 16)), const(ity, 0x8000))
    m = b.and_(i, const(ity, 0x7FFFFFFF))
    # Below the smallest normal half, adding 0.5 makes the FPU round to the denormal's last bit.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(m, fty), const(fty, 0.5)), ity), const(ity, 0x3F000000))
    odd = b.and_(b.lshr(m, const(ity, 13)), const(ity, 1))
    normal = b.lshr(b.add(b.add(m, odd), const(ity, 0xC8000FFF - (1 << 32))), const(ity, 13))
    is_nan = b.icmp_unsigned(">", m, const(ity, 0x7F800000))
    special = b.select(is_nan, const(ity, 0x7E00), const(ity, 0x7C00))
    r = b.select(b.icmp_unsigned("<", m, const(ity, 0x38800000)), small, normal)
    r = b.select(b.icmp_unsigned(">=", m, const(ity, 0x477FF000)), special, r)
    return b.trunc(b.or_(r, sign), hty)


def emit_rint(b: Builder, x: ir.Value) -> ir.Value:
    """Round to the nearest integer, half to even; |x| < 2^22 on the portable path."""
    if AVX2 or NEON:
        return call_llvm(b, f"llvm.rint.v{x.type.count}f32", x.type, x)
    magic = const(x.type, 12582912.0)  # 1.5 * 2^23: adding it pushes the fraction out of the mantissa
    return b.fsub(b.fadd(x, magic), magic)


def emit_reduce(b: Builder, x: ir.Value, op: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Fold the lanes by halves: lane i with lane i + n/2, and so on. A fixed order on every target."""
    n = x.type.count
    while n > 1:
        n //= 2
        x = op(emit_shuffle(b, x, range(n)), emit_shuffle(b, x, range(n, 2 * n)))
    return b.extract_element(x, const(I32, 0))


def _emit_polynomial(b: Builder, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Horner's scheme; the constant term comes first."""
    p = const(x.type, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        p = emit_fma(b, p, x, const(x.type, c))
    return p


def emit_exp(b: Builder, x: ir.Value) -> ir.Value:
    """e^x for x <= 88, relative error below 1.2e-7; exactly 0 below -87.33 and 1 at 0; NaN stays NaN.

    x = n ln 2 + r, e^r = 1 + r + r^2 P(r) with a minimax P for |r| <= ln(2) / 2.
    """
    magic = const(x.type, 12582912.0)  # 1.5 * 2^23: the sum's low bits are the rounded integer n
    t = emit_fma(b, x, const(x.type, 1.4426950408889634), magic)
    n = b.fsub(t, magic)
    r = emit_fma(b, n, const(x.type, -0.693359375), x)  # few bits: n times it is exact
    r = emit_fma(b, n, const(x.type, 2.1219444005469057e-4), r)
    p = _emit_polynomial(b, r, _EXP)
    p = b.fadd(emit_fma(b, b.fmul(r, r), p, r), const(x.type, 1.0))
    ity = ir.VectorType(I32, x.type.count)
    power = b.add(b.shl(b.bitcast(t, ity), const(ity, 23)), const(ity, 127 << 23))
    y = b.fmul(p, b.bitcast(power, x.type))
    return b.select(b.fcmp_ordered("<", x, const(x.type, -87.33)), const(x.type, 0.0), y)


def emit_abs(b: Builder, x: ir.Value) -> ir.Value:
    """|x| of f32 lanes."""
    return call_llvm(b, f"llvm.fabs.v{x.type.count}f32", x.type, x)


def emit_tanh(b: Builder, x: ir.Value) -> ir.Value:
    """tanh x, relative error below 3e-7: (1 - e) / (1 + e) with e = exp(-2 |x|), near 0 a polynomial in x^2."""
    one, ity = const(x.type, 1.0), ir.VectorType(I32, x.type.count)
    magnitude = emit_abs(b, x)
    e = emit_exp(b, b.fmul(magnitude, const(x.type, -2.0)))
    far = b.bitcast(b.fdiv(b.fsub(one, e), b.fadd(one, e)), ity)
    far = b.bitcast(b.or_(far, b.and_(b.bitcast(x, ity), const(ity, -(1 << 31)))), x.type)
    z = b.fmul(x, x)
    near = emit_fma(b, b.fmul(x, z), _emit_polynomial(b, z, _TANH), x)
    return b.select(b.fcmp_ordered("<", magnitude, const(x.type, 0.65)), near, far)


# Minimax coefficients, fitted for this file: (e^r - 1 - r) / r^2 for |r| <= 0.347, (tanh x - x) / x^3 for |x| <= 0.7.
_EXP = (0.4999999403953552, 0.1666651964187622, 0.04166839271783829, 0.00836878176778555, 0.001381445792503655)
_TANH = (-0.3333319127559662, 0.133291095495224, -0.0535588338971138, 0.02009190246462822, -0.005138607230037451)


def emit_shift_mask(b: Builder, q: ir.Value, shift: int, mask: int) -> ir.Value:
    """(byte >> shift) & mask in every byte; a negative shift goes left. `mask` must drop foreign bits."""
    if shift == 0:
        return b.and_(q, const(q.type, mask))
    wide = ir.VectorType(I32, q.type.count // 4)
    s = b.bitcast(q, wide)
    s = b.lshr(s, const(wide, shift)) if shift > 0 else b.shl(s, const(wide, -shift))
    return b.and_(b.bitcast(s, q.type), const(q.type, mask))


def emit_lookup(b: Builder, index: ir.Value, table: Sequence[int]) -> ir.Value:
    """table[i] for every byte i of `index`; `table` has at most 16 unsigned bytes, and indices stay within it."""
    if SIGNED_CODES and max(table) > 127:
        # The product takes these as signed bytes: its own change of sign and this one cancel.
        signed = _emit_lookup(b, index, [v ^ 0x80 for v in table])
        return b.xor(signed, const(index.type, 0x80))
    return _emit_lookup(b, index, table)


def _emit_lookup(b: Builder, index: ir.Value, table: Sequence[int]) -> ir.Value:
    if not (AVX2 or NEON):
        return _emit_lookup_portable(b, index, table)
    name, width = next((n, w) for path, n, w in _LOOKUPS if path)
    ty = ir.VectorType(I8, width)
    entries = const(ty, [*table, *[0] * (16 - len(table))] * (width // 16))

    return _by_halves(b, width, lambda i: call_llvm(b, name, ty, entries, i), index)


_LOOKUPS = (
    (AVX512, "llvm.x86.avx512.pshuf.b.512", 64),
    (AVX2, "llvm.x86.avx2.pshuf.b", 32),
    (NEON, "llvm.aarch64.neon.tbl1.v16i8", 16),
)


def _emit_lookup_portable(b: Builder, index: ir.Value, table: Sequence[int]) -> ir.Value:
    """Every entry of the table compared with and masked in: slow, and right everywhere."""
    found = const(index.type, 0)
    for i, v in enumerate(table):
        hit = b.sext(b.icmp_unsigned("==", index, const(index.type, i)), index.type)
        found = b.or_(found, b.and_(hit, const(index.type, v)))
    return found


def emit_broadcast4(b: Builder, addr: ir.Value, offset: int = 0, n_bytes: int = 64) -> ir.Value:
    """The 4 bytes at `addr + offset` again and again, <n_bytes x i8>."""
    words = emit_splat(b, ir.VectorType(I32, n_bytes // 4), emit_load(b, I32, addr, offset))
    return b.bitcast(words, ir.VectorType(I8, n_bytes))


# ------------------------------------------------------------- int8 dot products


def _by_halves(b: Builder, width: int, fn: Callable[..., ir.Value], *args: ir.Value) -> ir.Value:
    """Apply `fn` to slices of `width` bytes and join the results."""
    m = max(1, args[-1].type.count * args[-1].type.element.width // 8 // width)
    if m == 1:
        return fn(*args)
    return emit_join(b, [fn(*(emit_slice(b, a, k, m) for a in args)) for k in range(m)])


def emit_as_is(b: Builder, x: ir.Value) -> ir.Value:
    """AVX2: x, of which LLVM is told nothing: it would add up sums in another order, with more of them alive than there
    are registers. No instruction comes of it."""

    def one(x: ir.Value) -> ir.Value:
        return b.asm(ir.FunctionType(x.type, [x.type]), "", "=x,0", [x], side_effect=False)

    return _by_halves(b, 32, one, x)


def emit_maddubs(b: Builder, u: ir.Value, s: ir.Value) -> ir.Value:
    """AVX2: u8 x s8, pairs summed to i16 (saturating: callers keep sums within 16 bits)."""

    def one(u: ir.Value, s: ir.Value) -> ir.Value:
        return call_llvm(b, "llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(I16, 16), u, s)

    return _by_halves(b, 32, one, u, s)


def emit_maddwd(b: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """i16 x i16, pairs summed to i32."""
    n = x.type.count
    if AVX512 and n == 32:
        return call_llvm(b, "llvm.x86.avx512.pmaddw.d.512", V_I32X16, x, y)
    if AVX2:

        def one(x: ir.Value, y: ir.Value) -> ir.Value:
            return call_llvm(b, "llvm.x86.avx2.pmadd.wd", ir.VectorType(I32, 8), x, y)

        return _by_halves(b, 32, one, x, y)
    wide = ir.VectorType(I32, n)
    p = b.mul(b.sext(x, wide), b.sext(y, wide))
    return b.add(emit_shuffle(b, p, range(0, n, 2)), emit_shuffle(b, p, range(1, n, 2)))


def _emit_sum_groups_of_4(b: Builder, acc: ir.Value, p: ir.Value) -> ir.Value:
    for k in range(4):
        acc = b.add(acc, emit_shuffle(b, p, range(k, p.type.count, 4)))
    return acc


def emit_dot_portable(b: Builder, acc: ir.Value, u: ir.Value, s: ir.Value) -> ir.Value:
    """acc[i] += sum over k < 4 of u[4i+k]·s[4i+k]; u unsigned bytes, s signed; plain LLVM."""
    wide = ir.VectorType(I32, u.type.count)
    return _emit_sum_groups_of_4(b, acc, b.mul(b.zext(u, wide), b.sext(s, wide)))


def emit_vpdpbusd(b: Builder, acc: ir.Value, u: ir.Value, s: ir.Value) -> ir.Value:
    """VNNI, 256 or 512 bits: as emit_dot_portable, one instruction.

    The operands go in as i32 lanes: LLVM's auto-upgrade takes that signature in every version.
    """
    name = f"llvm.x86.avx512.vpdpbusd.{32 * acc.type.count}"
    return call_llvm(b, name, acc.type, acc, b.bitcast(u, acc.type), b.bitcast(s, acc.type))


def emit_sdot(b: Builder, acc: ir.Value, u: ir.Value, s: ir.Value) -> ir.Value:
    """Arm: as emit_dot_portable for u < 128, or signed u (sdot is signed by signed)."""

    def one(acc: ir.Value, u: ir.Value, s: ir.Value) -> ir.Value:
        return call_llvm(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", ir.VectorType(I32, 4), acc, u, s)

    return _by_halves(b, 16, one, acc, u, s)


def emit_dot_avx2_signed(b: Builder, acc: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """AVX2, signed codes: |w| times x with the sign of w; no pair exceeds 16 bits for x > -128."""

    def one(w: ir.Value, x: ir.Value) -> ir.Value:
        ty = ir.VectorType(I8, 32)
        signed = call_llvm(b, "llvm.x86.avx2.psign.b", ty, x, w)
        magnitude = call_llvm(b, "llvm.abs.v32i8", ty, w, const(I1, 0))
        return emit_maddubs(b, magnitude, signed)

    pairs = _by_halves(b, 32, one, codes, x)
    return b.add(acc, emit_maddwd(b, pairs, const(pairs.type, 1)))


# ------------------------------------------------------- intrinsics for Numba functions


@intrinsic
def load(tyctx, vt, addr):  # type: ignore[no-untyped-def]
    """Unaligned load of vector type `vt` from `addr`."""
    v = vt.instance_type
    return v(vt, types.int64), lambda ctx, b, sig, a: emit_load(b, v.ll(), a[1])


@intrinsic
def store(tyctx, addr, v):  # type: ignore[no-untyped-def]
    """Unaligned store of the vector `v` to `addr`."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        emit_store(b, a[1], a[0])
        return ctx.get_dummy_value()

    return types.void(types.int64, v), gen


@intrinsic
def load_f16(tyctx, addr):  # type: ignore[no-untyped-def]
    """16 halves at `addr` as f32x16."""
    return f32x16(types.int64), lambda ctx, b, sig, a: emit_load_f16(b, a[0])


def _scalar_load(nbty: types.Type, lty: ir.Type) -> Any:
    @intrinsic
    def ld(tyctx, addr):  # type: ignore[no-untyped-def]
        return nbty(types.int64), lambda ctx, b, sig, a: emit_load(b, lty, a[0])

    return ld


def _scalar_store(nbty: types.Type) -> Any:
    @intrinsic
    def st(tyctx, addr, val):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            emit_store(b, a[1], a[0])
            return ctx.get_dummy_value()

        return types.void(types.int64, nbty), gen

    return st


ld_i32, ld_i64 = _scalar_load(types.int32, I32), _scalar_load(types.int64, I64)
ld_f32, ld_u8 = _scalar_load(types.float32, F32), _scalar_load(types.uint8, I8)
st_i32, st_u8 = _scalar_store(types.int32), _scalar_store(types.uint8)
st_i64, st_f32 = _scalar_store(types.int64), _scalar_store(types.float32)


@intrinsic
def st_f16(tyctx, addr, val):  # type: ignore[no-untyped-def]
    """Store float32 `val` at `addr` as an IEEE half, round half to even."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        one = emit_splat(b, ir.VectorType(F32, 1), a[1])
        emit_store(b, emit_float_to_half_bits(b, one), a[0])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.float32), gen


@intrinsic
def scatter_f16(tyctx, addr, step, v):  # type: ignore[no-untyped-def]
    """f32x16 to 16 halves at `addr`, `addr + step`, `addr + 2 step`, ... (bytes), round half to even."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        addr, step, v = a
        bits = emit_float_to_half_bits(b, v)
        for i in range(16):
            emit_store(b, b.extract_element(bits, const(I32, i)), addr)
            addr = b.add(addr, step)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16), gen


@intrinsic
def load_twice(tyctx, addr):  # type: ignore[no-untyped-def]
    """8 floats at `addr`, each in two neighbouring lanes of f32x16: x0 x0 x1 x1 ..."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        x = emit_load(b, ir.VectorType(F32, 8), a[0])
        return emit_shuffle(b, x, [i // 2 for i in range(16)])

    return f32x16(types.int64), gen


@intrinsic
def f32_bits(tyctx, x):  # type: ignore[no-untyped-def]
    """The float32 whose bits are the low 32 of an int64: how a tape row carries a float."""
    return types.float32(types.int64), lambda ctx, b, sig, a: b.bitcast(b.trunc(a[0], I32), F32)


@intrinsic
def word_f32(tyctx, x):  # type: ignore[no-untyped-def]
    """The float32 whose bits are an int32."""
    return types.float32(types.int32), lambda ctx, b, sig, a: b.bitcast(a[0], F32)


@intrinsic
def splat(tyctx, vt, s):  # type: ignore[no-untyped-def]
    """`s` in every lane of vector type `vt`."""
    v = vt.instance_type
    return v(vt, _SCALAR[v.elt]), lambda ctx, b, sig, a: emit_splat(b, v.ll(), a[1])


@intrinsic
def zero(tyctx, vt):  # type: ignore[no-untyped-def]
    """All lanes zero."""
    v = vt.instance_type
    return v(vt), lambda ctx, b, sig, a: const(v.ll(), 0.0 if v.is_float else 0)


@intrinsic
def store_f16(tyctx, addr, v):  # type: ignore[no-untyped-def]
    """f32x16 to 16 halves at `addr`."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        emit_store(b, emit_float_to_half_bits(b, a[1]), a[0])
        return ctx.get_dummy_value()

    return types.void(types.int64, f32x16), gen


def _binop(op: Any, int_name: str, float_name: str) -> None:
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args, kws):  # type: ignore[no-untyped-def]
            if len(args) == 2 and isinstance(args[0], Vec) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(op, Vec, Vec)
    def lower(ctx, b, sig, args):  # type: ignore[no-untyped-def]
        name = float_name if sig.args[0].is_float else int_name
        return getattr(b, name)(*args)


_binop(operator.add, "add", "fadd")
_binop(operator.sub, "sub", "fsub")
_binop(operator.mul, "mul", "fmul")
_binop(operator.truediv, "", "fdiv")
_binop(operator.and_, "and_", "")
_binop(operator.or_, "or_", "")


@intrinsic
def fma(tyctx, x, y, z):  # type: ignore[no-untyped-def]
    """x·y + z on f32x16: see emit_fma."""
    return x(x, x, x), lambda ctx, b, sig, a: emit_fma(b, *a)


def emit_pick(b: Builder, symbol: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """Per lane or scalar, x where `x symbol y`, else y: also where one is NaN. Integers are signed."""
    kind = x.type.element if isinstance(x.type, ir.VectorType) else x.type
    compare = b.icmp_signed if isinstance(kind, ir.IntType) else b.fcmp_ordered
    return b.select(compare(symbol, x, y), x, y)


def _lane_select(symbol: str) -> Any:
    @intrinsic
    def pick(tyctx, x, y):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            return emit_pick(b, symbol, a[0], a[1])

        return x(x, x), gen

    return pick


vmin, vmax = _lane_select("<"), _lane_select(">")


def _word_select(symbol: str) -> Any:
    @intrinsic
    def pick(tyctx, x, y):  # type: ignore[no-untyped-def]
        def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
            return emit_pick(b, symbol, a[0], a[1])

        return types.int64(types.int64, types.int64), gen

    return pick


# Of two int64: Numba's own min and max would each be compiled as a function of its own.
smaller, larger = _word_select("<"), _word_select(">")


@intrinsic
def vabs(tyctx, x):  # type: ignore[no-untyped-def]
    """|x| of each float lane."""
    return x(x), lambda ctx, b, sig, a: emit_abs(b, a[0])


@intrinsic
def vexp(tyctx, x):  # type: ignore[no-untyped-def]
    """e^x of each float lane: see emit_exp."""
    return x(x), lambda ctx, b, sig, a: emit_exp(b, a[0])


@intrinsic
def vtanh(tyctx, x):  # type: ignore[no-untyped-def]
    """tanh of each float lane: see emit_tanh."""
    return x(x), lambda ctx, b, sig, a: emit_tanh(b, a[0])


@intrinsic
def vrint(tyctx, x):  # type: ignore[no-untyped-def]
    """Round each float lane to an integer, half to even: see emit_rint."""
    return x(x), lambda ctx, b, sig, a: emit_rint(b, a[0])


def _conversion(name: str) -> Any:
    @intrinsic
    def convert(tyctx, vt, x):  # type: ignore[no-untyped-def]
        v = vt.instance_type
        return v(vt, x), lambda ctx, b, sig, a: getattr(b, name)(a[1], v.ll())

    return convert


sext, zext, trunc, bitcast = (_conversion(k) for k in ("sext", "zext", "trunc", "bitcast"))
sitofp, fptosi, fpext, fptrunc = (_conversion(k) for k in ("sitofp", "fptosi", "fpext", "fptrunc"))


@intrinsic
def hsum(tyctx, x):  # type: ignore[no-untyped-def]
    """Sum of all lanes, folded by halves."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return emit_reduce(b, a[0], b.fadd if x.is_float else b.add)

    return _SCALAR[x.elt](x), gen


@intrinsic
def hmax(tyctx, x):  # type: ignore[no-untyped-def]
    """Largest lane; integers are signed."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return emit_reduce(b, a[0], lambda p, q: emit_pick(b, ">", p, q))

    return _SCALAR[x.elt](x), gen


@intrinsic
def column_sums(tyctx, x):  # type: ignore[no-untyped-def]
    """Of i32x16: the sum of lanes 0, 1, 4, 5, 8, ... and that of lanes 2, 3, 6, 7, 10, ..., each int32."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        eight = b.add(emit_shuffle(b, a[0], range(8)), emit_shuffle(b, a[0], range(8, 16)))
        four = b.add(emit_shuffle(b, eight, range(4)), emit_shuffle(b, eight, range(4, 8)))
        two = b.add(emit_shuffle(b, four, (0, 2)), emit_shuffle(b, four, (1, 3)))
        return ctx.make_tuple(b, sig.return_type, [b.extract_element(two, const(I32, k)) for k in range(2)])

    return types.UniTuple(types.int32, 2)(x), gen


@intrinsic
def lane_swap(tyctx, x):  # type: ignore[no-untyped-def]
    """Neighbouring lanes exchanged: l1 l0 l3 l2 ..."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return emit_shuffle(b, a[0], [i ^ 1 for i in range(x.n)])

    return x(x), gen


@intrinsic
def negate_even(tyctx, x):  # type: ignore[no-untyped-def]
    """Float lanes 0, 2, 4, ... with their sign changed."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        ity = ir.VectorType(I32, x.n)
        signs = const(ity, [0 if i % 2 else -(1 << 31) for i in range(x.n)])
        return b.bitcast(b.xor(b.bitcast(a[0], ity), signs), x.ll())

    return x(x), gen


@intrinsic
def even_then_odd(tyctx, x):  # type: ignore[no-untyped-def]
    """Within each 4 lanes, the even ones and then the odd ones: l0 l2 l1 l3 ..."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        return emit_shuffle(b, a[0], [i // 4 * 4 + (0, 2, 1, 3)[i % 4] for i in range(x.n)])

    return x(x), gen


@intrinsic
def select_less(tyctx, i, j, x, y):  # type: ignore[no-untyped-def]
    """x where i < j (integer or float lanes; false for NaN), else y."""

    def gen(ctx, b, sig, a):  # type: ignore[no-untyped-def]
        compare = b.fcmp_ordered if i.is_float else b.icmp_signed
        return b.select(compare("<", a[0], a[1]), a[2], a[3])

    return x(i, i, x, x), gen
