"""`gemma3`: the text side of Gemma 3."""

from __future__ import annotations

import dataclasses
import math

from kernels_cpu.graph import Graph, RopeSpec, Value
from localllm.models.hparams import MIN_FREQ_BASE, HParams, read_rope
from localllm.models.keys import Keys
from localllm.models.tensors import Tensors
from localllm.models.windows import read_windows

N_LAYER_27B = 62


def build(keys: Keys, t: Tensors, hp: HParams) -> Graph:
    """Norms before and after attention and feed-forward, RMS-normed heads of q and k, five windowed layers of six."""
    g = Graph()
    embedding = t.matrix("token_embd.weight", hp.n_vocab, hp.n_embd)
    rope = read_rope(keys, hp.n_ctx_train)
    near = rope_windowed(keys, rope)
    windows = read_windows(keys, hp.n_layer, keys.integer("attention.sliding_window", 0), period=6)
    scale = keys.number("attention.scale", 0.0) or _scale(hp)
    x = g.scale(g.embedding(embedding), math.sqrt(hp.n_embd))
    for layer in range(hp.n_layer):
        x = _block(g, t, hp, layer, x, near if windows[layer] else rope, scale, windows[layer])
    x = g.rms_norm(x, t.vector("output_norm.weight", hp.n_embd), hp.rms_eps)
    logits = t.output(embedding).apply(g, x)
    final_cap = keys.number("final_logit_softcapping", 0.0, low=0.0)
    g.output(g.softcap(logits, final_cap) if final_cap else logits)
    return g


def rope_windowed(keys: Keys, rope: RopeSpec) -> RopeSpec:
    """Windowed layers keep the frequencies of the short training context: another base, and no scaling."""
    base = keys.number("rope.freq_base_swa", 10000.0, low=MIN_FREQ_BASE)
    return dataclasses.replace(rope, freq_base=base, freq_scale=1.0)


def _scale(hp: HParams) -> float:
    """The 27B model divides by sqrt(n_embd / n_head), which its files do not state."""
    return 1.0 / math.sqrt(hp.n_embd // hp.n_head[0] if hp.n_layer == N_LAYER_27B else hp.head_dim)


def _block(g: Graph, t: Tensors, hp: HParams, layer: int, x: Value, rope: RopeSpec, scale: float, window: int) -> Value:
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
    a = g.attention(q, k, v, layer, n_head, n_head_kv, hp.head_dim, scale, window)
    if layer == hp.n_layer - 1:
        a, x = g.select_outputs(a), g.select_outputs(x)
    a = t.projection(f"{blk}.attn_output", hp.n_embd, hp.n_q(layer)).apply(g, a)
    x = g.add(x, g.rms_norm(a, t.vector(f"{blk}.post_attention_norm.weight", hp.n_embd), hp.rms_eps))
    h = g.rms_norm(x, t.vector(f"{blk}.ffn_norm.weight", hp.n_embd), hp.rms_eps)
    gate = t.projection(f"{blk}.ffn_gate", hp.n_ff[layer], hp.n_embd).apply(g, h)
    up = t.projection(f"{blk}.ffn_up", hp.n_ff[layer], hp.n_embd).apply(g, h)
    h = t.projection(f"{blk}.ffn_down", hp.n_embd, hp.n_ff[layer]).apply(g, g.geglu(gate, up))
    return g.add(x, g.rms_norm(h, t.vector(f"{blk}.post_ffw_norm.weight", hp.n_embd), hp.rms_eps))
