"""Converts a folder of safetensors into a GGUF: plans all tensors, then streams them; no architecture is known here.

Of the weights at most PIECE_BYTES, or one attention head, are in memory at a time, with a copy in the target's type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from localllm.convert.architectures import read_architecture
from localllm.convert.architectures.base import Architecture
from localllm.convert.checkpoint import read_checkpoint
from localllm.convert.folder import Folder
from localllm.convert.numbers import TYPES, converted
from localllm.convert.sources import Source
from localllm.convert.vocabulary import read_templates, read_vocabulary
from localllm.errors import ConvertError, LocalLLMError
from localllm.gguf import open_gguf
from localllm.gguf.header import MAX_DIMS, MAX_TENSOR_NAME_BYTES
from localllm.gguf.writer import MetadataValue, TensorPlan, Writer
from localllm.models import build
from localllm.tokenizer import load_tokenizer

Progress = Callable[[int, int], None]
FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32}
PRECISE = ("position_embd.weight", "token_types.weight")
"""Matrices that stay F32, as in llama.cpp's files: rows are added to others."""


def convert_model(
    directory: Path, destination: Path, *, dtype: str = "auto", progress: Progress = lambda done, total: None
) -> None:
    """Write the model in a folder of `transformers` to the new file `destination`, and see that it can be run.

    `dtype` is F32, F16, BF16 or auto: BF16 for checkpoints that are mostly BF16, else F16, which is what llama.cpp and
    Ollama do. Vectors are F32. `progress` gets the bytes of tensors written and those in all.

    Raises:
        ConvertError: what the folder holds is damaged, incomplete, or no model that can be run.
        OSError: `destination` exists or cannot be written.
    """
    folder = Folder(directory)
    config = folder.json("config.json")
    if not config.values:
        raise ConvertError(f"{directory / 'config.json'}: missing or empty")
    model = read_architecture(folder, config, read_checkpoint(folder))
    sources = model.all_sources()
    dtype = _dtype(dtype, sources)
    types = {name: dtype_of(name, source, dtype) for name, source in sources.items()}
    write_gguf(destination, _metadata(model, folder, sources, dtype), sources, types, progress)
    try:
        _check(destination)
    except BaseException:
        destination.unlink(missing_ok=True)
        raise


def write_gguf(
    destination: Path,
    metadata: Mapping[str, MetadataValue],
    sources: Mapping[str, Source],
    types: Mapping[str, str],
    progress: Progress,
) -> None:
    """Stream `sources` into a new GGUF; `types` says F32, F16 or BF16 of each by its name.

    Raises:
        ConvertError: a tensor has a name or a shape that no GGUF can have, or a number that its type cannot hold.
        OSError: `destination` exists or cannot be written.
    """
    plans = [TensorPlan(name, source.shape, TYPES[types[name]]) for name, source in sources.items()]
    for plan in plans:
        if len(plan.name.encode()) > MAX_TENSOR_NAME_BYTES or len(plan.shape) > MAX_DIMS:
            raise ConvertError(f"tensor {plan.name!r} of shape {list(plan.shape)} does not fit a GGUF")
    done, total = 0, sum(plan.nbytes for plan in plans)
    progress(done, total)
    with Writer(destination, metadata, plans) as writer:
        for name, source in sources.items():
            for piece in source.pieces():
                try:
                    data = converted(piece, source.dtype, types[name])
                except ValueError as error:
                    raise ConvertError(f"tensor {name!r}: {error}", hint="convert it to BF16 or F32") from error
                writer.write(data)
                done += data.nbytes
                progress(done, total)
        writer.finish()


def dtype_of(name: str, source: Source, matrices: str) -> str:
    """The type of a tensor where matrices are of the type `matrices`."""
    return "F32" if len(source.shape) < 2 or name in PRECISE or name.endswith("_norm.weight") else matrices


def _dtype(wanted: str, sources: Mapping[str, Source]) -> str:
    if wanted.upper() in TYPES:
        return wanted.upper()
    if wanted != "auto":
        raise ConvertError(f"unsupported type {wanted!r}, expected auto, {', '.join(TYPES)}")
    kinds = Counter(source.dtype for source in sources.values() if len(source.shape) > 1)
    return "BF16" if kinds and kinds.most_common(1)[0][0] == "BF16" else "F16"


def _metadata(
    model: Architecture, folder: Folder, sources: Mapping[str, Source], dtype: str
) -> dict[str, MetadataValue]:
    if "token_embd.weight" not in sources or len(sources["token_embd.weight"].shape) != 2:
        raise ConvertError(f"{folder.path}: missing tensor 'token_embd.weight', the embedding of the tokens")
    n_vocab = sources["token_embd.weight"].shape[0]
    name = model.config.string("_name_or_path", default="").rstrip("/").rpartition("/")[2] or folder.path.resolve().name
    return {
        "general.architecture": model.arch,
        "general.type": "model",
        "general.name": name,
        "general.file_type": FILE_TYPES[dtype],
        "general.quantization_version": 2,
        **{f"{model.arch}.{key}": value for key, value in model.metadata().items()},
        f"{model.arch}.vocab_size": n_vocab,
        **read_vocabulary(folder, model.arch, n_vocab),
        **read_templates(folder),
    }


def _check(path: Path) -> None:
    """See that the file is a whole model: each tensor there, of the right shape, and none too much."""
    try:
        with open_gguf(path) as file:
            build(file)
            load_tokenizer(file)
    except LocalLLMError as error:
        raise ConvertError(f"what was converted cannot be run: {error}", hint=error.hint) from error
