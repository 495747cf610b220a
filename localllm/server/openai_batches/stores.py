"""Where a daemon keeps its files and batches; it knows nothing of what is in them."""

from localllm.server.daemon import Daemon
from localllm.server.openai_batches.batch_store import BatchStore
from localllm.server.openai_batches.file_store import FileStore


def files_of(daemon: Daemon) -> FileStore:
    """The daemon's files."""
    return FileStore(daemon.settings.state_dir / "openai" / "files", daemon.settings.files_max_bytes)


def batches_of(daemon: Daemon) -> BatchStore:
    """The daemon's batches."""
    return BatchStore(daemon.settings.state_dir / "openai" / "batches")
