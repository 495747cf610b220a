"""Reads what sentence-transformers keeps beside an encoder: its modules and the pooling; it reads no weights."""

from __future__ import annotations

from pathlib import PurePosixPath

from localllm.convert.folder import Folder
from localllm.errors import ConvertError
from localllm.gguf.writer import MetadataValue

_MODES = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
_NAMES = {"mean": 1, "cls": 2, "lasttoken": 3}


def modules(folder: Folder, kind: str) -> list[str]:
    """The subfolders of the modules of a kind (the last part of their class), by modules.json.

    Raises:
        ConvertError: modules.json is no list of modules, or names a place outside the folder.
    """
    text = folder.text("modules.json")
    if text is None:
        return []
    listed = folder.json_list("modules.json")
    found = [entry.string("path") for entry in listed if entry.string("type").rpartition(".")[2] == kind]
    for path in found:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\\" in path:
            raise ConvertError(f"{folder.path / 'modules.json'}: path {path!r}, expected a folder beside it")
    return found


def read_pooling(folder: Folder) -> dict[str, MetadataValue]:
    """`pooling_type`, if modules.json has a module that pools.

    Raises:
        ConvertError: the pooling is neither the mean, nor the first, nor the last row.
    """
    for path in modules(folder, "Pooling"):
        config = folder.json(f"{path}/config.json")
        modes = [key for key, value in config.values.items() if key.startswith("pooling_mode_") and value is True]
        if "pooling_mode" in config:
            modes = [config.string("pooling_mode")]
        kinds = {**_MODES, **_NAMES}
        if len(modes) != 1 or modes[0] not in kinds:
            raise config.error("pooling_mode", modes, f"one of {', '.join(_MODES)}")
        return {"pooling_type": kinds[modes[0]]}
    return {}
