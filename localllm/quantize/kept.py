"""Tensors that keep the type they have, whatever a model is quantised to; it knows names and shapes, no data.

Facts of llama.cpp's `llama-quantize`, b11434.
"""

from __future__ import annotations

from localllm.gguf.header import TensorHeader

_NAMES = frozenset({"position_embd.weight", "token_types.weight"})

# Small beside the rest, or of more weight than their size.
_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight"),
    *("altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight"),
    *("indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight"),
    *("time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight"),
    *("time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight"),
    *("time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight"),
    *("time_mix_lerp_fused.weight", "attn_rel_b.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger"),
    *("a.rvq.codebook", "mm.a.code_embd"),
)
_PARTS_OF = {
    "glm5-next": (
        *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj"),
        *("indexer_compressor_gate", "indexer_compressor_ape"),
        *("ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight"),
        *("attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight"),
    )
}


def keeps_type(tensor: TensorHeader, architecture: str) -> bool:
    """Whether a tensor stays as it is: no matrix, no weight, or one of the exceptions."""
    name = tensor.name
    if n_dims(tensor) < 2 or not name.endswith("weight") or name in _NAMES:
        return True
    return any(part in name for part in (*_PARTS, *_PARTS_OF.get(architecture, ())))


def n_dims(tensor: TensorHeader) -> int:
    """How many dimensions a tensor has, without those of size 1 at the end."""
    shape = tensor.shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return len(shape)
