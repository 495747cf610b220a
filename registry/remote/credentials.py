"""Names, passwords and tokens for a host, from the user's request or other programs' settings; it sends nothing.

Looked up in this order, for the one host that is asked:

- what the request itself gives,
- `HF_TOKEN` for hf.co and huggingface.co, over TLS alone,
- `auths` in Docker's config.json (`$DOCKER_CONFIG`, else `~/.docker`).
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HF_HOSTS = frozenset({"hf.co", "huggingface.co"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credentials:
    """A user name and password; without a name, `password` is a token to be sent as it is."""

    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    @property
    def bearer(self) -> str:
        """The value of an Authorization header (RFC 6750)."""
        return f"Bearer {self.password}"


def find_credentials(host: str, given: Credentials | None = None, *, is_protected: bool = True) -> Credentials | None:
    """What to tell `host` (with its port, if any) of who we are, or None; `is_protected`: it is spoken to over TLS."""
    if given is not None and (given.username or given.password):
        return given
    if is_protected and host.lower() in HF_HOSTS and (token := os.environ.get("HF_TOKEN", "").strip()):
        return Credentials(password=token)
    return _from_docker(host.lower())


def _from_docker(host: str) -> Credentials | None:
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    try:
        document = json.loads((Path(folder) / "config.json").read_bytes())
        auths: dict[str, Any] = document.get("auths") or {}
        entry = next((entry for key, entry in auths.items() if _host_of(key) == host), None)
        return _parse_entry(entry) if entry else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        _log.warning("Docker's config.json gives no credentials: %s", type(error).__name__)
        return None


def _host_of(key: str) -> str:
    """Docker writes hosts, and for some registries whole addresses."""
    return key.partition("://")[2].partition("/")[0].lower() if "://" in key else key.partition("/")[0].lower()


def _parse_entry(entry: dict[str, Any]) -> Credentials | None:
    if entry.get("auth"):
        try:
            username, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except binascii.Error as error:
            raise ValueError(str(error)) from error
        return Credentials(username, password)
    if entry.get("username"):
        return Credentials(str(entry["username"]), str(entry.get("password") or ""))
    return None
