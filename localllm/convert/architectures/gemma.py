"""`gemma2`, `gemma3` and `gemma-embedding`: their norms are stored as distances from 1."""

from __future__ import annotations

import math

import numpy as np

from localllm.convert.architectures.decoder import Decoder
from localllm.convert.checkpoint import StoredTensor, read_checkpoint
from localllm.convert.folder import Config, Folder
from localllm.convert.pooling import modules
from localllm.convert.rope import rope_config
from localllm.convert.sources import Changed, Source
from localllm.errors import ConvertError
from localllm.gguf.writer import MetadataValue

ONE = np.float32(1)


class _Gemma(Decoder):
    default_tied = True
    activation_key = "hidden_activation"
    activations = ("gelu_pytorch_tanh",)
    period = 2

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        target = self.gguf_name(name)
        return {target: Changed(stored, lambda x: x + ONE) if target.endswith("norm.weight") else stored}

    def metadata(self) -> dict[str, MetadataValue]:
        found = {**super().metadata(), "attention.sliding_window": self.text.integer("sliding_window", default=4096)}
        scalar = self.text.number("query_pre_attn_scalar", default=float(self.head_dim), low=1e-6)
        if scalar != self.head_dim:
            found["attention.scale"] = 1.0 / math.sqrt(scalar)
        return found | self._pattern()

    def _pattern(self) -> dict[str, MetadataValue]:
        """Which layers see a window, where it is not the last of each `period` that sees everything."""
        kinds = self.text.get("layer_types")
        usual = [layer % self.period < self.period - 1 for layer in range(self.n_layer)]
        flags = usual
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != self.n_layer:
                raise self.text.error("layer_types", kinds, f"a list of {self.n_layer}, one for each layer")
            flags = [kind == "sliding_attention" for kind in kinds]
        elif "sliding_window_pattern" in self.text:
            period = self.text.integer("sliding_window_pattern", low=1)
            flags = [layer % period < period - 1 for layer in range(self.n_layer)]
        return {} if flags == usual else {"attention.sliding_window_pattern": list(flags)}


class Gemma2(_Gemma):
    """Scores and logits are soft-capped."""

    arch = "gemma2"
    classes: tuple[str, ...] = ("Gemma2ForCausalLM",)
    ropes: tuple[str, ...] = ()

    def metadata(self) -> dict[str, MetadataValue]:
        return {
            **super().metadata(),
            "attn_logit_softcapping": self.text.number("attn_logit_softcapping", default=0.0, low=0),
            "final_logit_softcapping": self.text.number("final_logit_softcapping", default=0.0, low=0),
        }


class Gemma3(_Gemma):
    """The text side of Gemma 3; windowed layers have a base of their own."""

    arch = "gemma3"
    classes: tuple[str, ...] = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
    ropes: tuple[str, ...] = ("linear",)
    freq_base = 1_000_000.0
    period = 6

    def text_config(self) -> Config:
        """Gemma's own multimodal configs leave out what `transformers` has as defaults."""
        text = self.config.inner("text_config")
        return Config(text.path, {**_GEMMA3_DEFAULTS, **text.values}) if text.values else self.config

    def metadata(self) -> dict[str, MetadataValue]:
        self.expect("attn_logit_softcapping", None)
        local = rope_config(self.text, "sliding_attention") if "rope_parameters" in self.text else self.text
        key = "rope_theta" if local is not self.text else "rope_local_base_freq"
        found = {**super().metadata(), "rope.freq_base_swa": local.number(key, default=10000.0, low=1.01)}
        cap = self.text.number("final_logit_softcapping", default=0.0, low=0)
        return found | ({"final_logit_softcapping": cap} if cap else {})


_GEMMA3_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
}


class GemmaEmbedding(Gemma3):
    """EmbeddingGemma: rows see each other both ways; two layers follow the pooling."""

    arch = "gemma-embedding"
    classes: tuple[str, ...] = ("Gemma3TextModel",)

    def metadata(self) -> dict[str, MetadataValue]:
        self.expect("use_bidirectional_attention", True)
        found = super().metadata()
        for name, dense in self._dense().items():
            found[f"{name}_feat_in"] = dense.shape[1]
            found[f"{name}_feat_out"] = dense.shape[0]
        return found

    def extra_sources(self) -> dict[str, Source]:
        return {f"{name}.weight": stored for name, stored in self._dense().items()}

    def _dense(self) -> dict[str, StoredTensor]:
        """The layers after the pooling, by the folders that sentence-transformers keeps them in."""
        found: dict[str, StoredTensor] = {}
        for path in modules(self.folder, "Dense"):
            folder = Folder(self.folder.path / path)
            activation = folder.json("config.json").string("activation_function", default="Identity")
            tensors = read_checkpoint(folder)
            if not activation.endswith("Identity") or set(tensors) != {"linear.weight"} or len(found) == 2:
                raise ConvertError(f"{folder.path}: expected one of two layers without activation and bias")
            found[f"dense_{2 + len(found)}"] = tensors["linear.weight"]
        return found
