"""`nomic-bert`: the dense Nomic Embed encoders."""

from __future__ import annotations

import math

from kernels_cpu.graph import Graph, RopeSpec, Value
from localllm.models.hparams import HParams, read_rope
from localllm.models.keys import Keys
from localllm.models.pooling import pooled, read_pooling
from localllm.models.tensors import Tensors, normed


def build(keys: Keys, t: Tensors, hp: HParams) -> Graph:
    """RoPE on halves, layer norm after each addition, SwiGLU; the projections have no biases as a rule."""
    g = Graph()
    eps = keys.number("attention.layer_norm_epsilon", low=0.0)
    rope = read_rope(keys, hp.n_ctx_train)
    x = g.embedding(t.matrix("token_embd.weight", hp.n_vocab, hp.n_embd))
    if "token_types.weight" in t:
        x = g.add_vector(x, t.first_row("token_types.weight", hp.n_embd))
    x = normed(g, t, "token_embd_norm", x, eps)
    for layer in range(hp.n_layer):
        x = _block(g, t, hp, layer, x, eps, rope)
    pooled(g, t, x, read_pooling(keys, "mean"))
    return g


def _block(g: Graph, t: Tensors, hp: HParams, layer: int, x: Value, eps: float, rope: RopeSpec) -> Value:
    blk = f"blk.{layer}"
    n_head, n_head_kv = hp.n_head[layer], hp.n_head_kv[layer]
    wq, wk, wv = t.qkv(blk, hp.n_embd, hp.n_q(layer), hp.n_kv(layer))
    q = g.rope(wq.apply(g, x), hp.head_dim, hp.n_rot, "half", rope)
    k = g.rope(wk.apply(g, x), hp.head_dim, hp.n_rot, "half", rope)
    v = wv.apply(g, x)
    a = g.attention_within(q, k, v, n_head, n_head_kv, hp.head_dim, 1.0 / math.sqrt(hp.head_dim))
    a = t.projection(f"{blk}.attn_output", hp.n_embd, hp.n_q(layer)).apply(g, a)
    x = normed(g, t, f"{blk}.attn_output_norm", g.add(a, x), eps)
    gate = t.projection(f"{blk}.ffn_gate", hp.n_ff[layer], hp.n_embd).apply(g, x)
    up = t.projection(f"{blk}.ffn_up", hp.n_ff[layer], hp.n_embd).apply(g, x)
    h = t.projection(f"{blk}.ffn_down", hp.n_embd, hp.n_ff[layer]).apply(g, g.swiglu(gate, up))
    return normed(g, t, f"{blk}.layer_output_norm", g.add(h, x), eps)
