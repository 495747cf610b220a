"""Where models come from: one file a source, one line in this table; a source knows nothing of the others."""

from registry.sources.base import Source, Wanted
from registry.sources.file import FileSource
from registry.sources.hf import HFSource
from registry.sources.http import HTTPSource
from registry.sources.oci import OCISource
from registry.sources.pip import PipSource

# What stands before the first ":" of a reference -> who pulls it. The last three have no such prefix (no reference
# has one with a slash): addresses of GGUFs, names at Hugging Face, all other names.
HTTP = "http/"
HF = "hf/"
REGISTRY = "registry/"
SOURCES: dict[str, Source] = {
    "file": FileSource(),
    "pip": PipSource(),
    HTTP: HTTPSource(),
    HF: HFSource(),
    REGISTRY: OCISource(),
}

__all__ = [
    "HF",
    "HTTP",
    "REGISTRY",
    "SOURCES",
    "FileSource",
    "HFSource",
    "HTTPSource",
    "OCISource",
    "PipSource",
    "Source",
    "Wanted",
]
