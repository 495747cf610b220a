"""Blobs on their way to a registry: sessions, parts, going on after a break; it knows nothing of models."""

from registry.upload.blob import Blob, BlobUpload
from registry.upload.known import KnownSessions
from registry.upload.sessions import ACTIONS, Sessions

__all__ = ["ACTIONS", "Blob", "BlobUpload", "KnownSessions", "Sessions"]
