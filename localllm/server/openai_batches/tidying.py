"""What goes when a daemon starts: batches that ended long ago, what a crash left behind. It knows nothing of HTTP."""

import logging

from localllm.server.openai_batches.batch_store import BatchStore
from localllm.server.openai_batches.file_store import FileStore

logger = logging.getLogger(__name__)

KEPT_S = 30 * 24 * 3600
"""How long a batch and its results are kept after its end."""


def tidy(batches: BatchStore, files: FileStore, started_s: float) -> None:
    """Remove what nobody needs; `started_s`, in Unix seconds, is the daemon's start: what is older is not its own."""
    try:
        files.remove_parts(started_s)
        batches.remove_parts(started_s)
        for batch in batches.all():
            if not batch.is_waiting and batch.ended_at < started_s - KEPT_S:
                for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                    files.remove(file_id)
                batches.remove(batch.id)
                logger.info("batch %s is removed: it ended more than %d days ago", batch.id, KEPT_S // 86400)
    except OSError as error:
        logger.warning("files of batches were not tidied up: %s", error)
