"""`bert`: BERT and RoBERTa encoders for embeddings and ranking, such as MiniLM, BGE, E5, GTE and Arctic Embed."""

from __future__ import annotations

import math

from kernels_cpu.graph import Graph, Value
from localllm.models.hparams import HParams
from localllm.models.keys import Keys
from localllm.models.pooling import pooled, read_pooling
from localllm.models.tensors import Tensors, normed


def build(keys: Keys, t: Tensors, hp: HParams) -> Graph:
    """Learned positions, layer norm after each addition, GELU in its exact form, which these models are trained with.

    llama.cpp takes GELU's tanh form from a table of float16: vectors differ by a few parts in ten thousand. Every text
    is a first sentence: of the token types the first row counts.
    """
    g = Graph()
    eps = keys.number("attention.layer_norm_epsilon", low=0.0)
    x = g.embedding(t.matrix("token_embd.weight", hp.n_vocab, hp.n_embd))
    positions = g.position_embedding(t.matrix("position_embd.weight", hp.n_ctx_train, hp.n_embd))
    if "token_types.weight" in t:
        x = g.add_vector(x, t.first_row("token_types.weight", hp.n_embd))
    x = normed(g, t, "token_embd_norm", g.add(x, positions), eps)
    for layer in range(hp.n_layer):
        x = _block(g, t, hp, layer, x, eps)
    pooled(g, t, x, read_pooling(keys, "mean"))
    return g


def _block(g: Graph, t: Tensors, hp: HParams, layer: int, x: Value, eps: float) -> Value:
    blk = f"blk.{layer}"
    n_head, n_head_kv = hp.n_head[layer], hp.n_head_kv[layer]
    q, k, v = (w.apply(g, x) for w in t.qkv(blk, hp.n_embd, hp.n_q(layer), hp.n_kv(layer)))
    a = g.attention_within(q, k, v, n_head, n_head_kv, hp.head_dim, 1.0 / math.sqrt(hp.head_dim))
    a = t.projection(f"{blk}.attn_output", hp.n_embd, hp.n_q(layer)).apply(g, a)
    x = normed(g, t, f"{blk}.attn_output_norm", g.add(a, x), eps)
    h = g.gelu(t.projection(f"{blk}.ffn_up", hp.n_ff[layer], hp.n_embd).apply(g, x))
    h = t.projection(f"{blk}.ffn_down", hp.n_embd, hp.n_ff[layer]).apply(g, h)
    return normed(g, t, f"{blk}.layer_output_norm", g.add(h, x), eps)
