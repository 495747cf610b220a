"""What a model can be quantised to, by the names that people use; standard library only, it knows no tensors."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from localllm.errors import QuantizeError
from localllm.gguf.types import GGMLType


@dataclass(frozen=True)
class Preset:
    """A mix of types. `base` is what most matrices get, `file_type` the number in `general.file_type`."""

    name: str
    base: GGMLType
    file_type: int
    needs_imatrix: bool = False
    """Whether nothing useful comes of it without an importance matrix."""


_ALL = (
    Preset("F32", GGMLType.F32, 0),
    Preset("F16", GGMLType.F16, 1),
    Preset("BF16", GGMLType.BF16, 32),
    Preset("Q4_0", GGMLType.Q4_0, 2),
    Preset("Q4_1", GGMLType.Q4_1, 3),
    Preset("Q5_0", GGMLType.Q5_0, 8),
    Preset("Q5_1", GGMLType.Q5_1, 9),
    Preset("Q8_0", GGMLType.Q8_0, 7),
    Preset("Q2_K", GGMLType.Q2_K, 10),
    Preset("Q2_K_S", GGMLType.Q2_K, 21, needs_imatrix=True),
    Preset("Q3_K_S", GGMLType.Q3_K, 11),
    Preset("Q3_K_M", GGMLType.Q3_K, 12),
    Preset("Q3_K_L", GGMLType.Q3_K, 13),
    Preset("Q4_K_S", GGMLType.Q4_K, 14),
    Preset("Q4_K_M", GGMLType.Q4_K, 15),
    Preset("Q5_K_S", GGMLType.Q5_K, 16),
    Preset("Q5_K_M", GGMLType.Q5_K, 17),
    Preset("Q6_K", GGMLType.Q6_K, 18),
    Preset("IQ4_NL", GGMLType.IQ4_NL, 25),
    Preset("IQ4_XS", GGMLType.IQ4_XS, 30),
    Preset("MXFP4_MOE", GGMLType.MXFP4, 38),
    Preset("TQ1_0", GGMLType.TQ1_0, 36),
    Preset("TQ2_0", GGMLType.TQ2_0, 37),
)
PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}


def parse_preset(text: str) -> Preset:
    """The preset called `text`, in any case; `Q4_K` is Q4_K_M, and so on.

    Raises:
        QuantizeError: there is no such preset, or none that can be made here.
    """
    name = text.strip().upper()
    name = ALIASES.get(name, name)
    if name in PRESETS:
        return PRESETS[name]
    raise QuantizeError(
        f"unsupported quantization type {text} - supported types are {', '.join(PRESETS)}", hint=_hint(name)
    )


def _hint(name: str) -> str | None:
    if name.startswith(("IQ1", "IQ2", "IQ3")):
        return f"{name} models run, but are not made here: take one that was made elsewhere, or use Q2_K or IQ4_XS"
    near = difflib.get_close_matches(name, [*PRESETS, *ALIASES], n=1)
    return f"did you mean {near[0]}?" if near else None
