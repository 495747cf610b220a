"""The models on this disk, in Ollama's layout, shared safely between processes; it knows nothing of networks.

    manifests/<host>/<namespace>/<model>/<tag>    a manifest, byte for byte as it was served
    blobs/sha256-<hex>                            a blob that manifests name
    blobs/.staging-<key>/                         blobs on their way (staging.py)
    blobs/sha256-<hex>-partial…                   interrupted downloads
    localllm.lock                                 held while names or blobs are added or removed
    localllm.intact.json                          which blobs were found right, and their size, time and inode then

Readers take no lock: every file appears whole, by a rename. A manifest is written after its
blobs are durable, and blobs go after the last manifest that names them: killed at any
instant, the store holds at worst blobs that nothing names, which `prune` removes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.blobs import Blobs
from registry.durable import make_directories, sync_directory, write_whole, writing
from registry.errors import BrokenModelError, InvalidDigestError, InvalidNameError, ModelNotFoundError
from registry.intact import FileState, IntactBlobs, file_state
from registry.locks import FileLock
from registry.manifest import (
    MAX_MANIFEST_BYTES,
    Layer,
    Manifest,
    ModelConfig,
    parse_config,
    parse_json_object,
    parse_manifest,
)
from registry.names import Name
from registry.staging import Staging, pinned_digests, remove_abandoned, try_staging
from registry.walking import matching

DEFAULT_GRACE_S = 3600.0

_STAGING_POLL_S = 0.1
_MAX_TEXT_BYTES = 16 << 20
# Directly below manifests/, four levels above where readers (Ollama's too) look for manifests.
_TEMPORARY_MANIFEST = ".new-"

# A blob, or what an interrupted download left of one.
_BLOB_FILE = re.compile(r"sha256-([0-9a-f]{64})(-partial.*)?")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSummary:
    """A model in a list. `digest`: 64 hex of its manifest; `size` in bytes; `modified_ns`: Unix time."""

    name: Name
    digest: str
    size: int
    modified_ns: int
    config: ModelConfig


@dataclass(frozen=True)
class ResolvedModel(ModelSummary):
    """All that a runner needs. Paths are those of blobs; more than one model path is a split GGUF, in order, of which
    `model_digest` is that of all parts (`Manifest.weights_digest`)."""

    manifest: Manifest
    model_digest: str
    model_paths: tuple[Path, ...]
    projector_paths: tuple[Path, ...]
    adapter_paths: tuple[Path, ...]
    draft_paths: tuple[Path, ...]
    template: str | None
    system: str | None
    params: dict[str, Any]
    messages: list[dict[str, Any]]
    licenses: list[str]


@dataclass(frozen=True)
class PruneReport:
    """What `prune` did. `skipped` holds the manifests that could not be read: then no blob was removed."""

    n_removed: int
    freed_bytes: int
    skipped: tuple[str, ...] = ()


class Store:
    """A folder of models. Made on the first write; an Ollama folder works as it is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = Blobs(root / "blobs")
        self._manifests = root / "manifests"
        self._intact = IntactBlobs(root / "localllm.intact.json")

    # ---- reading

    def find(self, name: Name) -> Name | None:
        """The stored name that equals `name` but for case, or None."""
        parts = _find_ignoring_case(self._manifests, name.parts)
        if parts is None:
            return None
        host, namespace, model, tag = parts
        return Name(host, namespace, model, tag, name.scheme)

    def names(self) -> list[Name]:
        """Every name that has a manifest, readable or not."""
        found: list[Name] = []
        for path in self._manifest_paths():
            with contextlib.suppress(InvalidNameError):
                found.append(_name_of(path))
        return found

    def models(self) -> list[ModelSummary]:
        """Every readable model, the newest first; an unreadable one is logged and left out."""
        found: list[ModelSummary] = []
        for path in self._manifest_paths():
            try:
                found.append(self._summary(_name_of(path)))
            except (BrokenModelError, InvalidNameError, ModelNotFoundError) as error:
                _log.warning("left out of the list: %s: %s", path, error)
        return sorted(found, key=lambda model: (-model.modified_ns, str(model.name)))

    def summary(self, name: Name) -> ModelSummary:
        """One model as in the list. Raises ModelNotFoundError, BrokenModelError."""
        return self._summary(self._require(name))

    def manifest(self, name: Name) -> Manifest:
        """The manifest of a model. Raises ModelNotFoundError, BrokenModelError."""
        return self._read_manifest(self._require(name))[0]

    def resolve(self, name: Name) -> ResolvedModel:
        """Everything about a model, its blobs checked for being there in full length.

        Raises:
            ModelNotFoundError: no such name.
            BrokenModelError: a manifest or blob that is missing or nonsense.
        """
        stored = self._require(name)
        manifest, modified_ns = self._read_manifest(stored)
        return ResolvedModel(
            name=stored,
            digest=manifest.digest,
            size=manifest.size,
            modified_ns=modified_ns,
            config=self._config(manifest),
            manifest=manifest,
            model_digest=manifest.weights_digest,
            model_paths=self._paths(stored, manifest.of_kind("model")),
            projector_paths=self._paths(stored, manifest.of_kind("projector")),
            adapter_paths=self._paths(stored, manifest.of_kind("adapter")),
            draft_paths=self._paths(stored, manifest.of_kind("draft")),
            template=self._last_text(manifest, "template", "prompt"),
            system=self._last_text(manifest, "system"),
            params=self._params(manifest),
            messages=self._messages(manifest),
            licenses=[self._text(layer) for layer in manifest.of_kind("license")],
        )

    def is_known_intact(self, digest: str) -> bool:
        """Whether a blob was found to be right and has not been touched since."""
        return self._intact.has(self.blobs.path(digest))

    def state_of(self, digest: str) -> FileState:
        """What `remember_intact` wants, taken before the bytes are looked at. Raises OSError."""
        return file_state(self.blobs.path(digest))

    # ---- writing

    def remember_intact(self, digest: str, state: FileState) -> None:
        """Note that a blob had the right bytes when it was in this state."""
        with self._changing():
            self._intact.add(self.blobs.path(digest), state)

    def write_manifest(self, name: Name, raw: bytes) -> set[str]:
        """Give `name` (in the case it already has, if any) these manifest bytes, verbatim.

        Gives the digests that the former manifest of the name had and this one has not, for `remove_unused`.

        Raises:
            BrokenModelError: the bytes are no manifest, or one of its blobs is not in the store.
            NoSpaceError, StoreNotWritableError.
        """
        manifest = parse_manifest(raw, name.short)
        with self._changing():
            for layer in (manifest.config, *manifest.layers):
                if layer.digest and not self.blobs.has(layer.digest, layer.size):
                    raise BrokenModelError(name.short, f"blob {layer.digest} is missing or has another size")
            return self._replace_manifest(name, manifest)

    def copy(self, source: Name, destination: Name) -> None:
        """Make `destination` another name of `source`, over what it was. Raises ModelNotFoundError."""
        with self._changing():
            manifest = self.manifest(source)
            self._remove_unnamed(self._replace_manifest(destination, manifest))

    def delete(self, name: Name) -> None:
        """Remove a name, and the blobs that no other name (nor a pull under way) needs.

        Raises:
            ModelNotFoundError, StoreNotWritableError.
        """
        with self._changing():
            stored = self._require(name)
            try:
                digests = self._read_manifest(stored)[0].digests
            except BrokenModelError as error:
                _log.warning("removing a manifest that cannot be read, its blobs are left to prune: %s", error)
                digests = set()
            path = self._manifest_path(stored)
            path.unlink()
            sync_directory(path.parent)
            self._remove_empty_folders(path.parent)
            self._remove_unnamed(digests)

    def remove_unused(self, digests: Iterable[str]) -> int:
        """Remove those of some blobs that no manifest names; gives how many went."""
        wanted = set(digests)
        if not wanted:
            return 0
        with self._changing():
            return self._remove_unnamed(wanted)[0]

    def staging(self, key: str, check: Callable[[], None] = lambda: None) -> Staging:
        """Open the staging folder of `key`, waiting while another has it; `check` may raise to give up.

        Raises:
            NoSpaceError, StoreNotWritableError.
        """
        while True:
            staging = try_staging(self.blobs.directory, key)
            if staging is not None:
                return staging
            check()
            time.sleep(_STAGING_POLL_S)

    def pin(self, staging: Staging, digests: Iterable[str]) -> None:
        """Keep blobs, there already or soon, from being removed as unused until `staging` is closed."""
        with self._changing():
            for digest in digests:
                staging.pin(digest)

    def prune(self, grace_s: float = DEFAULT_GRACE_S) -> PruneReport:
        """Tidy up after interrupted work: for the start of a server.

        Removes staging folders and temporary files of dead processes, blobs that nothing names and
        partial downloads, both once they are older than `grace_s` (a download that its user gave up
        at once), and empty manifest folders.
        Blobs stay when any manifest cannot be read, because it may name them.
        """
        if not self.root.is_dir():
            return PruneReport(0, 0)
        with self._changing():
            remove_abandoned(self.blobs.directory)
            for path in self._manifests.glob(f"{_TEMPORARY_MANIFEST}*"):
                path.unlink(missing_ok=True)
            self._rename_old_blobs()
            for folder in matching(self._manifests, "*/*/*"):
                self._remove_empty_folders(folder)
            used, unreadable = self._used_digests()
            if unreadable:
                return PruneReport(0, 0, tuple(unreadable))
            return self._remove_old(used, pinned_digests(self.blobs.directory), time.time() - grace_s)

    # ---- names and manifests

    def _require(self, name: Name) -> Name:
        stored = self.find(name)
        if stored is None:
            raise ModelNotFoundError(name.short)
        return stored

    def _manifest_path(self, name: Name) -> Path:
        return self._manifests.joinpath(*name.parts)

    def _manifest_paths(self) -> list[Path]:
        return [path for path in matching(self._manifests, "*/*/*/*") if path.is_file()]

    def _read_manifest(self, stored: Name) -> tuple[Manifest, int]:
        path = self._manifest_path(stored)
        try:
            with open(path, "rb") as file:
                raw = file.read(MAX_MANIFEST_BYTES + 1)
                modified_ns = os.fstat(file.fileno()).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ModelNotFoundError(stored.short) from error
        except OSError as error:
            raise BrokenModelError(stored.short, error.strerror or str(error)) from error
        return parse_manifest(raw, stored.short), modified_ns

    def _replace_manifest(self, name: Name, manifest: Manifest) -> set[str]:
        stored = self.find(name) or self._with_existing_folders(name)
        try:
            former = self._read_manifest(stored)[0].digests
        except (BrokenModelError, ModelNotFoundError):
            former = set()
        path = self._manifest_path(stored)
        with writing(path):
            make_directories(path.parent)
            write_whole(path, manifest.raw, self._manifests, _TEMPORARY_MANIFEST)
        return former - manifest.digests

    def _with_existing_folders(self, name: Name) -> Name:
        """`name` with the folders it shares with other models spelled as they are on disk."""
        folder = self._manifests
        parts: list[str] = []
        for part in name.parts[:3]:
            parts.append(next(iter(_entries_ignoring_case(folder, part)), part))
            folder = folder / parts[-1]
        return Name(parts[0], parts[1], parts[2], name.tag, name.scheme)

    def _summary(self, stored: Name) -> ModelSummary:
        manifest, modified_ns = self._read_manifest(stored)
        return ModelSummary(stored, manifest.digest, manifest.size, modified_ns, self._config(manifest))

    def _remove_empty_folders(self, folder: Path) -> None:
        """Remove `folder` and its parents below manifests/ as long as they are empty."""
        while folder != self._manifests:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    # ---- what layers hold

    def _config(self, manifest: Manifest) -> ModelConfig:
        if not manifest.config.digest:
            return ModelConfig()
        raw = self.blobs.read(manifest.config.digest, _MAX_TEXT_BYTES)
        return parse_config(raw, f"blob {manifest.config.digest}")

    def _paths(self, stored: Name, layers: list[Layer]) -> tuple[Path, ...]:
        for layer in layers:
            if not self.blobs.has(layer.digest, layer.size):
                raise BrokenModelError(
                    stored.short,
                    f"blob {layer.digest} is missing or has another size",
                    hint=f"localllm pull {stored.short}",
                )
        return tuple(self.blobs.path(layer.digest) for layer in layers)

    def _text(self, layer: Layer) -> str:
        return self.blobs.read(layer.digest, _MAX_TEXT_BYTES).decode("utf-8", errors="replace")

    def _last_text(self, manifest: Manifest, *kinds: str) -> str | None:
        layers = manifest.of_kind(*kinds)
        return self._text(layers[-1]) if layers else None

    def _params(self, manifest: Manifest) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for layer in manifest.of_kind("params"):
            raw = self.blobs.read(layer.digest, _MAX_TEXT_BYTES)
            params.update(parse_json_object(raw, f"blob {layer.digest}"))
        return params

    def _messages(self, manifest: Manifest) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for layer in manifest.of_kind("messages"):
            try:
                document = json.loads(self.blobs.read(layer.digest, _MAX_TEXT_BYTES))
            except (ValueError, RecursionError) as error:
                raise BrokenModelError(f"blob {layer.digest}", f"not valid JSON: {error}") from error
            if not isinstance(document, list) or not all(isinstance(message, dict) for message in document):
                raise BrokenModelError(f"blob {layer.digest}", "not a list of messages")
            messages.extend(document)
        return messages

    # ---- removing blobs (all under the lock)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with writing(self.root):
            make_directories(self.root)
            lock = FileLock(self.root / "localllm.lock")
            lock.acquire()
        try:
            with writing(self.root):
                yield
        finally:
            lock.release()

    def _used_digests(self) -> tuple[set[str], list[str]]:
        """The digests that manifests name, and the manifests that cannot be read."""
        used: set[str] = set()
        unreadable: list[str] = []
        for path in self._manifest_paths():
            try:
                used |= self._read_manifest(_name_of(path))[0].digests
            except (BrokenModelError, InvalidNameError, ModelNotFoundError) as error:
                unreadable.append(f"{path}: {error}")
        return used, unreadable

    def _remove_unnamed(self, digests: set[str]) -> tuple[int, int]:
        """Remove the blobs among `digests` that nothing needs; gives how many, and their bytes."""
        used, unreadable = self._used_digests()
        if unreadable:
            _log.warning("no blob is removed while manifests cannot be read: %s", "; ".join(unreadable))
            return 0, 0
        unnamed = digests - used - pinned_digests(self.blobs.directory)
        freed = [self.blobs.remove(digest) for digest in sorted(unnamed)]
        return len(freed), sum(freed)

    def _remove_old(self, used: set[str], pinned: set[str], before_s: float) -> PruneReport:
        old = [path for path in sorted(self.blobs.directory.glob("sha256-*")) if self._is_old(path, before_s)]
        n_removed = freed_bytes = 0
        for path in old:
            blob = _BLOB_FILE.fullmatch(path.name)
            digest = f"sha256:{blob[1]}" if blob else ""
            if blob is None or digest in pinned or (digest in used and not blob[2]):
                continue
            freed_bytes += path.stat().st_size
            path.unlink(missing_ok=True)
            n_removed += 1
        return PruneReport(n_removed, freed_bytes)

    def _is_old(self, path: Path, before_s: float) -> bool:
        """By the file's own date; what belongs to a partial download is as old as that."""
        whole, is_part, _ = path.name.partition("-partial-")
        partial = path.with_name(f"{whole}-partial")
        return _is_file_older_than(partial if is_part and partial.exists() else path, before_s)

    def _rename_old_blobs(self) -> None:
        """Early versions of Ollama wrote `sha256:<hex>`."""
        for path in self.blobs.directory.glob("sha256:*"):
            with contextlib.suppress(InvalidDigestError):
                os.replace(path, self.blobs.path(path.name))


def _find_ignoring_case(folder: Path, parts: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path of a file below `folder`, spelled as on disk; the exact spelling wins at each level."""
    if not parts:
        return () if folder.is_file() else None
    for entry in _entries_ignoring_case(folder, parts[0]):
        rest = _find_ignoring_case(folder / entry, parts[1:])
        if rest is not None:
            return (entry, *rest)
    return None


def _entries_ignoring_case(folder: Path, part: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = (name for name in names if name.lower() == part.lower())
    return sorted(matches, key=lambda name: (name != part, name))


def _name_of(path: Path) -> Name:
    """The name that a manifest's path spells. Raises InvalidNameError."""
    host, namespace, model, tag = path.parts[-4:]
    return Name(host, namespace, model, tag)


def _is_file_older_than(path: Path, before_s: float) -> bool:
    try:
        return path.is_file() and path.stat().st_mtime < before_s
    except OSError:
        return False
