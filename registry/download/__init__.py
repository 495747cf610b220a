"""Blobs from a server onto the disk: in parts, resumable, verified; it knows nothing of models or manifests."""

from registry.download.bring import Wants, bring_blob, is_intact, missing_bytes
from registry.download.download import Open

__all__ = ["Open", "Wants", "bring_blob", "is_intact", "missing_bytes"]
