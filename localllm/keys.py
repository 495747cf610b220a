"""API keys: their hashes in a file, and whether a key that was sent is one of them; it knows nothing of HTTP.

The file is JSON, readable by its owner alone:

    {"keys": [{"name": "laptop", "created": "2025-01-31T12:00:00+00:00", "salt": hex, "sha256": hex of salt + key}]}

The keys in it are made here, of 256 random bits, so that a fast hash is as good as a slow one: nobody tries them all.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from localllm.errors import SettingError
from registry.locks import FileLock

logger = logging.getLogger(__name__)

KEY_PREFIX = "llm-"
KEY_BYTES = 32
SALT_BYTES = 16
RELOAD_INTERVAL_S = 1.0


@dataclass(frozen=True)
class StoredKey:
    """A key as a file keeps it; the key itself is nowhere."""

    name: str
    created: str
    salt: str
    sha256: str

    @classmethod
    def of(cls, name: str, key: str) -> "StoredKey":
        """A key under a new salt."""
        salt = secrets.token_bytes(SALT_BYTES)
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(name, created, salt.hex(), _digest(salt, key).hex())

    def fits(self, key: str) -> bool:
        """Whether this is that key; the time it takes tells nothing of the hash."""
        return hmac.compare_digest(_digest(bytes.fromhex(self.salt), key), bytes.fromhex(self.sha256))


def _digest(salt: bytes, key: str) -> bytes:
    return hashlib.sha256(salt + key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path) -> list[StoredKey]:
    """The keys in a file; none where there is no file. Raises: SettingError where it is no keys file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise SettingError(f"the keys file {path} cannot be read: {error}") from error
    try:
        keys = [StoredKey(**entry) for entry in json.loads(text)["keys"]]
        if any(len(bytes.fromhex(key.sha256)) != 32 or not bytes.fromhex(key.salt) for key in keys):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        # What is in it is not quoted: it may be keys in plain text.
        raise SettingError(
            f"{path} is not a keys file: expected what `localllm keys add` writes",
            hint=f"localllm keys add NAME --file {path.with_name('keys.json')}",
        ) from None
    return keys


def add_key(path: Path, name: str) -> str:
    """A new key, whose hash is in the file under `name` from now on. Raises: SettingError; OSError."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    with _changing(path):
        keys = read_keys(path)
        if any(known.name == name for known in keys):
            raise SettingError(f'a key named "{name}" exists', hint=f"localllm keys rm {name}, or choose another name")
        _write_keys(path, [*keys, StoredKey.of(name, key)])
    return key


def remove_key(path: Path, name: str) -> list[StoredKey]:
    """The keys that are left without the one of that name. Raises: SettingError where there is none; OSError."""
    with _changing(path):
        keys = read_keys(path)
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise SettingError(f'no key is named "{name}"', hint="localllm keys list")
        _write_keys(path, left)
    return left


def _changing(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def _write_keys(path: Path, keys: Sequence[StoredKey]) -> None:
    text = json.dumps({"keys": [asdict(key) for key in keys]}, indent=1)
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


class Keyring:
    """What a daemon accepts: keys of its environment, kept as hashes, and those of files, read again when they change.

    A daemon that has once asked for a key asks for as long as it lives, even where the last one was removed or the
    file is damaged: it must never open by itself.
    """

    def __init__(self, plain: Iterable[str] = (), files: Iterable[Path] = ()) -> None:
        self._given = [StoredKey.of("", key) for key in plain]
        self._files = tuple(files)
        self._stored: list[StoredKey] = [key for path in self._files for key in read_keys(path)]
        self._stamps = self._current_stamps()
        self._checked_s = time.monotonic()
        self._is_required = bool(self._given or self._stored)

    @property
    def is_required(self) -> bool:
        """Whether requests need a key."""
        self._refresh()
        return self._is_required

    def accepts(self, key: str) -> bool:
        """Whether a key is one of these; all are compared, whichever fits."""
        self._refresh()
        return sum([known.fits(key) for known in (*self._given, *self._stored)]) > 0

    def _refresh(self) -> None:
        now = time.monotonic()
        if not self._files or now - self._checked_s < RELOAD_INTERVAL_S:
            return
        self._checked_s = now
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._stored = [key for path in self._files for key in read_keys(path)]
        except SettingError as error:
            logger.error("%s; the keys known before stay in force", error)
        self._is_required = self._is_required or bool(self._stored)

    def _current_stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
