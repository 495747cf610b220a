"""What decoders of Llama's shape have in common: names, sizes, heads; which of them are permuted is not known here."""

from __future__ import annotations

from localllm.convert.architectures.base import Architecture
from localllm.convert.checkpoint import StoredTensor
from localllm.convert.pooling import read_pooling
from localllm.convert.rope import Rope, read_rope
from localllm.convert.sources import Constant, Source
from localllm.errors import ConvertError
from localllm.gguf.writer import MetadataValue

VISION = ("vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "embed_vision.")


class Decoder(Architecture):
    """RMS-normed decoders with rotary positions and a gated feed-forward."""

    ropes: tuple[str, ...] = ("linear", "yarn")
    """Kinds of rope scaling, beside none."""
    freq_base = 10000.0
    activation_key = "hidden_act"
    activations: tuple[str, ...] = ("silu", "swish")

    def plain_name(self, name: str) -> str:
        """Names begin with `model.` or are `lm_head.…`; wrappers with images have `language_model` around that."""
        if name.startswith("language_model.lm_head."):
            return name.removeprefix("language_model.")
        for wrapper in ("model.language_model.model.", "language_model.model.", "model.language_model."):
            if name.startswith(wrapper):
                return f"model.{name.removeprefix(wrapper)}"
        known = ("model.", "lm_head.", "score.", *VISION)
        return name if name.startswith(known) else f"model.{name}"

    def skips(self, name: str) -> bool:
        inner = name.removeprefix("model.")
        return inner.startswith(VISION) or (name == "lm_head.weight" and self.tied)

    @property
    def head_dim(self) -> int:
        n_embd, n_head = self.size("n_embd"), self.size("n_head")
        return self.text.integer("head_dim", default=n_embd // n_head, low=2)

    @property
    def n_head_kv(self) -> int:
        return self.size("n_head_kv", default=self.size("n_head"))

    @property
    def n_rot(self) -> int:
        return int(self.head_dim * self.text.number("partial_rotary_factor", default=1.0, low=1e-3, high=1.0))

    @property
    def rope(self) -> Rope:
        return read_rope(self.text, self.n_rot, self.ropes, self.freq_base)

    def metadata(self) -> dict[str, MetadataValue]:
        self.expect(self.activation_key, *self.activations, default=self.activations[0])
        return {
            "context_length": self.size("n_ctx"),
            "embedding_length": self.size("n_embd"),
            "block_count": self.n_layer,
            "feed_forward_length": self.size("n_ff"),
            "attention.head_count": self.size("n_head"),
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": self.text.number("rms_norm_eps", default=1e-6, low=0),
            **self.rope.metadata,
            **read_pooling(self.folder),
        }

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        return {self.gguf_name(name): stored}

    def extra_sources(self) -> dict[str, Source]:
        """The factors of the frequencies; and it is seen that there is a head where the config wants one."""
        if not self.tied and self.hf_class.endswith("ForCausalLM") and "lm_head.weight" not in self.tensors:
            raise ConvertError(
                f"{self.folder.path}: missing tensor 'lm_head.weight', which tie_word_embeddings = false asks for"
            )
        factors = self.rope.factors
        return {} if factors is None else {"rope_freqs.weight": Constant(factors)}
