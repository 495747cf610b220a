"""Converts a LoRA adapter of PEFT into a GGUF like those of llama.cpp; it merges and runs nothing.

A weight W [n_out, n_in] becomes W + alpha / rank B A with A [rank, n_in] and B [n_out, rank]. In the GGUF these are the
tensors `<name>.lora_a` and `<name>.lora_b`, float32, in the order of the base's own rows. An embedding is a matrix that
rows are taken of: its A is stored as [rank, tokens], and is [tokens, rank] in the GGUF.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from localllm.convert.architectures import ARCHITECTURES
from localllm.convert.architectures.base import Architecture
from localllm.convert.architectures.decoder import Decoder
from localllm.convert.architectures.llama import Phi3
from localllm.convert.checkpoint import StoredTensor, read_header
from localllm.convert.folder import Config, Folder
from localllm.convert.model import write_gguf
from localllm.convert.sources import Changed, Source, Transposed
from localllm.errors import ConvertError
from localllm.gguf.writer import MetadataValue

WEIGHTS = "adapter_model.safetensors"
NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<name>.+)\.lora_(?:(?P<part>[AB])(?:\.\w+)?\.weight|embedding_(?P<rows>[AB])(?:\.\w+)?)"
)
EMBEDDING = "token_embd.weight"
# Ways of starting whose adapters go with a base that was changed too.
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")


def convert_adapter(
    directory: Path,
    destination: Path,
    *,
    base: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the adapter in a folder of PEFT to the new file `destination`.

    `base` is the metadata of the GGUF that it is for, whose heads decide the order of rows. `progress` as in
    `convert_model`.

    Raises:
        ConvertError: what the folder holds is damaged, of another kind than LoRA, or not for such a base.
        OSError: `destination` exists or cannot be written.
    """
    folder = Folder(directory)
    config = _config(folder)
    pairs = _pairs(folder)
    model = _base(folder, base, pairs)
    alpha = _alpha(config)
    sources: dict[str, Source] = {}
    for name, (a, b) in pairs.items():
        factor = _factor(config, name, a, b, alpha)
        for target, rows in model.sources(model.plain_name(f"{name}.weight"), b).items():
            if f"{target}.lora_a" in sources:
                raise ConvertError(f"{a.path}: tensor {a.name!r}: there is another for {target!r}")
            sources[f"{target}.lora_a"] = Transposed(a) if target == EMBEDDING else a
            sources[f"{target}.lora_b"] = rows if factor == 1.0 else _times(rows, factor)
    metadata: dict[str, MetadataValue] = {
        "general.architecture": model.arch,
        "general.type": "adapter",
        "adapter.type": "lora",
        "general.name": folder.path.resolve().name,
        "general.file_type": 0,
        "general.quantization_version": 2,
        "adapter.lora.alpha": alpha,
    }
    write_gguf(destination, metadata, sources, dict.fromkeys(sources, "F32"), progress)


def _times(source: Source, factor: float) -> Source:
    return Changed(source, lambda x: x * np.float32(factor))


