"""Runs the daemon: the socket, the log, the signals; it knows nothing of endpoints."""

import contextlib
import errno
import functools
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from localllm import __version__, env
from localllm.errors import LocalLLMError, SettingError
from localllm.scheduler import Scheduler
from localllm.server.access import is_loopback_address
from localllm.server.app import create_app
from localllm.server.connections import ServerConfig
from localllm.server.daemon import Daemon, Settings
from localllm.server.log import start_log
from localllm.server.pull import inspect
from localllm.server.tls import check_certificate
from modelfiles import read_catalog
from registry.catalog import Catalog
from registry.progress import Progress
from registry.pull import pull
from registry.remote import Access
from registry.store import Store

logger = logging.getLogger(__name__)

BACKLOG = 2048
KEEP_CONNECTION_S = 75
SHUTDOWN_GRACE_S = 10


def serve(
    host: str | None = None, port: int | None = None, tls_cert: Path | None = None, tls_key: Path | None = None
) -> None:
    """Serve until SIGINT or SIGTERM, by default where LOCALLLM_HOST says; then unload everything and return.

    Raises: SystemExit with status 1, after saying why on stderr: a setting is wrong, the address is not to be had.
    """
    problems = env.check()
    if problems:
        give_up(*problems)
    address = env.host()
    host, port = host or address.host, address.port if port is None else port
    start_log(env.debug())
    try:
        scheme = _scheme(address, tls_cert, tls_key)
        listener = listen(host, port)
        daemon = make_daemon(host)
    except LocalLLMError as error:
        give_up(error)
    # The processes of models need no keys.
    os.environ.pop(f"{env.PREFIX}API_KEYS", None)
    shown = f"[{host}]" if ":" in host else host
    logger.info("localllm %s listens on %s://%s:%d", __version__, scheme, shown, listener.getsockname()[1])
    logger.info("models: %s", daemon.store.root)
    warn_if_open(daemon.settings, shown)
    config = ServerConfig(
        create_app(daemon),
        max_connections=env.max_connections(),
        client_timeout_s=env.client_timeout_s(),
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        log_config=None,
        timeout_keep_alive=KEEP_CONNECTION_S,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        lifespan="on",
        server_header=False,
    )
    _DaemonServer(config, daemon).run(sockets=[listener])


def warn_if_open(settings: Settings, host: str) -> None:
    """Say so where other machines may reach the daemon without a key."""
    if not settings.is_loopback and not settings.keys.is_required:
        logger.warning(
            "whoever reaches %s may use, pull and delete models: `localllm keys add NAME` asks for keys", host
        )


def make_daemon(host: str) -> Daemon:
    """The daemon that the environment describes, for an address to listen on. Raises: SettingError."""
    store = Store(env.models_dir())
    scheduler = Scheduler(
        max_queue=env.max_queue(),
        max_loaded_models=env.max_loaded_models(),
        load_timeout_s=env.load_timeout_s(),
        keep_spare=True,
    )
    return Daemon(
        store, scheduler, functools.partial(_pull, store), Settings.from_environment(is_loopback_address(host))
    )


def _pull(store: Store, reference: str, cancel: threading.Event, access: Access) -> Iterator[Progress]:
    return pull(reference, store, inspect=inspect, catalog=Catalog(read_catalog()), cancel=cancel, access=access)


def give_up(*problems: LocalLLMError) -> NoReturn:
    """Say on stderr what is wrong, and exit with status 1."""
    for problem in problems:
        print(f"Error: {problem}", file=sys.stderr)
        if problem.hint:
            print(f"hint: {problem.hint}", file=sys.stderr)
    raise SystemExit(1)


def _scheme(address: env.HostAddress, tls_cert: Path | None, tls_key: Path | None) -> str:
    if check_certificate(tls_cert, tls_key):
        return "https"
    if address.scheme == "https":
        raise SettingError(
            "LOCALLLM_HOST says https, and there is no certificate",
            hint="localllm serve --tls-cert FILE --tls-key FILE, or LOCALLLM_TLS_CERT and LOCALLLM_TLS_KEY",
        )
    return "http"


def listen(host: str, port: int, hint: str = "") -> socket.socket:
    """A bound socket. `hint`: what to do where that is not possible, by default to the daemon's address.

    Raises: LocalLLMError that names the address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        shown = f"{f'[{host}]' if ':' in host else host}:{port}"
        raise LocalLLMError(f"cannot listen on {shown}: {_reason(error)}", hint=hint or _address_hint(error)) from error


def _address_hint(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another localllm or Ollama may be running: stop it, or set LOCALLLM_HOST=127.0.0.1:PORT"
    return "set LOCALLLM_HOST to an address of this machine"


def _reason(error: OSError) -> str:
    """The system's own words: create_server's text repeats the address; getaddrinfo's numbers are not the system's."""
    is_systems = error.errno is not None and not isinstance(error, socket.gaierror)
    return os.strerror(error.errno or 0) if is_systems else error.strerror or str(error)


class Server(uvicorn.Server):
    """A server that ends with status 0 on a signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the server; uvicorn's own would raise them again afterwards."""
        handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        logger.info("%s: shutting down", signal.Signals(number).name)
        self.handle_exit(number, frame)


class _DaemonServer(Server):
    """One that ends its streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, daemon: Daemon) -> None:
        super().__init__(config)
        self._daemon = daemon

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Unload the models and cancel the pulls, so that every open stream gets its last record."""
        self._daemon.cancel_pulls()
        await self._daemon.scheduler.stop()
        await super().shutdown(sockets)
