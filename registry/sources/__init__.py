"""Where models come from: one file a source, one line in this table; a source knows nothing of the others."""

from registry.sources.base import Source, Wanted
from registry.sources.file import FileSource
from registry.sources.pip import PipSource

# What stands before the first ":" of a reference -> who pulls it.
SOURCES: dict[str, Source] = {
    "file": FileSource(),
    "pip": PipSource(),
}

__all__ = ["SOURCES", "FileSource", "PipSource", "Source", "Wanted"]
