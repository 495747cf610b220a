"""`file:/path/to/model.gguf`: a GGUF on this machine, all parts of a split one; it knows nothing of networks.

The file is shared with the store where the file system can (registry/sharing.py).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

from registry.errors import SourceError
from registry.names import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, MAX_PART_LENGTH, Name
from registry.progress import PULLING_MANIFEST, VERIFYING, Progress, check_canceled, pulling
from registry.sharing import take
from registry.sources.base import Source, Wanted, finish_pull, wait_for_staging
from registry.store import Store

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
_QUANT = re.compile(r"[-_.](?P<quant>(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))$", re.IGNORECASE)


class FileSource(Source):
    """A GGUF by its path."""

    def local_name(self, location: str) -> Name:
        """`/x/SmolLM2-135M.Q4_1.gguf` becomes `smollm2-135m:q4_1`."""
        return name_of_file(_path_of(location).name)

    def pull(self, wanted: Wanted, store: Store, cancel: threading.Event) -> Iterator[Progress]:
        """See Source.pull. Digests become known as the files are read; until then events carry none."""
        yield PULLING_MANIFEST
        named = _all_parts(_path_of(wanted.location))
        # A bad file is refused at once, by the name that the user knows; what counts are the bytes taken below.
        wanted.inspect(named)
        # A cache of downloads often holds links to the real files; those are what can be shared.
        paths = [path.resolve() for path in named]
        waiting = Progress(f"reading {paths[0].name}")
        staging = yield from wait_for_staging(store, f"file:{paths[0]}", cancel, waiting)
        with staging:
            taken = []
            for i, path in enumerate(paths):
                taken.append((yield from take(path, staging.path / f"part-{i}", cancel)))
            facts = wanted.inspect([staged for staged, _ in taken])
            for staged, digest in taken:
                size = staged.stat().st_size
                yield pulling(digest, size, size)
            yield VERIFYING
            check_canceled(cancel)
            digests = [digest for _, digest in taken]
            store.pin(staging, digests)
            for staged, digest in taken:
                # Over what may be there: these bytes are known to be right.
                store.blobs.adopt(staged, digest)
            yield from finish_pull(wanted, store, staging, digests, facts, [])


def name_of_file(path: str) -> Name:
    """The name that a GGUF gets by its own: `x/SmolLM2-135M.Q4_1.gguf` becomes `smollm2-135m:q4_1`."""
    file_name = path.rpartition("/")[2]
    split = _SPLIT.fullmatch(file_name)
    stem = split["stem"] if split else re.sub(r"\.gguf$", "", file_name, flags=re.IGNORECASE)
    quant = _QUANT.search(stem)
    tag = quant["quant"].lower() if quant else DEFAULT_TAG
    model = stem[: quant.start()] if quant else stem
    return Name(DEFAULT_HOST, DEFAULT_NAMESPACE, _as_part(model) or "model", tag[:MAX_PART_LENGTH])


def _path_of(location: str) -> Path:
    """The absolute path of `/x`, `//localhost/x`, `///x` or `~/x`. Raises SourceError."""
    text = re.sub(r"^//(localhost)?/", "/", location)
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise SourceError(f'"file:{location}" is not an absolute path', hint="file:/path/to/model.gguf")
    return path


def _all_parts(path: Path) -> list[Path]:
    """The file, or all parts of the split GGUF that it belongs to, in order."""
    split = _SPLIT.fullmatch(path.name)
    paths = [path]
    if split:
        count = int(split["count"])
        names = (f"{split['stem']}-{part:05d}-of-{split['count']}.gguf" for part in range(1, count + 1))
        paths = [path.with_name(name) for name in names]
        if path not in paths:
            raise SourceError(f'"{path}" is not one of the parts that its name counts')
    for part in paths:
        if not part.is_file():
            raise SourceError(f'"{part}" is not a file' if part.exists() else f'"{part}" does not exist')
    return paths


def _as_part(text: str) -> str:
    """The nearest text that the grammar of a model's name allows; may be empty."""
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip(".-")[:MAX_PART_LENGTH]
