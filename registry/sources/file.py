"""`file:/path/to/model.gguf`: a GGUF on this machine, all parts of a split one; it knows nothing of networks.

The file is shared with the store where the file system can (a clone of its blocks, else a
hard link), and copied where it cannot. Through a hard link, a program that writes into the
original in place also changes the blob; programs that replace files do not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from registry.durable import require_space, writing
from registry.errors import SourceError
from registry.names import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, MAX_PART_LENGTH, Name
from registry.progress import PULLING_MANIFEST, VERIFYING, Pace, Progress, check_canceled, pulling
from registry.sources.base import Source, Wanted, finish_pull, wait_for_staging
from registry.store import Store

_CHUNK_BYTES = 1 << 20
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
_QUANT = re.compile(r"[-_.](?P<quant>(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))$", re.IGNORECASE)
_FICLONE = 0x40049409


class FileSource(Source):
    """A GGUF by its path."""

    def local_name(self, location: str) -> Name:
        """`/x/SmolLM2-135M.Q4_1.gguf` becomes `smollm2-135m:q4_1`."""
        file_name = _path_of(location).name
        split = _SPLIT.fullmatch(file_name)
        stem = split["stem"] if split else re.sub(r"\.gguf$", "", file_name, flags=re.IGNORECASE)
        quant = _QUANT.search(stem)
        tag = quant["quant"].lower() if quant else DEFAULT_TAG
        model = stem[: quant.start()] if quant else stem
        return Name(DEFAULT_HOST, DEFAULT_NAMESPACE, _as_part(model) or "model", tag[:MAX_PART_LENGTH])

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
                taken.append((yield from _take(path, staging.path / f"part-{i}", cancel)))
            facts = wanted.inspect([staged for staged, _ in taken])
            for staged, digest in taken:
                size = staged.stat().st_size
                yield pulling(digest, size, size)
            yield VERIFYING
            check_canceled(cancel)
            digests = [digest for _, digest in taken]
            store.pin(staging, digests)
            for staged, digest in taken:
                if not store.blobs.has(digest, staged.stat().st_size):
                    store.blobs.adopt(staged, digest)
            yield from finish_pull(wanted, store, staging, digests, facts, [])


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


def _take(path: Path, staged: Path, cancel: threading.Event) -> Generator[Progress, None, tuple[Path, str]]:
    """Bring one file into the staging folder; gives where it is now, and its digest."""
    try:
        source = open(path, "rb")  # noqa: SIM115 (closed by the next statement)
    except OSError as error:
        raise SourceError(f'cannot read "{path}": {error.strerror}') from error
    with source:
        before = os.fstat(source.fileno())
        if _share(source, path, staged):
            digest = yield from _hash(source, path, None, cancel)
        else:
            require_space(staged.parent, before.st_size)
            with writing(staged), open(staged, "xb") as copy:
                digest = yield from _hash(source, path, copy, cancel)
        after = os.fstat(source.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SourceError(f'"{path}" changed while it was read')
    return staged, digest


def _hash(
    source: BinaryIO, path: Path, copy: BinaryIO | None, cancel: threading.Event
) -> Generator[Progress, None, str]:
    """Read to the end, writing to `copy` if given; gives the digest."""
    total = os.fstat(source.fileno()).st_size
    sha256 = hashlib.sha256()
    pace = Pace()
    completed = 0
    while chunk := source.read(_CHUNK_BYTES):
        check_canceled(cancel)
        sha256.update(chunk)
        if copy is not None:
            copy.write(chunk)
        completed += len(chunk)
        if pace.is_due():
            yield Progress(f"reading {path.name}", total=total, completed=completed)
    return f"sha256:{sha256.hexdigest()}"


def _share(source: BinaryIO, path: Path, staged: Path) -> bool:
    """Make `staged` the same bytes without copying them; False where the file system cannot."""
    if _clone(source, staged):
        return True
    try:
        os.link(path, staged)
    except OSError:
        return False
    if os.path.samestat(os.fstat(source.fileno()), os.stat(staged)):
        return True
    staged.unlink()
    return False


def _clone(source: BinaryIO, staged: Path) -> bool:
    """Share the blocks, each file then going its own way (Linux: btrfs, XFS, bcachefs)."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        with open(staged, "xb") as clone:
            fcntl.ioctl(clone.fileno(), _FICLONE, source.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            staged.unlink()
        return False
    return True
