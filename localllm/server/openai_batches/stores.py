"""Where a daemon keeps its files and batches; it knows nothing of what is in them."""

from localllm.server.daemon import Daemon
from localllm.server.openai_batches.batch_store import BatchStore
from localllm.server.openai_batches.file_store import FileStore


def files_of(daemon: Daemon) -> FileStore:
    """The daemon's files."""
    settings = daemon.settings
    return FileStore(settings.state_dir / "openai" / "files", settings.files_max_bytes, batches_of(daemon).contents)


def batches_of(daemon: Daemon) -> BatchStore:
    """The daemon's batches."""
    return BatchStore(daemon.settings.state_dir / "openai" / "batches")
