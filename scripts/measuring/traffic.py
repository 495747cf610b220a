"""The bytes that a model must read for a token; it does not know how fast they come."""

from __future__ import annotations

from localllm.gguf import GGUFFile
from localllm.models import build

KV_ELEMENT_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes of an element of the KV cache by type, scales included."""


class Traffic:
    """What decoding reads: weights, and the keys and values of all positions that a layer sees."""

    def __init__(self, gguf: GGUFFile) -> None:
        tied = "output.weight" not in gguf.tensors
        # Of an untied embedding a token reads one row only.
        tensors = [t for t in gguf.tensors.values() if tied or t.name != "token_embd.weight"]
        self.weight_bytes = sum(t.nbytes for t in tensors)
        nodes = [node.attrs for node in build(gguf).graph.nodes if node.op == "attention"]
        self._layers = [(2 * a["n_head_kv"] * a["head_dim"], a["window"]) for a in nodes]

    def kv_bytes(self, kv: str, depth: int) -> float:
        """Bytes of KV cache of type `kv` that a token with `depth` positions before it reads."""
        elements = sum(width * (min(depth, window) if window else depth) for width, window in self._layers)
        return elements * KV_ELEMENT_BYTES[kv]
