"""What a Modelfile names, found: the model, and the files by the names they get in the request; it asks no server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localllm.errors import ModelfileError
from localllm.modelfile import Modelfile, find_files, locate

Files = dict[str, Path]


@dataclass
class Components:
    """`model` is the name of an existing model, "" for none."""

    model: str = ""
    files: Files = field(default_factory=dict)
    adapters: Files = field(default_factory=dict)
    draft_files: Files = field(default_factory=dict)
    imatrix: Files = field(default_factory=dict)


def find_components(modelfile: Modelfile, folder: Path, imatrix: Path | None) -> Components:
    """Everything that is to be brought to the server.

    Raises:
        ModelfileError: a path at which nothing is, a folder without a model, two models.
    """
    found = Components()
    names = []
    for source in modelfile.sources:
        path = locate(source, folder)
        if path is None:
            names.append(source)
        else:
            _add(found.files, find_files(path))
    if len(set(names)) > 1:
        raise ModelfileError(f"FROM names several models: {', '.join(names)}", hint="name one of them")
    found.model = names[0] if names else ""
    found.adapters = _paths("ADAPTER", modelfile.adapters, folder)
    found.draft_files = _paths("DRAFT", modelfile.drafts, folder)
    if imatrix is not None:
        if not imatrix.is_file():
            raise ModelfileError(f'"{imatrix}" does not exist')
        found.imatrix = {imatrix.name: imatrix}
    return found


def _paths(keyword: str, values: Sequence[str], folder: Path) -> Files:
    files: Files = {}
    for value in values:
        path = locate(value, folder)
        if path is None:
            raise ModelfileError(f'"{folder / value}" does not exist', hint=f"{keyword} names a file or a folder")
        _add(files, find_files(path))
    return files


def _add(files: Files, more: Files) -> None:
    """Files of several folders may have one name: the later ones get a folder of their own."""
    clash = any(name in files and files[name] != path for name, path in more.items())
    prefix = f"{len(files)}/" if clash else ""
    files.update({prefix + name: path for name, path in more.items()})
