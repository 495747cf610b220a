"""Runs `localllm registry serve`: the store, read-only, to other machines. It knows nothing of models in memory."""

import logging
from dataclasses import dataclass
from pathlib import Path

from localllm import __version__, env
from localllm.errors import LocalLLMError, SettingError
from localllm.server.access import AccessMiddleware, is_loopback_address
from localllm.server.connections import ServerConfig
from localllm.server.log import start_log
from localllm.server.process import KEEP_CONNECTION_S, Server, give_up, listen
from localllm.server.tls import check_certificate
from registry.serve import create_app, read_or_make_token
from registry.store import Store

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 3
HINT = "--host takes an address of this machine, --port a free port"


@dataclass(frozen=True)
class Offer:
    """What the command line says. `token_file` None asks for no token, which beyond loopback `insecure` must allow."""

    host: str
    port: int
    token_file: Path | None
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None


def serve_store(offer: Offer) -> None:
    """Serve until SIGINT or SIGTERM. Raises: SystemExit with status 1, after saying why on stderr."""
    start_log(env.debug())
    is_loopback = is_loopback_address(offer.host)
    try:
        token = _token(offer, is_loopback)
        has_tls = check_certificate(offer.tls_cert, offer.tls_key)
        store = Store(env.models_dir())
        client_timeout_s, max_connections = env.client_timeout_s(), env.max_connections()
        listener = listen(offer.host, offer.port, HINT)
    except LocalLLMError as error:
        give_up(error)
    shown = f"[{offer.host}]" if ":" in offer.host else offer.host
    url = f"{'https' if has_tls else 'http'}://{shown}:{listener.getsockname()[1]}"
    logger.info("localllm %s offers the models of %s at %s", __version__, store.root, url)
    if not is_loopback and token is not None and not has_tls:
        logger.warning("the token and the models travel as they are: --tls-cert and --tls-key encrypt them")
    if not is_loopback and token is None:
        logger.warning("whoever reaches %s may read all models", url)
    config = ServerConfig(
        AccessMiddleware(create_app(store, token), is_loopback=is_loopback),
        max_connections=max_connections,
        client_timeout_s=client_timeout_s,
        stall_timeout_s=client_timeout_s,
        ssl_certfile=offer.tls_cert,
        ssl_keyfile=offer.tls_key,
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_CONNECTION_S,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        lifespan="off",
        server_header=False,
    )
    Server(config).run(sockets=[listener])


def _token(offer: Offer, is_loopback: bool) -> str | None:
    """The token to ask for, said once when it is new. Raises: SettingError."""
    if offer.token_file is None:
        if not is_loopback and not offer.insecure:
            raise SettingError(
                f"--no-token would let everybody who reaches {offer.host} read all models",
                hint="leave it out, or add --insecure if that is meant",
            )
        return None
    try:
        token, is_new = read_or_make_token(offer.token_file)
    except OSError as error:
        raise SettingError(f"the token file {offer.token_file} cannot be used: {error.strerror}") from error
    except ValueError as error:
        raise SettingError(str(error), hint="remove the file, and a new token is made") from error
    if is_new:
        print(token, flush=True)
        logger.info("that was the new token; it is kept in %s", offer.token_file)
    else:
        logger.info("the token is in %s", offer.token_file)
    return token
