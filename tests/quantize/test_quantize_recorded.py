"""The files are llama.cpp's, bit for bit: types and bytes of every matrix, for every preset, with importance or not.

`tests/fixtures/quantize/llama_quantize.json` holds, for each preset, what `llama-quantize` b11434 made of the small
model of `conftest.py`: the type and the CRC-32 of each matrix.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from localllm.gguf import open_gguf
from localllm.quantize import PRESETS, quantize

RECORDED: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "quantize" / "llama_quantize.json").read_text()
)
# Together these make every type and read both forms of importance.
QUICK = ("Q4_0", "Q4_1", "Q5_0 dat", "Q5_1", "Q3_K_M", "Q4_K_M gguf", "IQ4_XS", "IQ4_NL", "MXFP4_MOE", "TQ1_0", "TQ2_0")
QUICK += ("Q2_K", "BF16", "F32")


def test_every_preset_is_recorded() -> None:
    assert {name.split()[0] for name in RECORDED} == set(PRESETS)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RECORDED]
)
def test_files_are_llamacpps(
    name: str,
    f16_model: Path,
    small_imatrix: Callable[..., Path],
    small_gguf_imatrix: Callable[[Path], Path],
    tmp_path: Path,
) -> None:
    preset, _, form = name.partition(" ")
    imatrix = {"dat": small_imatrix, "gguf": small_gguf_imatrix}[form](tmp_path / "imatrix") if form else None
    quantize([f16_model], tmp_path / "q.gguf", PRESETS[preset], imatrix=imatrix)
    with open_gguf(tmp_path / "q.gguf") as made:
        got = {
            tensor.name: f"{tensor.type.name} {zlib.crc32(tensor.data):08x}"
            for tensor in made.tensors.values()
            if len(tensor.shape) > 1
        }
    assert got == RECORDED[name]
