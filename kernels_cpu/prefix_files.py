"""Where pages of KV caches lie on disk, and which go first when they take too much; it never looks into a file.

    prefixes/<model digest>-<variant>/<chain>-<chain of the page before>.kv

A chain names a page by the tokens up to its end; a variant is what else its bytes depend on. A page is of use only with
all pages before it: so it counts as used when one behind it was, and goes after these.

Only the standard library, because the command line shows and clears the folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

PREFIXES = "prefixes"
PAGE_SUFFIX, PARTIAL_SUFFIX = ".kv", ".partial"
CHAIN_DIGITS, BEFORE_DIGITS = 32, 16

# Once there is too much, so much of the limit is left: looking at all files should be rare.
LEFT_SHARE = 0.9


def prefixes_folder(folder: Path, identity: str, variant: str) -> Path:
    """Where in the cache folder the pages of a model lie; `identity` is the digest of its file."""
    return folder / PREFIXES / f"{identity.removeprefix('sha256:')}-{variant}"


def page_name(chain: bytes, before: bytes) -> str:
    """The name of a page's file; `before` is the chain of the page before, or of the root."""
    return f"{chain.hex()[:CHAIN_DIGITS]}-{before.hex()[:BEFORE_DIGITS]}{PAGE_SUFFIX}"


@dataclass
class _Page:
    path: Path
    n_bytes: int
    used_s: float
    name: str
    name_before: str
    n_behind: int = 0


def size_and_use(folder: Path) -> tuple[int, float]:
    """Bytes of the pages of a model, and Unix time when one was used last."""
    pages = _pages(folder)
    return sum(page.n_bytes for page in pages), max((page.used_s for page in pages), default=0.0)


def prune_prefixes(folder: Path, max_bytes: float, max_age_s: float) -> int:
    """Remove, of all models, pages unused for `max_age_s`, and where they take more than `max_bytes` those that were
    used longest ago; gives the bytes that are left. What cannot be removed stays."""
    pages = [page for model in _folders(folder) for page in _in_order(_pages(model))]
    pages.sort(key=lambda page: page.used_s)
    n_bytes = sum(page.n_bytes for page in pages)
    most = max_bytes * LEFT_SHARE if n_bytes > max_bytes else max_bytes
    oldest_s = time.time() - max_age_s
    for page in pages:
        if n_bytes <= most and page.used_s >= oldest_s:
            break
        with contextlib.suppress(OSError):
            page.path.unlink()
            n_bytes -= page.n_bytes
    return n_bytes


def _folders(folder: Path) -> list[Path]:
    return [path for path in (folder / PREFIXES).glob("[!.]*") if path.is_dir()]


def _pages(folder: Path) -> list[_Page]:
    pages = []
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for item in found:
            if item.name.endswith(PAGE_SUFFIX):
                with contextlib.suppress(OSError):
                    name, _, before = item.name.removesuffix(PAGE_SUFFIX).partition("-")
                    status = item.stat(follow_symlinks=False)
                    pages.append(_Page(Path(item.path), status.st_size, status.st_mtime, name[:BEFORE_DIGITS], before))
    return pages


def _in_order(pages: list[_Page]) -> list[_Page]:
    """The pages of a model, each behind all that begin with it, and used when the last of these was."""
    by_name = {page.name: page for page in pages}
    for page in pages:
        if before := by_name.get(page.name_before):
            before.n_behind += 1
    ordered = [page for page in pages if page.n_behind == 0]
    for page in ordered:  # which grows meanwhile
        if before := by_name.get(page.name_before):
            before.used_s = max(before.used_s, page.used_s)
            before.n_behind -= 1
            if before.n_behind == 0:
                ordered.append(before)
    return [*ordered, *(page for page in pages if page.n_behind > 0)]  # names that go in a circle are nobody's
