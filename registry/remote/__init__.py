"""A registry over HTTP: requests, patience, and who we are; it knows nothing of models or of the store."""

import sys

# httpx would import a command line of its own where click and rich are installed; that takes half of its import time.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

from registry.remote.access import Access  # noqa: E402
from registry.remote.body import iter_body  # noqa: E402
from registry.remote.client import Remote  # noqa: E402
from registry.remote.credentials import Credentials  # noqa: E402
from registry.remote.keys import key_path  # noqa: E402
from registry.remote.patience import Patience  # noqa: E402

__all__ = ["Access", "Credentials", "Patience", "Remote", "iter_body", "key_path"]
