"""`bert`: BERT, RoBERTa and DistilBERT as encoders of texts, and as rankers."""

from __future__ import annotations

import re

from localllm.convert.architectures.base import Architecture
from localllm.convert.checkpoint import StoredTensor
from localllm.convert.pooling import read_pooling
from localllm.convert.sources import Source
from localllm.errors import ConvertError
from localllm.gguf.writer import MetadataValue

HEADS = re.compile(r"^(cls|pooler|lm_head|vocab_transform|vocab_layer_norm|vocab_projector|dropout)\.")
"""Layers that are no part of a text's vector."""
RANK = 4


class Encoder(Architecture):
    """Encoders with layer norms."""

    wrappers: tuple[str, ...] = ()
    """Prefixes that models with a head put before the names."""

    def plain_name(self, name: str) -> str:
        for wrapper in self.wrappers:
            name = name.removeprefix(wrapper)
        return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")

    @property
    def ranks(self) -> bool:
        return self.hf_class.endswith("ForSequenceClassification")

    def skips(self, name: str) -> bool:
        return HEADS.match(name) is not None

    def metadata(self) -> dict[str, MetadataValue]:
        pooling = read_pooling(self.folder)
        if self.ranks:
            labels = self.config.inner("id2label").values
            names = [str(labels[key]) for key in sorted(labels, key=lambda key: (len(key), key))]
            pooling = {"pooling_type": RANK, **({"classifier.output_labels": names} if names else {})}
        return {
            "context_length": self.size("n_ctx"),
            "embedding_length": self.size("n_embd"),
            "block_count": self.n_layer,
            "feed_forward_length": self.size("n_ff"),
            "attention.head_count": self.size("n_head"),
            "attention.layer_norm_epsilon": self.text.number("layer_norm_eps", "layer_norm_epsilon", default=1e-12),
            "attention.causal": False,
            **pooling,
        }


class Bert(Encoder):
    """Learned positions; rankers have a layer with tanh, the pooler, before their scores."""

    arch = "bert"
    classes: tuple[str, ...] = ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification")
    wrappers = ("bert.",)

    def skips(self, name: str) -> bool:
        return super().skips(name) and not (self.ranks and name.startswith("pooler."))

    def metadata(self) -> dict[str, MetadataValue]:
        self.expect("hidden_act", "gelu", default="gelu")
        self.expect("position_embedding_type", "absolute", default="absolute")
        self.expect("is_decoder", False, default=False)
        return super().metadata()

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        for stem, target in (("pooler.dense.", "cls."), ("classifier.", "cls.output.")):
            if self.ranks and name.startswith(stem):
                return {target + name.removeprefix(stem): stored}
        return super().sources(name, stored)


class Roberta(Bert):
    """The first rows of its positions belong to padding."""

    classes: tuple[str, ...] = ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification")
    wrappers = ("roberta.",)

    def skips(self, name: str) -> bool:
        return Encoder.skips(self, name)

    @property
    def n_unused(self) -> int:
        """Rows of positions before that of a text's first token."""
        return self.text.integer("pad_token_id", default=1, high=64) + 1

    def metadata(self) -> dict[str, MetadataValue]:
        return {**super().metadata(), "context_length": self.size("n_ctx") - self.n_unused}

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        if name == "embeddings.position_embeddings.weight":
            self.expect_rows(stored, self.size("n_ctx"))
            return {"position_embd.weight": stored.rows(self.n_unused, self.size("n_ctx"))}
        for stem, target in (("classifier.dense.", "cls."), ("classifier.out_proj.", "cls.output.")):
            if self.ranks and name.startswith(stem):
                return {target + name.removeprefix(stem): stored}
        return super().sources(name, stored)


class DistilBert(Encoder):
    """BERT without token types, under other names."""

    arch = "bert"
    classes: tuple[str, ...] = ("DistilBertModel", "DistilBertForMaskedLM")
    wrappers = ("distilbert.",)

    def metadata(self) -> dict[str, MetadataValue]:
        self.expect("activation", "gelu", default="gelu")
        return super().metadata()


class NomicBert(Encoder):
    """Rotary positions and a gated feed-forward; configs of its maker, and those of `transformers`."""

    arch = "nomic-bert"
    classes: tuple[str, ...] = ("NomicBertModel", "NomicBertForMaskedLM")
    wrappers = ("bert.", "nomic_bert.")

    def metadata(self) -> dict[str, MetadataValue]:
        if self.text.integer("num_experts", default=0):
            raise self.text.error("num_experts", self.text.get("num_experts"), "a dense model")
        self.expect("activation_function", "swiglu", "silu", default=self.text.get("hidden_act", "swiglu"))
        for key, value in (("rotary_emb_fraction", 1.0), ("prenorm", False), ("rotary_emb_interleaved", False)):
            self.expect(key, value, default=value)
        rope = self.text.inner("rope_parameters")
        if rope.string("rope_type", default="default") != "default":
            raise rope.error("rope_type", rope.get("rope_type"), "default")
        base = rope.get("rope_theta", self.text.get("rotary_emb_base", 1000.0 if rope.values else 10000.0))
        if not isinstance(base, int | float) or base <= 1:
            raise self.text.error("rotary_emb_base", base, "a number above 1")
        trained = self.text.integer("max_trained_positions", default=self.size("n_ctx"), low=1)
        return {
            **super().metadata(),
            "context_length": min(trained, self.size("n_ctx")),
            "rope.freq_base": float(base),
        }

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        if ".experts." in name or ".router." in name:
            raise ConvertError(f"{stored.path}: tensor {stored.name!r}: expected a dense model")
        return super().sources(name, stored)
