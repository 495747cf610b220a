"""`qwen3`: the dense Qwen 3 models."""

from __future__ import annotations

import math

from kernels_cpu.graph import Graph, RopeSpec, Value
from localllm.models.hparams import HParams, read_rope
from localllm.models.keys import Keys
from localllm.models.pooling import classified, read_pooling
from localllm.models.tensors import Tensors


def build(keys: Keys, t: Tensors, hp: HParams) -> Graph:
    """RMS pre-norm, attention with RMS-normed heads of q and k before RoPE on halves, SwiGLU."""
    g = Graph()
    embedding = t.matrix("token_embd.weight", hp.n_vocab, hp.n_embd)
    rope = read_rope(keys, hp.n_ctx_train)
    x = g.embedding(embedding)
    for layer in range(hp.n_layer):
        x = _block(g, t, hp, layer, x, rope)
    x = g.rms_norm(x, t.vector("output_norm.weight", hp.n_embd), hp.rms_eps)
    if read_pooling(keys, "last") == "rank":
        t.skip("output.weight")
        g.output(classified(g, t, x))
    else:
        t.skip("cls.output.weight")
        g.output(t.output(embedding).apply(g, x))
    return g


def _block(g: Graph, t: Tensors, hp: HParams, layer: int, x: Value, rope: RopeSpec) -> Value:
    blk = f"blk.{layer}"
    n_head, n_head_kv = hp.n_head[layer], hp.n_head_kv[layer]
    wq, wk, wv = t.qkv(blk, hp.n_embd, hp.n_q(layer), hp.n_kv(layer))
    q_norm = t.vector(f"{blk}.attn_q_norm.weight", hp.head_dim)
    k_norm = t.vector(f"{blk}.attn_k_norm.weight", hp.head_dim)
    h = g.rms_norm(x, t.vector(f"{blk}.attn_norm.weight", hp.n_embd), hp.rms_eps)
    q = g.head_norm(wq.apply(g, h), q_norm, hp.rms_eps, hp.head_dim)
    k = g.head_norm(wk.apply(g, h), k_norm, hp.rms_eps, hp.head_dim)
    q = g.rope(q, hp.head_dim, hp.n_rot, "half", rope)
    k = g.rope(k, hp.head_dim, hp.n_rot, "half", rope)
    v = wv.apply(g, h)
    a = g.attention(q, k, v, layer, n_head, n_head_kv, hp.head_dim, 1.0 / math.sqrt(hp.head_dim))
    if layer == hp.n_layer - 1:
        a, x = g.select_outputs(a), g.select_outputs(x)
    x = g.add(x, t.projection(f"{blk}.attn_output", hp.n_embd, hp.n_q(layer)).apply(g, a))
    h = g.rms_norm(x, t.vector(f"{blk}.ffn_norm.weight", hp.n_embd), hp.rms_eps)
    gate = t.projection(f"{blk}.ffn_gate", hp.n_ff[layer], hp.n_embd).apply(g, h)
    up = t.projection(f"{blk}.ffn_up", hp.n_ff[layer], hp.n_embd).apply(g, h)
    return g.add(x, t.projection(f"{blk}.ffn_down", hp.n_embd, hp.n_ff[layer]).apply(g, g.swiglu(gate, up)))
