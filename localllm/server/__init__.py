"""The daemon: Ollama's HTTP API over the scheduler and the model store; it knows nothing of tokens.

One file an endpoint; `app.ROUTES` is the table.
"""

from localllm.server.app import create_app
from localllm.server.daemon import Daemon, Settings
from localllm.server.process import serve

__all__ = ["Daemon", "Settings", "create_app", "serve"]
