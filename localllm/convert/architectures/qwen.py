"""`qwen2` and `qwen3`: the dense Qwen models, and the embedders and rankers made of them."""

from __future__ import annotations

from localllm.convert.architectures.decoder import Decoder
from localllm.convert.checkpoint import StoredTensor
from localllm.convert.sources import Source
from localllm.gguf.writer import MetadataValue


class Qwen2(Decoder):
    """Nothing is changed on the way."""

    arch = "qwen2"
    classes: tuple[str, ...] = ("Qwen2ForCausalLM", "Qwen2Model")

    def metadata(self) -> dict[str, MetadataValue]:
        if self.text.flag("use_sliding_window", False):
            raise self.text.error("use_sliding_window", True, f"false for `{self.arch}`")
        if self.text.flag("is_causal", True) is False:
            raise self.text.error("is_causal", False, f"true for `{self.arch}`")
        return super().metadata()


class Qwen3(Qwen2):
    """Heads of queries and keys are normed."""

    arch = "qwen3"
    classes: tuple[str, ...] = ("Qwen3ForCausalLM", "Qwen3Model")


class Qwen3Ranker(Qwen3):
    """A ranker, whose only score is told by one row beside the layers."""

    classes: tuple[str, ...] = ("Qwen3ForSequenceClassification",)

    def metadata(self) -> dict[str, MetadataValue]:
        labels = self.config.inner("id2label").values
        names = [str(name) for _, name in sorted(labels.items(), key=lambda item: int(item[0]))]
        known: dict[str, MetadataValue] = {"classifier.output_labels": names} if names else {}
        return {**super().metadata(), "pooling_type": 4, **known}

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        if name.startswith("score."):
            return {f"cls.output.{name.removeprefix('score.')}": stored}
        return super().sources(name, stored)
