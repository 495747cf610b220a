"""A registry over HTTP: requests, patience, and who we are; it knows nothing of models or of the store."""

from registry.remote.access import Access
from registry.remote.client import Remote
from registry.remote.credentials import Credentials
from registry.remote.keys import key_path
from registry.remote.patience import Patience

__all__ = ["Access", "Credentials", "Patience", "Remote", "key_path"]
