"""The ed25519 key pair by which Ollama's registry knows a machine; it knows nothing of requests.

id_ed25519        the private key in OpenSSH's format, readable by its owner alone
id_ed25519.pub    `ssh-ed25519 <base64>`
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from registry.durable import make_directories, write_whole
from registry.errors import RegistryError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE_NAME = "id_ed25519"


class KeyFileError(RegistryError):
    """`path` holds no ed25519 key that can be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f'cannot use the key "{path}": {reason}', hint="move the file away to have a new one made")
        self.path = path


def key_path(config_folder: Path) -> Path:
    """Where the private key lies or will lie: Ollama's own where that exists, so that one machine has one name."""
    ollama = Path.home() / ".ollama" / FILE_NAME
    return ollama if ollama.is_file() else config_folder / FILE_NAME


@dataclass(frozen=True)
class KeyPair:
    """`public` is the base64 in OpenSSH's public line."""

    private: Ed25519PrivateKey
    public: str

    def sign(self, text: str) -> str:
        """`<public key>:<signature>`, both base64: what Ollama's registry takes as Authorization."""
        return f"{self.public}:{base64.b64encode(self.private.sign(text.encode())).decode()}"


def load_or_make(path: Path) -> KeyPair:
    """Read the pair at `path`, made there first if need be.

    Raises:
        KeyFileError: the file is not such a key, or cannot be read.
        NoSpaceError, StoreNotWritableError.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not path.exists():
        _make(path)
    try:
        private = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(path, str(error)) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(path, "not an ed25519 key")
    return KeyPair(private, _public_line(private).split()[1].decode())


def _make(path: Path) -> None:
    """Write a new pair; of two processes that do so at once, the first wins."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    content = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    make_directories(path.parent)
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink(missing_ok=True)
    write_whole(path.with_name(f"{path.name}.pub"), _public_line(private) + b"\n", path.parent, ".new-")


def _public_line(private: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
