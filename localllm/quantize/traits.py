"""What the choice of types asks about a model beyond its tensors; it reads metadata and chooses nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localllm.gguf.file import GGUFFile

# Models with so many layers share each value head among so many queries that `attn_v` is small and sensitive.
_LAYERS_OF_70B = {"llama": 80, "deci": 80, "olmo": 80, "qwen2": 80, "jais2": 68}


@dataclass(frozen=True)
class Traits:
    """`n_gqa` is query heads ÷ key and value heads of the first layer, 0 where it has none."""

    architecture: str
    n_layer: int = 0
    n_expert: int = 0
    n_gqa: int = 0
    is_70b: bool = False

    @classmethod
    def of(cls, gguf: GGUFFile) -> Traits:
        """The traits that the metadata tell; what is absent counts as 0."""
        arch = gguf.get("general.architecture", str, "")
        n_layer, n_expert = (gguf.get(f"{arch}.{key}", int, 0) for key in ("block_count", "expert_count"))
        n_head = _first(gguf, f"{arch}.attention.head_count", 0)
        n_head_kv = _first(gguf, f"{arch}.attention.head_count_kv", n_head)
        n_gqa = n_head // n_head_kv if n_head_kv else 0
        return cls(arch, n_layer, n_expert, n_gqa, _is_70b(arch, n_layer, n_head, n_head_kv))


def _is_70b(arch: str, n_layer: int, n_head: int, n_head_kv: int) -> bool:
    return _LAYERS_OF_70B.get(arch) == n_layer and (arch != "llama" or n_head != n_head_kv)


def _first(gguf: GGUFFile, key: str, default: int) -> int:
    """A number, or the first of an array of one a layer."""
    if key not in gguf.metadata:
        return default
    if gguf.metadata.raw(key) is None:
        return gguf.get(key, int)
    values: Any = gguf.get_array(key, int)
    return int(values[0]) if len(values) else default
