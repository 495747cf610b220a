"""The daemon's connections: what is sent leaves at once."""

import asyncio
import socket
from typing import Any

import httpx
import pytest
import uvicorn

from localllm.server.connections import ServerConfig

pytestmark = pytest.mark.anyio


async def test_nothing_waits_for_an_acknowledgement() -> None:
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        (connection,) = server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        seen.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    config = ServerConfig(app, max_connections=9, client_timeout_s=9, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"http://127.0.0.1:{listener.getsockname()[1]}")).text == "ok"
        server.should_exit = True
        await serving
    assert seen and all(seen)
