"""What lies in folders that others change at the same moment; what is gone is not there, and no error.

`Path.glob` and `Path.rglob` raise where a folder goes between being listed and being read (before Python 3.13).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder."""
    for root, _, names in os.walk(folder):
        yield from (Path(root, name) for name in names)


def matching(folder: Path, pattern: str) -> list[Path]:
    """What matches a pattern of `glob`, in order; a name that begins with a dot must be asked for."""
    return [folder / name for name in sorted(glob.glob(pattern, root_dir=folder))]
