"""What a user allows and is, when something is fetched or sent; it knows nothing of hosts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from registry.names import Name
from registry.remote.client import Remote
from registry.remote.credentials import Credentials
from registry.remote.patience import Patience


@dataclass(frozen=True)
class Access:
    """`insecure` allows `http://` and unchecked certificates; `key` is where the ed25519 key lies or will lie."""

    insecure: bool = False
    credentials: Credentials | None = None
    key: Path | None = None
    patience: Patience = field(default_factory=Patience)

    def remote(self, name: Name, cancel: threading.Event | None = None) -> Remote:
        """A client of the registry of `name`. Raises InsecureProtocolError."""
        return Remote(
            name,
            insecure=self.insecure,
            credentials=self.credentials,
            key=self.key,
            cancel=cancel,
            patience=self.patience,
        )
