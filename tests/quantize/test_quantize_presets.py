"""Names of presets, as people write them, and what is said to those who ask for another."""

from __future__ import annotations

import subprocess
import sys

import pytest

from localllm.gguf.types import FILE_TYPE_NAMES
from localllm.quantize import PRESETS, QuantizeError, parse_preset


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("Q4_K_M", "Q4_K_M"), ("q4_k_m", "Q4_K_M"), ("q4_K", "Q4_K_M"), (" Q8_0 ", "Q8_0"), ("bf16", "BF16")),
        *(("Q3_K", "Q3_K_M"), ("q5_k", "Q5_K_M"), ("MXFP4", "MXFP4_MOE"), ("mxfp4_moe", "MXFP4_MOE")),
    ],
)
def test_names_in_any_case_and_their_aliases(text: str, name: str) -> None:
    assert parse_preset(text).name == name


@pytest.mark.parametrize("name", PRESETS)
def test_file_types_are_those_that_show_spells(name: str) -> None:
    assert FILE_TYPE_NAMES[PRESETS[name].file_type] == name.removesuffix("_MOE")


def test_only_the_smallest_needs_an_imatrix() -> None:
    assert [preset.name for preset in PRESETS.values() if preset.needs_imatrix] == ["Q2_K_S"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *(("IQ2_XS", "IQ2_XS models run, but are not made here"), ("iq3_m", "IQ3_M models run")),
        *(("Q4_KM", "did you mean Q4_K_M?"), ("Q9", None), ("", None)),
    ],
)
def test_others_are_refused_in_ollamas_words(text: str, hint: str | None) -> None:
    with pytest.raises(QuantizeError) as caught:
        parse_preset(text)
    assert str(caught.value) == f"unsupported quantization type {text} - supported types are {', '.join(PRESETS)}"
    assert hint in caught.value.hint if hint and caught.value.hint else caught.value.hint == hint


def test_presets_load_neither_numpy_nor_numba() -> None:
    code = "import sys, localllm.quantize; print(sorted({'numpy', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
