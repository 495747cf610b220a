"""Architectures: a GGUF's metadata and tensors in, the graph of its forward pass out; no file here runs anything.

To add one: a file with `build(keys, tensors, hparams) -> Graph`, and a line in ARCHITECTURES.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels_cpu import KernelError
from kernels_cpu.graph import Graph
from localllm.errors import GGUFError, UnsupportedModelError
from localllm.models import bert, gemma2, gemma3, gemma_embedding, llama, nomic_bert, qwen2, qwen3
from localllm.models.hparams import HParams, read_hparams
from localllm.models.keys import Keys
from localllm.models.pooling import Pooling, read_pooling
from localllm.models.tensors import Tensors

if TYPE_CHECKING:
    from localllm.gguf import GGUFFile

__all__ = ["ARCHITECTURES", "HParams", "ModelGraph", "build", "check_architecture"]

ARCHITECTURES: dict[str, Callable[[Keys, Tensors, HParams], Graph]] = {
    "bert": bert.build,
    "gemma-embedding": gemma_embedding.build,
    "gemma2": gemma2.build,
    "gemma3": gemma3.build,
    "llama": llama.build,
    "nomic-bert": nomic_bert.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
}
"""The builder of each supported `general.architecture`."""


@dataclass(frozen=True)
class ModelGraph:
    """A model ready to be run: its forward pass, its sizes, and what of its rows stands for a text."""

    graph: Graph
    hparams: HParams
    pooling: Pooling


def check_architecture(file: GGUFFile) -> str:
    """The architecture of a GGUF, which is one that can be built.

    Raises:
        GGUFError: the file does not name one.
        UnsupportedModelError: it names another.
    """
    arch = file.architecture
    if arch not in ARCHITECTURES:
        shown = json.dumps(arch[:64], ensure_ascii=False)  # the file's text must not steer a terminal
        raise UnsupportedModelError(
            f"unsupported architecture: {shown} (supported: {', '.join(sorted(ARCHITECTURES))})",
            hint="pick another model, or install a newer localllm",
        )
    return arch


def build(file: GGUFFile) -> ModelGraph:
    """The forward pass of the model in a GGUF. The graph's weights are views of the file, which must stay open.

    Raises:
        GGUFError: metadata or tensors are missing or do not go together.
        UnsupportedModelError: the architecture, or something that this model asks of it, is not supported.
    """
    arch = check_architecture(file)
    keys, tensors = Keys(file, arch), Tensors(file)
    hparams = read_hparams(keys, _n_vocab(file, keys, tensors))
    try:
        graph = ARCHITECTURES[arch](keys, tensors, hparams)
    except KernelError as error:
        raise GGUFError(f"`{arch}` model does not fit together: {error}") from error
    tensors.finish()
    if not graph.is_bidirectional and not keys.flag("attention.causal", True):
        raise UnsupportedModelError(f"unsupported model: `{arch}` with attention that is not causal")
    return ModelGraph(graph, hparams, read_pooling(keys, "mean" if graph.is_bidirectional else "last"))


def _n_vocab(file: GGUFFile, keys: Keys, tensors: Tensors) -> int:
    """Entries of the token list; where the file has none, what it states, or else the rows of its embedding."""
    tokens = file.metadata.raw("tokenizer.ggml.tokens")
    if tokens is not None and tokens.length > 0:
        return tokens.length
    return keys.integer("vocab_size", 0) or tensors.n_rows("token_embd.weight")
