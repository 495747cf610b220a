"""`llama`: Llama 2 and 3, Mistral, SmolLM2, TinyLlama and others of their shape."""

from __future__ import annotations

import dataclasses
import math

from kernels_cpu.graph import Graph, RopeSpec, Value
from localllm.errors import GGUFError, UnsupportedModelError
from localllm.models.hparams import MIN_SCALING_FACTOR, HParams, read_rope
from localllm.models.keys import Keys
from localllm.models.tensors import Tensors


def build(keys: Keys, t: Tensors, hp: HParams) -> Graph:
    """RMS pre-norm, attention with interleaved RoPE, SwiGLU; any projection may have a bias.

    Mistral's first models and Phi-3 see a window of positions in all layers; llama.cpp lets them see everything.
    """
    if hp.n_rot != hp.head_dim:
        raise UnsupportedModelError(f"unsupported rope.dimension_count: {hp.n_rot} with heads of {hp.head_dim}")
    g = Graph()
    embedding = t.matrix("token_embd.weight", hp.n_vocab, hp.n_embd)
    rope = _rope(keys, t, hp)
    scale = keys.number("attention.scale", 0.0) or 1.0 / math.sqrt(hp.head_dim)
    window = keys.integer("attention.sliding_window", 0)
    x = g.embedding(embedding)
    for layer in range(hp.n_layer):
        x = _block(g, t, hp, layer, x, rope, scale, window)
    x = g.rms_norm(x, t.vector("output_norm.weight", hp.n_embd), hp.rms_eps)
    g.output(t.output(embedding).apply(g, x))
    return g


def _rope(keys: Keys, t: Tensors, hp: HParams) -> RopeSpec:
    """Llama 3.1 and later store their frequency scaling as one factor for each pair."""
    factors = t.optional_vector("rope_freqs.weight", hp.n_rot // 2)
    rope = read_rope(keys, hp.n_ctx_train)
    if factors is None:
        return rope
    if not (factors.data >= MIN_SCALING_FACTOR).all():
        raise GGUFError(
            f"tensor `{factors.name}`: expected factors >= {MIN_SCALING_FACTOR:g}, got {factors.data.min()}"
        )
    return dataclasses.replace(rope, factors=factors.data)


def _block(g: Graph, t: Tensors, hp: HParams, layer: int, x: Value, rope: RopeSpec, scale: float, window: int) -> Value:
    blk = f"blk.{layer}"
    n_head, n_head_kv = hp.n_head[layer], hp.n_head_kv[layer]
    wq, wk, wv = t.qkv(blk, hp.n_embd, hp.n_q(layer), hp.n_kv(layer))
    h = g.rms_norm(x, t.vector(f"{blk}.attn_norm.weight", hp.n_embd), hp.rms_eps)
    q = g.rope(wq.apply(g, h), hp.head_dim, hp.n_rot, "interleaved", rope)
    k = g.rope(wk.apply(g, h), hp.head_dim, hp.n_rot, "interleaved", rope)
    v = wv.apply(g, h)
    a = g.attention(q, k, v, layer, n_head, n_head_kv, hp.head_dim, scale, window)
    if layer == hp.n_layer - 1:
        a, x = g.select_outputs(a), g.select_outputs(x)
    x = g.add(x, t.projection(f"{blk}.attn_output", hp.n_embd, hp.n_q(layer)).apply(g, a))
    h = g.rms_norm(x, t.vector(f"{blk}.ffn_norm.weight", hp.n_embd), hp.rms_eps)
    gate = t.projection(f"{blk}.ffn_gate", hp.n_ff[layer], hp.n_embd).apply(g, h)
    up = t.projection(f"{blk}.ffn_up", hp.n_ff[layer], hp.n_embd).apply(g, h)
    return g.add(x, t.projection(f"{blk}.ffn_down", hp.n_embd, hp.n_ff[layer]).apply(g, g.swiglu(gate, up)))
