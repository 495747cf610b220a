"""What a job asks for, as calls of what converts and quantises; it knows nothing of pipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localllm.convert import convert_adapter, convert_model
from localllm.gguf.header import Header
from localllm.quantize import parse_preset, quantize

Progress = Callable[[int, int], None]


def run(job: Mapping[str, Any], progress: Progress) -> None:
    """Do it; `progress` gets bytes done and bytes in all.

    Raises:
        LocalLLMError: the job cannot be done with these files.
        KeyError: it is no job of those in `JOBS`, or lacks a field.
    """
    JOBS[job["job"]](job, progress)


def _convert_model(job: Mapping[str, Any], progress: Progress) -> None:
    convert_model(Path(job["directory"]), Path(job["destination"]), progress=progress)


def _convert_adapter(job: Mapping[str, Any], progress: Progress) -> None:
    with Header(job["base"]) as base:
        convert_adapter(Path(job["directory"]), Path(job["destination"]), base=base.metadata, progress=progress)


def _quantize(job: Mapping[str, Any], progress: Progress) -> None:
    quantize(
        [Path(source) for source in job["sources"]],
        Path(job["destination"]),
        parse_preset(job["preset"]),
        imatrix=Path(job["imatrix"]) if job.get("imatrix") else None,
        progress=progress,
    )


JOBS: dict[str, Callable[[Mapping[str, Any], Progress], None]] = {
    "convert_model": _convert_model,
    "convert_adapter": _convert_adapter,
    "quantize": _quantize,
}
