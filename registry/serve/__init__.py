"""Offers a store to other machines, read-only, over the registry protocol; it knows nothing of processes or sockets.

Importing it loads Starlette, so that nothing else in this package does.
"""

from registry.serve.app import create_app
from registry.serve.tokens import read_or_make_token

__all__ = ["create_app", "read_or_make_token"]
