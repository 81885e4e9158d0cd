"""The standalone hub on a real socket, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import httpx2
import pytest
import uvicorn

from harken.gateway.app import build
from harken.gateway.runner import bind
from harken.server.hub import Hub

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Peer:
    """An HTTP client of a running hub."""

    def __init__(self, hub: Hub, http: httpx2.AsyncClient) -> None:
        self.hub = hub
        self.http = http

    async def publish(self, body: object, **headers: str) -> httpx2.Response:
        """POSTs to /publish; a header is given as `content_type="…"`; bytes go out as they are."""
        told = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post("/publish", content=content, headers=told)

    async def call(self, method: str, **params: object) -> httpx2.Response:
        """One MCP request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        return await self.http.post("/mcp", json=body, headers=mcp_headers(method))

    @contextlib.asynccontextmanager
    async def listen(self, **notifications: object) -> AsyncIterator[AsyncIterator[dict[str, object]]]:
        """The messages of one listen stream."""
        params = {"notifications": notifications, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
        headers = mcp_headers("subscriptions/listen")
        async with self.http.stream("POST", "/mcp", json=body, headers=headers) as response:
            assert response.status_code == 200
            yield _messages(response)


def mcp_headers(method: str) -> dict[str, str]:
    return {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
    }


async def _messages(response: httpx2.Response) -> AsyncIterator[dict[str, object]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


Serve = Callable[..., AbstractAsyncContextManager[Peer]]


@pytest.fixture
def serve() -> Serve:
    """Runs a hub as if bound to `host`: `async with serve(token) as peer`."""

    @contextlib.asynccontextmanager
    async def serving(token: str | None = None, host: str = "127.0.0.1") -> AsyncIterator[Peer]:
        hub, app = build(host, token)
        listener = bind("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(app, ws="none", log_config=None, proxy_headers=False))
        task = asyncio.create_task(server._serve(sockets=[listener]))
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with (
                asyncio.timeout(30),
                httpx2.AsyncClient(base_url=base, timeout=20, trust_env=False) as http,
            ):
                await http.get("/")  # answered once the server is up
                yield Peer(hub, http)
        finally:
            server.should_exit = True
            await task

    return serving
