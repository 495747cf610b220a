"""`gemma-embedding`: EmbeddingGemma, a Gemma 3 whose rows see each other both ways."""

from __future__ import annotations

import math

from kernels_cpu.graph import Graph, RopeSpec, Value
from localllm.models.gemma3 import rope_windowed
from localllm.models.hparams import HParams, read_rope
from localllm.models.keys import Keys
from localllm.models.pooling import pooled, read_pooling
from localllm.models.tensors import Tensors
from localllm.models.windows import read_windows


def build(keys: Keys, t: Tensors, hp: HParams) -> Graph:
    """As Gemma 3, with windows to both sides; two projections may follow the pooling."""
    g = Graph()
    rope = read_rope(keys, hp.n_ctx_train)
    near = rope_windowed(keys, rope)
    windows = read_windows(keys, hp.n_layer, keys.integer("attention.sliding_window"), period=6)
    x = g.scale(g.embedding(t.matrix("token_embd.weight", hp.n_vocab, hp.n_embd)), math.sqrt(hp.n_embd))
    t.skip("output.weight")
    for layer in range(hp.n_layer):
        x = _block(g, t, hp, layer, x, near if windows[layer] else rope, windows[layer])
    x = g.rms_norm(x, t.vector("output_norm.weight", hp.n_embd), hp.rms_eps)
    pooled(g, t, x, read_pooling(keys, "mean"))
    return g


def _block(g: Graph, t: Tensors, hp: HParams, layer: int, x: Value, rope: RopeSpec, window: int) -> Value:
    blk = f"blk.{layer}"
    n_head, n_head_kv, dim = hp.n_head[layer], hp.n_head_kv[layer], hp.head_dim
    wq, wk, wv = t.qkv(blk, hp.n_embd, hp.n_q(layer), hp.n_kv(layer))
    h = g.rms_norm(x, t.vector(f"{blk}.attn_norm.weight", hp.n_embd), hp.rms_eps)
    q = g.head_norm(wq.apply(g, h), t.vector(f"{blk}.attn_q_norm.weight", dim), hp.rms_eps, dim)
    k = g.head_norm(wk.apply(g, h), t.vector(f"{blk}.attn_k_norm.weight", dim), hp.rms_eps, dim)
    q, k = (g.rope(heads, dim, hp.n_rot, "half", rope) for heads in (q, k))
    a = g.attention_within(q, k, wv.apply(g, h), n_head, n_head_kv, dim, 1.0 / math.sqrt(dim), window)
    a = t.projection(f"{blk}.attn_output", hp.n_embd, hp.n_q(layer)).apply(g, a)
    x = g.add(x, g.rms_norm(a, t.vector(f"{blk}.post_attention_norm.weight", hp.n_embd), hp.rms_eps))
    h = g.rms_norm(x, t.vector(f"{blk}.ffn_norm.weight", hp.n_embd), hp.rms_eps)
    gate = t.projection(f"{blk}.ffn_gate", hp.n_ff[layer], hp.n_embd).apply(g, h)
    up = t.projection(f"{blk}.ffn_up", hp.n_ff[layer], hp.n_embd).apply(g, h)
    h = t.projection(f"{blk}.ffn_down", hp.n_embd, hp.n_ff[layer]).apply(g, g.geglu(gate, up))
    return g.add(x, g.rms_norm(h, t.vector(f"{blk}.post_ffw_norm.weight", hp.n_embd), hp.rms_eps))
