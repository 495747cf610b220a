"""`llama`: Llama, Mistral and all that are published under their classes, such as SmolLM2, TinyLlama and Yi."""

from __future__ import annotations

from localllm.convert.architectures.decoder import Decoder
from localllm.convert.checkpoint import StoredTensor
from localllm.convert.folder import Config
from localllm.convert.sources import Interleaved, Source
from localllm.gguf.writer import MetadataValue


class Llama(Decoder):
    """Queries and keys are interleaved; Llama 3's scaling of frequencies becomes a tensor."""

    arch = "llama"
    classes: tuple[str, ...] = (
        "LlamaForCausalLM",
        "LLaMAForCausalLM",
        "LlamaModel",
        "MistralForCausalLM",
        "MistralModel",
    )
    ropes: tuple[str, ...] = ("linear", "yarn", "llama3")

    def metadata(self) -> dict[str, MetadataValue]:
        self.expect("partial_rotary_factor", 1, 1.0, default=1)
        window = self.text.integer("sliding_window", default=0)
        return {**super().metadata(), **({"attention.sliding_window": window} if window else {})}

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        target = self.gguf_name(name)
        if ".attn_q." in target:
            return {target: Interleaved(stored, self.size("n_head"))}
        if ".attn_k." in target:
            return {target: Interleaved(stored, self.n_head_kv)}
        return {target: stored}


class Mistral3(Llama):
    """The text side of Mistral Small 3.1 and later, and of LLaVA around a Llama or Mistral."""

    classes: tuple[str, ...] = ("Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration")

    def text_config(self) -> Config:
        text = self.config.inner("text_config")
        kind = text.string("model_type", default="llama")
        if kind not in ("llama", "mistral"):
            raise text.error("model_type", kind, "llama or mistral")
        return text


class Phi3(Llama):
    """Phi-3 and Phi-4 without long context: a Llama whose projections are fused. They are taken apart here."""

    classes: tuple[str, ...] = ("Phi3ForCausalLM",)
    ropes: tuple[str, ...] = ()

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        block, _, part = name.rpartition(".self_attn.qkv_proj.")
        if block:
            n_q, n_kv = self.size("n_head") * self.head_dim, self.n_head_kv * self.head_dim
            ends = {"q_proj": n_q, "k_proj": n_q + n_kv, "v_proj": n_q + 2 * n_kv}
            return self._taken_apart(f"{block}.self_attn", part, stored, ends)
        block, _, part = name.rpartition(".mlp.gate_up_proj.")
        if block:
            n_ff = self.size("n_ff")
            return self._taken_apart(f"{block}.mlp", part, stored, {"gate_proj": n_ff, "up_proj": 2 * n_ff})
        return super().sources(name, stored)

    def _taken_apart(self, stem: str, part: str, stored: StoredTensor, ends: dict[str, int]) -> dict[str, Source]:
        self.expect_rows(stored, max(ends.values()))
        found: dict[str, Source] = {}
        begin = 0
        for name, end in ends.items():
            found |= super().sources(f"{stem}.{name}.{part}", stored.rows(begin, end))
            begin = end
        return found
