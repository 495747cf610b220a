"""What is to be done to each tensor, decided and checked before a byte is written; it reads no tensor data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localllm.errors import QuantizeError
from localllm.gguf.file import GGUFFile, TensorInfo
from localllm.gguf.types import GGMLType, ValueType
from localllm.gguf.writer import MetadataValue, TensorPlan, Typed, typed_metadata
from localllm.quantize.imatrix import ImportanceMatrix
from localllm.quantize.mix import FLOATS, choose_types
from localllm.quantize.presets import Preset
from localllm.quantize.traits import Traits

QUANTIZATION_VERSION = 2
NOT_FROM_QUANTS = "quantization is only supported for F16, BF16 and F32 models"
_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_ALWAYS_WITHOUT = ("token_embd.weight", "per_layer_token_embd.weight", "output.weight")


@dataclass(frozen=True)
class Job:
    """A tensor and the type it gets. `importance`: f32 [n_matrices, n_columns], or None."""

    tensor: TensorInfo
    type: GGMLType
    importance: npt.NDArray[np.float32] | None = None

    @property
    def is_copy(self) -> bool:
        return self.type is self.tensor.type

    @property
    def plan(self) -> TensorPlan:
        return TensorPlan(self.tensor.name, self.tensor.shape[::-1], self.type)


def jobs_for(gguf: GGUFFile, preset: Preset, imatrix: ImportanceMatrix | None, allow_requantize: bool) -> list[Job]:
    """A job for each tensor, in the order of the file.

    Raises:
        QuantizeError: the model is quantised already and that is not allowed, or importance is missing or foreign.
    """
    tensors = list(gguf.tensors.values())
    traits = Traits.of(gguf)
    if imatrix is not None:
        imatrix.check(tensors, traits.architecture)
    types = choose_types(tensors, preset, traits, has_imatrix=imatrix is not None)
    jobs = []
    for tensor in tensors:
        kind = types[tensor.name]
        used = imatrix if kind is not tensor.type else None
        job = Job(tensor, kind, used.weights_of(tensor) if used else None)
        _check_source(job, allow_requantize)
        _check_importance(job, preset)
        jobs.append(job)
    return jobs


def _check_source(job: Job, allow_requantize: bool) -> None:
    kind = job.tensor.type
    if job.is_copy or kind in FLOATS:
        return
    if not allow_requantize or kind.block_size == 1:
        raise QuantizeError(
            NOT_FROM_QUANTS, hint=f"tensor {job.tensor.name!r} is {kind.name}: start from the model's F16 or BF16 file"
        )


def _check_importance(job: Job, preset: Preset) -> None:
    name = job.tensor.name
    if preset.needs_imatrix and job.type is preset.base and job.importance is None and name not in _ALWAYS_WITHOUT:
        raise QuantizeError(
            f"{preset.name} needs an importance matrix, and there is none for tensor {name!r}",
            hint="give an importance matrix made from this model, or use Q2_K",
        )


def metadata_for(gguf: GGUFFile, preset: Preset, imatrix: ImportanceMatrix | None) -> dict[str, MetadataValue]:
    """The first part's metadata with the types they have, without the keys of a split, and what was done."""
    kept = {key: value for key, value in typed_metadata(gguf.headers[0]).items() if key not in _SPLIT_KEYS}
    kept["general.quantization_version"] = Typed(ValueType.UINT32, QUANTIZATION_VERSION)
    kept["general.file_type"] = Typed(ValueType.UINT32, preset.file_type)
    return kept | (_imatrix_keys(imatrix) if imatrix else {})


def _imatrix_keys(imatrix: ImportanceMatrix) -> dict[str, MetadataValue]:
    """The file's name goes without its folders, which are nobody's business who gets the model."""
    keys: dict[str, MetadataValue] = {"quantize.imatrix.file": imatrix.path.name}
    if imatrix.datasets:
        keys["quantize.imatrix.dataset"] = imatrix.datasets[0]
    keys["quantize.imatrix.entries_count"] = Typed(ValueType.UINT32, len(imatrix.weights))
    if imatrix.n_chunks > 0:
        keys["quantize.imatrix.chunks_count"] = Typed(ValueType.UINT32, imatrix.n_chunks)
    return keys


def total_bytes(jobs: Sequence[Job]) -> tuple[int, int]:
    """Bytes of the tensors as they are, and as they will be."""
    return sum(job.tensor.nbytes for job in jobs), sum(job.plan.nbytes for job in jobs)
