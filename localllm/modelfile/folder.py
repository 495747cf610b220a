"""Which files a FROM or ADAPTER means that names a path, by Ollama's rules; it reads only their first bytes.

Of a folder, the first of these kinds whose files are all what their names say:

    model*.safetensors (also in folders of the folder), adapters.safetensors or adapter_model.safetensors,
    consolidated*.safetensors, pytorch_model*.bin, consolidated*.pth, *.gguf, *.bin

and beside all but GGUFs the tokenizer and the JSON files, also those one folder down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from localllm.errors import ModelfileError

_SNIFFED_BYTES = 512
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)


def find_files(path: Path) -> dict[str, Path]:
    """The files by the names they are to have in the request: relative, with slashes.

    A file means itself, and one part of a split GGUF all parts.
    Raises:
        ModelfileError: a folder without a model, a part that is missing, a file that cannot be read.
    """
    found = _of_folder(path) if path.is_dir() else _of_file(path)
    return dict(sorted(found.items()))


def _of_file(path: Path) -> dict[str, Path]:
    if not path.is_file():
        raise ModelfileError(f'"{path}" is no file and no folder', hint="devices and pipes have no end to wait for")
    split = _SPLIT.fullmatch(path.name)
    if split is None:
        return {path.name: path}
    names = [f"{split['stem']}-{part:05d}-of-{split['count']}.gguf" for part in range(1, int(split["count"]) + 1)]
    parts = {name: path.with_name(name) for name in names}
    if path.name not in parts:
        return {path.name: path}
    for part in parts.values():
        if not part.is_file():
            raise ModelfileError(f'"{part}" does not exist, a part of the split model "{path}"')
    return parts


def _of_folder(folder: Path) -> dict[str, Path]:
    for patterns, is_kind, brings_texts in _KINDS:
        weights = _matches(folder, patterns)
        if weights and all(is_kind(_first_bytes(path)) for path in weights):
            texts = _texts(folder) if brings_texts else []
            return {path.relative_to(folder).as_posix(): path for path in (*weights, *texts)}
    raise ModelfileError(
        "no Modelfile or safetensors files found", hint=f'"{folder}" holds no safetensors and no GGUF files'
    )


def _texts(folder: Path) -> list[Path]:
    documents = _matches(folder, ("*.json", "*/*.json"))
    for path in documents:
        if b"\0" in _first_bytes(path):
            raise ModelfileError(f'invalid content type: expected "text/plain" for "{path}"')
    return [*documents, *_matches(folder, ("chat_template.jinja", "tokenizer.model"))]


def _matches(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]


def _first_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_SNIFFED_BYTES)
    except OSError as error:
        raise ModelfileError(f'cannot read "{path}": {error.strerror}') from error


def _is_safetensors(start: bytes) -> bool:
    """A header's length in 8 bytes, then its JSON object."""
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") >= 2


def _is_zip(start: bytes) -> bool:
    return start.startswith(b"PK")


def _is_gguf(start: bytes) -> bool:
    return start.startswith(b"GGUF")


_KINDS: tuple[tuple[tuple[str, ...], Callable[[bytes], bool], bool], ...] = (
    (("model*.safetensors", "*/model*.safetensors"), _is_safetensors, True),
    (("adapters.safetensors", "adapter_model.safetensors"), _is_safetensors, True),
    (("consolidated*.safetensors",), _is_safetensors, True),
    (("pytorch_model*.bin",), _is_zip, True),
    (("consolidated*.pth",), _is_zip, True),
    (("*.gguf",), _is_gguf, False),
    (("*.bin",), _is_gguf, False),
)
