"""Quiet streams, and what stands in front of them: proxies with time-outs, and middleware."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from harken.client.listen import listen
from harken.core.events import ResourceUpdated, ToolsListChanged
from harken.server.hub import Hub
from tests.core.frames import name
from tests.serving import new_hub, serving, until
from tests.wire_client import ALL, asked, headers_for, listening
from tests.wire_client import listen as listen_request

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}
PROMPT = 5.0  # seconds: far below the keep-alive interval of these hubs, which is an hour


# -- A proxy with a read timeout


class Proxy:
    """A TCP proxy that gives a connection up once its server has said nothing for `read_timeout` seconds."""

    def __init__(self, upstream: int, read_timeout: float) -> None:
        self._upstream = upstream
        self._read_timeout = read_timeout
        self.given_up = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
        there = asyncio.create_task(self._forward(reader, to_server, None))
        back = asyncio.create_task(self._forward(from_server, writer, self._read_timeout))
        await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, to_server):
            end.close()
        await asyncio.gather(there, back)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: float | None
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                try:
                    data = await asyncio.wait_for(reader.read(65_536), limit)
                except TimeoutError:
                    self.given_up += 1
                    return
                if not data:
                    return
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def proxied(port: int, read_timeout: float) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy in front of `port`, and its own port."""
    proxy = Proxy(port, read_timeout)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.clause("H11")
@pytest.mark.field("F21")
async def test_a_quiet_stream_outlives_a_proxys_read_timeout() -> None:
    """15 s of keep-alive, 20 s of timeout and 60 s of quiet, each twenty times shorter."""
    hub = new_hub(keep_alive=0.75)
    loop = asyncio.get_running_loop()
    async with serving(hub.asgi()) as port, proxied(port, 1.0) as (proxy, outside):
        async with listening(outside, TOOLS) as stream:
            await stream.acknowledged()
            begun = loop.time()
            while loop.time() < begun + 3.0:
                await stream.comment()  # and nothing but comments
            assert stream.comments >= 3
            assert len(hub.streams) == 1
            await hub.publish(ToolsListChanged())
            assert name(await stream.expect()) == "tools/list_changed"
            assert proxy.given_up == 0
        await until(lambda: not hub.streams)


@pytest.mark.clause("H11")
@pytest.mark.field("F21")
async def test_keep_alives_never_reach_the_application() -> None:
    hub = new_hub(keep_alive=0.1)
    alive = 0

    def count() -> None:
        nonlocal alive
        alive += 1

    async with serving(hub.asgi()) as port, proxied(port, 1.0) as (_, outside):
        url = f"http://127.0.0.1:{outside}/mcp"
        async with listen(url, tools_list_changed=True, on_keep_alive=count) as subscription:
            await until(lambda: alive >= 3)
            await hub.publish(ToolsListChanged())
            assert await anext(aiter(subscription)) == ToolsListChanged()  # it is the first of all


# -- Middleware


async def nothing_changed(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """What a `BaseHTTPMiddleware` does around each request."""
    response = await call_next(request)
    response.headers["x-seen"] = "yes"
    return response


IN_FRONT: dict[str, list[Middleware]] = {
    "gzip": [Middleware(GZipMiddleware, minimum_size=1)],
    "BaseHTTPMiddleware": [Middleware(BaseHTTPMiddleware, dispatch=nothing_changed)],
    "pure ASGI": [Middleware(CORSMiddleware, allow_origins=["*"])],
}
IN_FRONT["all of them"] = [each for middleware in IN_FRONT.values() for each in middleware]


def behind(hub: Hub, middleware: list[Middleware]) -> Any:
    """The hub in an app with this middleware."""
    return Starlette(routes=[Mount("/", hub.asgi())], middleware=middleware)


@pytest.mark.field("F23")
@pytest.mark.clause("H2", "R14", "R15")
@pytest.mark.parametrize("front", IN_FRONT)
async def test_each_message_passes_a_middleware_at_once(front: str) -> None:
    hub = new_hub(keep_alive=3_600)
    headers = [
        *headers_for("subscriptions/listen"),
        ("Accept-Encoding", "gzip"),
        ("Origin", "http://localhost"),
    ]
    async with serving(behind(hub, IN_FRONT[front])) as port:
        async with listening(port, ALL, headers=headers) as stream:
            async with asyncio.timeout(PROMPT):
                assert await stream.acknowledged() == ALL
                await hub.publish(ToolsListChanged(), ResourceUpdated("x://a"))
                heard = [name(await stream.expect()) for _ in range(2)]
                assert heard == ["tools/list_changed", "resources/updated x://a"]
                hub.begin_drain()
                assert [name(message) for message in await stream.rest()] == ["result"]
        await until(lambda: not hub.streams)
    await hub.aclose()


@pytest.mark.clause("R15", "H11")
@pytest.mark.parametrize("front", IN_FRONT)
async def test_behind_a_middleware_a_client_may_leave_too(front: str) -> None:
    hub = new_hub(keep_alive=0.1)
    async with serving(behind(hub, IN_FRONT[front])) as port:
        tasks = len(asyncio.all_tasks())
        async with listening(port, TOOLS) as stream:
            await stream.acknowledged()
            await stream.comment()
            stream.connection.reset()
            await until(lambda: not hub.streams)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert (await asked(port, listen_request({}))).status == 200
    await hub.aclose()


NGINX = """
daemon off; pid nginx.pid; error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{outside};
        location / {{
            proxy_pass http://127.0.0.1:{port};
            proxy_http_version 1.1;
            proxy_buffering on;
            gzip on; gzip_types text/event-stream; gzip_min_length 1;
        }}
    }}
}}
"""


@pytest.mark.field("F23")
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
async def test_each_message_passes_nginx_at_once(tmp_path: Path) -> None:
    hub = new_hub(keep_alive=3_600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        outside = free.getsockname()[1]
    async with serving(hub.asgi()) as port:
        configuration = tmp_path / "nginx.conf"
        configuration.write_text(NGINX.format(outside=outside, port=port))
        process = await asyncio.create_subprocess_exec("nginx", "-p", str(tmp_path), "-c", str(configuration))
        try:
            await until(lambda: answers(outside))
            async with listening(outside, TOOLS) as stream, asyncio.timeout(PROMPT):
                await stream.acknowledged()
                await hub.publish(ToolsListChanged())
                assert name(await stream.expect()) == "tools/list_changed"
        finally:
            process.terminate()
            await process.wait()


def answers(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
