"""The scheduler as work sees it that nobody waits for; it knows nothing of what that work is."""

from collections.abc import Callable

from localllm.messages import LoadRequest, Progress
from localllm.scheduler.lease import Lease
from localllm.scheduler.resident import ModelKey
from localllm.scheduler.residents import RunningModel
from localllm.scheduler.scheduler import Scheduler


class BackgroundScheduler:
    """What endpoints use of a scheduler, with leases that are not interactive."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    @property
    def is_stopping(self) -> bool:
        """Whether the daemon ends."""
        return self._scheduler.is_stopping

    async def lease(
        self, want: LoadRequest, keep_alive_ns: int, on_progress: Callable[[Progress], None] | None = None
    ) -> Lease:
        """As the scheduler's, after everybody else. Raises: as there."""
        return await self._scheduler.lease(want, keep_alive_ns, on_progress, is_interactive=False)

    async def unload(self, key: ModelKey) -> bool:
        """As the scheduler's."""
        return await self._scheduler.unload(key)

    async def expire(self, digest: str) -> None:
        """As the scheduler's."""
        await self._scheduler.expire(digest)

    def running(self) -> list[RunningModel]:
        """As the scheduler's."""
        return self._scheduler.running()
