"""What the architectures have in common: from a config and stored tensors to metadata and sources of a GGUF.

Names are mapped by the tables of the `gguf` package. It knows nothing of vocabularies, and writes nothing.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping

import gguf

from localllm.convert.checkpoint import StoredTensor
from localllm.convert.folder import Config, Folder
from localllm.convert.sources import Source
from localllm.errors import ConvertError
from localllm.gguf.writer import MetadataValue

MAX_LAYERS = 512
NO_WEIGHTS = re.compile(r"(\.|^)(rotary_emb\.inv_freq|masked_bias|position_ids|rotary_pos_emb\.inv_freq)$")
"""Tensors that hold what the config says already."""


class Architecture(ABC):
    """A checkpoint as one architecture reads it. A subclass is one `general.architecture`, or a variant of one.

    `classes` are the names in `architectures` of config.json that it stands for.
    """

    arch = ""
    classes: tuple[str, ...] = ()
    default_tied = False
    """What `tie_word_embeddings` means where a config does not say."""

    def __init__(self, folder: Folder, config: Config, tensors: Mapping[str, StoredTensor]) -> None:
        self.folder, self.config = folder, config
        self.hf_class = next(iter(config.get("architectures", [""])), "")
        self.text = self.text_config()
        self.n_layer = self.text.integer(*self.names_of("n_layer"), low=1, high=MAX_LAYERS)
        self._names = gguf.get_tensor_name_map(_model_arch(self.arch), self.n_layer)
        self.tensors = {self.plain_name(name): tensor for name, tensor in tensors.items()}
        if len(self.tensors) != len(tensors):
            raise ConvertError(f"{folder.path}: several tensors have one meaning, expected one model")

    # What subclasses say.

    def text_config(self) -> Config:
        """The part of the config that is about the language model."""
        return self.config

    def names_of(self, size: str) -> tuple[str, ...]:
        """The config's keys for a size."""
        return _SIZES[size]

    def plain_name(self, name: str) -> str:
        """A tensor's name without the prefixes that wrappers of the model put before it."""
        return name

    def skips(self, name: str) -> bool:
        """Whether a tensor (by its plain name) has no part in what a GGUF is for."""
        return False

    @abstractmethod
    def metadata(self) -> dict[str, MetadataValue]:
        """The hyperparameters: keys without `<arch>.`."""

    def sources(self, name: str, stored: StoredTensor) -> dict[str, Source]:
        """What a stored tensor (by its plain name) becomes: sources by their names in the GGUF."""
        return {self.gguf_name(name): stored}

    def extra_sources(self) -> dict[str, Source]:
        """Tensors that the checkpoint does not have."""
        return {}

    # What all share.

    def size(self, size: str, default: int | None = None, low: int = 1) -> int:
        """A size from the config."""
        names = self.names_of(size)
        return self.text.integer(*names, low=low) if default is None else self.text.integer(*names, default=default)

    @property
    def tied(self) -> bool:
        """Whether the head's weights are the embedding's."""
        return bool(self.text.flag("tie_word_embeddings", self.config.flag("tie_word_embeddings", self.default_tied)))

    def gguf_name(self, name: str) -> str:
        """The GGUF's name of a tensor, by its plain name.

        Raises:
            ConvertError: the architecture has no such tensor.
        """
        found = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ConvertError(f"{self.folder.path}: unexpected tensor {name!r} for `{self.arch}`")
        return found

    def all_sources(self) -> dict[str, Source]:
        """All tensors of the GGUF, in the order of the checkpoint.

        Raises:
            ConvertError: a tensor is not known, double, or of integers.
        """
        found: dict[str, Source] = {}
        for name, stored in self.tensors.items():
            if NO_WEIGHTS.search(name) or self.skips(name):
                continue
            if stored.dtype not in ("F64", "F32", "F16", "BF16"):
                raise ConvertError(
                    f"{stored.path}: tensor {stored.name!r} is {stored.dtype}, expected F32, F16 or BF16",
                    hint="quantized checkpoints are not converted: take the original one, then quantize it",
                )
            for target, source in self.sources(name, stored).items():
                if target in found:
                    raise ConvertError(f"{stored.path}: tensor {stored.name!r}: there is another {target!r}")
                found[target] = source
        return {**found, **self.extra_sources()}

    def expect_rows(self, stored: StoredTensor, n_rows: int) -> None:
        """See that a tensor has the rows that will be taken from it.

        Raises:
            ConvertError: it has another number of rows.
        """
        if not stored.shape or stored.shape[0] != n_rows:
            raise ConvertError(
                f"{stored.path}: tensor {stored.name!r} has shape {list(stored.shape)}, expected {n_rows} rows"
            )

    def expect(self, key: str, *accepted: object, default: object = None) -> None:
        """See that the config says what this architecture does.

        Raises:
            ConvertError: it says something else.
        """
        value = self.text.get(key, default)
        if value not in accepted:
            raise self.text.error(key, value, " or ".join(map(repr, accepted)) + f" for `{self.arch}`")


_SIZES: dict[str, tuple[str, ...]] = {
    "n_layer": ("num_hidden_layers", "n_layers", "n_layer"),
    "n_embd": ("hidden_size", "dim", "n_embd"),
    "n_head": ("num_attention_heads", "n_heads", "n_head"),
    "n_head_kv": ("num_key_value_heads",),
    "n_ff": ("intermediate_size", "hidden_dim", "n_inner"),
    "n_ctx": ("max_position_embeddings", "n_positions"),
}


def _model_arch(arch: str) -> gguf.MODEL_ARCH:
    return next(model for model, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
