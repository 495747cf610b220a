"""What every endpoint works with: the store, the scheduler, the settings; it knows no endpoint."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from starlette.requests import Request

from localllm import env
from localllm.durations import NS_PER_S
from localllm.keys import Keyring
from localllm.scheduler import Scheduler
from registry.progress import Progress
from registry.remote import Access
from registry.store import Store

# A pull of a reference as the client wrote it, with what that client allows and is, until it is done or the event is
# set; blocks, so it runs in a thread.
Pull = Callable[[str, Event, Access], Iterator[Progress]]


@dataclass(frozen=True)
class Settings:
    """What the environment decides, as values. 0 leaves num_ctx and num_thread to their defaults."""

    keep_alive_ns: int = 300 * NS_PER_S
    num_ctx: int = 0
    num_thread: int = 0
    num_parallel: int = env.AUTOMATIC_NUM_PARALLEL
    kv_cache_type: str = "f16"
    cache_dir: Path | None = None
    origins: tuple[str, ...] = ()
    is_loopback: bool = True
    prune: bool = True
    keys: Keyring = field(default_factory=Keyring)
    max_body_bytes: int = 64 * 10**6
    max_upload_bytes: int = 512 * 10**6
    client_timeout_s: float = 30.0
    state_dir: Path = field(default_factory=env.state_dir)
    files_max_bytes: int = 10 * 10**9

    @classmethod
    def from_environment(cls, is_loopback: bool) -> "Settings":
        """The values of the environment variables. Raises: SettingError."""
        return cls(
            keep_alive_ns=env.keep_alive_ns(),
            num_ctx=env.context_length(),
            num_thread=env.num_threads(),
            num_parallel=env.num_parallel(),
            kv_cache_type=env.kv_cache_type(),
            cache_dir=env.cache_dir(),
            origins=tuple(env.origins()),
            is_loopback=is_loopback,
            prune=not env.noprune(),
            keys=_keyring(),
            max_body_bytes=env.max_body(),
            max_upload_bytes=env.max_upload(),
            client_timeout_s=env.client_timeout_s(),
            files_max_bytes=env.files_max(),
        )


def _keyring() -> Keyring:
    plain, paths = env.api_keys()
    return Keyring(plain, (env.keys_path(), *paths))


@dataclass(frozen=True)
class Daemon:
    """The parts of a running daemon."""

    store: Store
    scheduler: Scheduler
    pull: Pull
    settings: Settings = field(default_factory=Settings)
    _pulls: set[Event] = field(default_factory=set)

    @contextlib.contextmanager
    def pulling(self, cancel: Event) -> Iterator[None]:
        """For the time of a pull, let `cancel_pulls` reach it."""
        self._pulls.add(cancel)
        try:
            yield
        finally:
            self._pulls.discard(cancel)

    def cancel_pulls(self) -> None:
        """Make every running pull end."""
        for cancel in self._pulls:
            cancel.set()


DAEMON_KEY = "localllm.daemon"
"""Where a request that the daemon makes of itself has its Daemon, in its scope."""


def daemon_of(request: Request) -> Daemon:
    """The daemon that serves a request."""
    daemon: Daemon = request.scope.get(DAEMON_KEY) or request.app.state.daemon
    return daemon
