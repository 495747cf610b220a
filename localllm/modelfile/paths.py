"""Whether a FROM, ADAPTER or DRAFT names a path or a model; it looks at what exists, and not into it."""

from __future__ import annotations

import re
from pathlib import Path

from localllm.errors import ModelfileError

# What a model's name cannot begin with, a drive of Windows, and the endings of files of weights.
_PATH = re.compile(r"[./~\\].*|[A-Za-z]:[\\/].*|.*\.(?:gguf|safetensors|bin|pth)", re.IGNORECASE | re.DOTALL)
# `hf.co/user/repository:file.gguf`, `https://…`, `pip:…`: a name, or what a pull takes.
_REFERENCE = re.compile(r"[^:]*/[^:/]+/[^:/]+:[^/:]+|[a-z]{2,}:.*", re.IGNORECASE | re.DOTALL)


def locate(value: str, folder: Path) -> Path | None:
    """The path that a value means, relative to the Modelfile's folder, `~` being a home; None for a model's name.

    Raises:
        ModelfileError: it looks like a path, and nothing is there.
    """
    try:
        path = folder / Path(value).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a NUL
        if not _PATH.fullmatch(value):
            return None
        raise ModelfileError(f'"{value:.200}" is no path: {error}') from error
    if _PATH.fullmatch(value) and not _REFERENCE.fullmatch(value):
        raise ModelfileError(f'"{path}" does not exist', hint="paths are relative to the Modelfile")
    return None