def _config(folder: Folder) -> Config:
    config = folder.json("adapter_config.json")
    if not config.values:
        raise ConvertError(f"{config.path}: missing or empty, expected the settings of a LoRA adapter")
    if config.string("peft_type", default="LORA").upper() != "LORA":
        raise config.error("peft_type", config.get("peft_type"), "LORA")
    for key in ("use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "trainable_token_indices", "modules_to_save"):
        if config.get(key):
            raise config.error(key, config.get(key), "nothing: the adapter is more than LoRA")
    if config.string("bias", default="none") != "none":
        raise config.error("bias", config.get("bias"), "none")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        raise config.error("init_lora_weights", start, "an adapter for an unchanged base")
    return config


def _alpha(config: Config) -> float:
    """What is divided by the rank; of rank-stabilised adapters alpha sqrt(rank), since they divide by its root."""
    alpha, rank = config.number("lora_alpha", low=1e-6, high=1e6), config.integer("r", low=1, high=1 << 16)
    return alpha * math.sqrt(rank) if config.flag("use_rslora", False) else alpha


def _factor(config: Config, name: str, a: StoredTensor, b: StoredTensor, alpha: float) -> float:
    """What B is multiplied by, where a module has another alpha or rank than the adapter says of all."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
        raise ConvertError(
            f"{a.path}: tensors {a.name!r} and {b.name!r} have shapes {list(a.shape)} and {list(b.shape)}, "
            "expected [rank, n_in] and [n_out, rank]"
        )
    rank = a.shape[0]
    stated = _by_pattern(config, "rank_pattern", name, config.integer("r"))
    if rank != stated:
        raise ConvertError(f"{a.path}: tensor {a.name!r} has rank {rank}, expected {stated:g}")
    own = _by_pattern(config, "alpha_pattern", name, config.number("lora_alpha"))
    return (own * math.sqrt(rank) if config.flag("use_rslora", False) else own) / alpha


def _by_pattern(config: Config, key: str, name: str, default: float) -> float:
    """The number of the first pattern that is the end of a module's name."""
    patterns = config.inner(key)
    for pattern in patterns.values:
        try:
            found = re.fullmatch(rf"(?:.*\.)?(?:{pattern})", name)
        except re.error as error:
            raise patterns.error(key, pattern, "a pattern of modules' names") from error
        if found:
            return patterns.number(pattern, low=1e-6, high=1e6)
    return default


def _pairs(folder: Folder) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """A and B by the names of the modules."""
    path = folder.path / WEIGHTS
    if not folder.has(WEIGHTS):
        hint = (
            "adapter_model.bin is a program: save the adapter as safetensors"
            if folder.has("adapter_model.bin")
            else None
        )
        raise ConvertError(f"{path}: missing", hint=hint)
    halves: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in read_header(path).items():
        match = NAME.fullmatch(name)
        if match is None:
            raise ConvertError(
                f"{path}: unexpected tensor {name!r}, expected <module>.lora_A.weight and …lora_B.weight"
            )
        if tensor.dtype not in ("F32", "F16", "BF16"):
            raise ConvertError(f"{path}: tensor {name!r} is {tensor.dtype}, expected F32, F16 or BF16")
        part = match["part"] or match["rows"]
        if halves.setdefault(match["name"], {}).setdefault(part, tensor) is not tensor:
            raise ConvertError(f"{path}: tensor {name!r}: the module has another, expected one adapter")
    for name, parts in halves.items():
        if len(parts) < 2:
            raise ConvertError(f"{path}: module {name!r} has lora_{next(iter(parts))} only, expected lora_A and lora_B")
    if not halves:
        raise ConvertError(f"{path}: no tensors, expected those of a LoRA adapter")
    return {name: (halves[name]["A"], halves[name]["B"]) for name in sorted(halves)}


def _base(folder: Folder, base: Mapping[str, Any], names: Mapping[str, object]) -> Architecture:
    """The base as its architecture reads it, by the metadata of its GGUF."""
    arch = base.get("general.architecture")
    kinds = [kind for kind in ARCHITECTURES if kind.arch == arch and issubclass(kind, Decoder)]
    if not kinds:
        supported = sorted({kind.arch for kind in ARCHITECTURES if issubclass(kind, Decoder)})
        raise ConvertError(
            f"unsupported architecture of an adapter's base: {arch!r} (supported: {', '.join(supported)})"
        )
    fused = arch == Phi3.arch and any(name.endswith((".qkv_proj", ".gate_up_proj")) for name in names)
    keys = {
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
    }
    values = {name: base[f"{arch}.{key}"] for name, key in keys.items() if f"{arch}.{key}" in base}
    config = Config(Path("base model"), {**values, "tie_word_embeddings": False})
    return (Phi3 if fused else kinds[0])(folder, config, {})
