"""Which class of `transformers` becomes which architecture; to add one: a class in a file here, and a line below."""

from __future__ import annotations

import json
from collections.abc import Mapping

from localllm.convert.architectures.base import Architecture
from localllm.convert.architectures.bert import Bert, DistilBert, NomicBert, Roberta
from localllm.convert.architectures.gemma import Gemma2, Gemma3, GemmaEmbedding
from localllm.convert.architectures.llama import Llama, Mistral3, Phi3
from localllm.convert.architectures.qwen import Qwen2, Qwen3, Qwen3Ranker
from localllm.convert.checkpoint import StoredTensor
from localllm.convert.folder import Config, Folder
from localllm.errors import ConvertError

ARCHITECTURES: tuple[type[Architecture], ...] = (
    Bert,
    DistilBert,
    Gemma2,
    Gemma3,
    GemmaEmbedding,
    Llama,
    Mistral3,
    NomicBert,
    Phi3,
    Qwen2,
    Qwen3,
    Qwen3Ranker,
    Roberta,
)

BY_CLASS: dict[str, type[Architecture]] = {name: kind for kind in ARCHITECTURES for name in kind.classes}


def read_architecture(folder: Folder, config: Config, tensors: Mapping[str, StoredTensor]) -> Architecture:
    """A checkpoint as its architecture reads it.

    Raises:
        ConvertError: the class is not known, or the config does not go with the tensors.
    """
    classes = config.get("architectures", [])
    if not isinstance(classes, list) or not classes or not isinstance(classes[0], str):
        raise config.error("architectures", classes, "the name of a class")
    if classes[0] not in BY_CLASS:
        shown = json.dumps(classes[0][:64], ensure_ascii=False)
        raise ConvertError(
            f"unsupported architecture {shown}",
            hint=f"supported are {', '.join(sorted(BY_CLASS))}; or find a GGUF of the model",
        )
    if quantized := config.inner("quantization_config").values:
        raise ConvertError(
            f"{config.path}: the checkpoint is quantized ({quantized.get('quant_method', 'by an unknown method')}), "
            "expected F32, F16 or BF16",
            hint="take the original checkpoint, then quantize it",
        )
    return BY_CLASS[classes[0]](folder, config, tensors)
