"""Nothing leaks: after thousands of clients that left without a word, a server is as it was before."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from harken.core.events import ResourceUpdated, ToolsListChanged
from harken.core.subscription import Ending
from harken.server.asgi import ASGIApp, Message, Receive, Scope, Send
from tests.e2e.listening import Raw, get
from tests.e2e.served import dispatch
from tests.e2e.test_shutdown import Server, serving, stopped_reader, uvicorn
from tests.serving import new_hub, until
from tests.serving import serving as serving_here

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

CLIENTS = 1000
AT_ONCE = 100
ROUNDS = 3  # after the first, which fills caches and pools
KILOBYTE = 1024
CLOSE_WAIT = "08"  # in /proc/net/tcp: closed by the client, and not by the server


async def leave(port: int, number: int) -> None:
    """A client that goes away: at once or after the acknowledgment, with a FIN or an RST."""
    uris = [f"test://{number}/{other}" for other in range(number % 3)]
    raw = await Raw.open(port, number, uris, acknowledged=number % 4 != 0)
    if number % 2:
        raw.close()
    else:
        raw.reset()


async def come_and_go(server: Server) -> None:
    """All the clients, some of them within a burst of events that one of them never reads."""
    for first in range(0, CLIENTS, AT_ONCE):
        if first == CLIENTS // 2:
            stopped = await stopped_reader(server)
            stopped.reset()
        await asyncio.gather(*(leave(server.port, number) for number in range(first, first + AT_ONCE)))


async def settled(server: Server, baseline: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the server holds once all have left; fails where it does not let go."""
    async with asyncio.timeout(20):
        while True:
            state: dict[str, Any] = await get(server.port, "/state")
            if not state["streams"] and (baseline is None or state["tasks"] <= baseline["tasks"]):
                return state


def states(port: int) -> list[str]:
    """The states of the connections on the server's side that some process holds."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[3] for line in lines if int(line[1].rpartition(":")[2], 16) == port and line[9] != "0"]


def open_connections(port: int) -> int:
    """How many the server holds, its listener included."""
    return len(states(port))


def bare(app: ASGIApp) -> ASGIApp:
    """No middleware."""
    return app


def pass_through(app: ASGIApp) -> ASGIApp:
    """Middleware as most is: `send` is its own function."""

    async def around(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            await send(message)

        await app(scope, receive, send_on)

    return around


def base_middleware(app: ASGIApp) -> ASGIApp:
    """Middleware that hides the server wholly."""
    return BaseHTTPMiddleware(app, dispatch)


@pytest.mark.clause("D13")
@pytest.mark.parametrize("wrap", [bare, pass_through, base_middleware])
async def test_a_reader_that_stopped_loses_its_connection(wrap: Callable[[ASGIApp], ASGIApp]) -> None:
    """Behind middleware as well: or else its socket and what is buffered for it stay for ever."""
    hub = new_hub(write_timeout=0.3)
    uris = [f"test://{'x' * 200}/{number}" for number in range(2000)]
    async with serving_here(wrap(hub.asgi())) as port:
        before = open_connections(port)
        stopped, other = await Raw.open(port, 1, uris, buffer=4096), await Raw.open(port, 2)
        while not hub.endings:
            await hub.publish(*map(ResourceUpdated, uris))
            await asyncio.sleep(0.01)
        assert hub.endings == {Ending.STUCK_READER: 1}
        await until(lambda: open_connections(port) == before + 1)
        await hub.publish(ToolsListChanged())
        await other.until(b"tools/list_changed")
        other.reset()
        stopped.reset()


@pytest.mark.field("F36")
async def test_a_proxy_that_reads_on_for_a_dead_client_is_bounded_by_age() -> None:
    """It can't be told from a client that lives; until its age comes it costs the same as one that waits."""
    hub = new_hub(max_age=0.5)

    async def proxy(client: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        upstream, to_server = await asyncio.open_connection("127.0.0.1", port)
        to_server.write(await client.readuntil(b"}}}"))
        while data := await upstream.read(2**16):  # whatever becomes of the client
            read.append(data)
        to_server.close()

    read: list[bytes] = []
    async with serving_here(hub.asgi()) as port, await asyncio.start_server(proxy, "127.0.0.1", 0) as front:
        raw = await Raw.open(front.sockets[0].getsockname()[1], acknowledged=False)
        await until(lambda: b"acknowledged" in b"".join(read))
        raw.reset()
        (stream,) = hub.streams
        while not hub.endings:
            await hub.publish(ToolsListChanged())
            await asyncio.sleep(0.01)
            assert len(stream.pending) <= 1
        assert hub.endings == {Ending.MAX_AGE: 1}
        await until(lambda: b'"resultType":"complete"' in read[-1])


@pytest.mark.field("F35")
@pytest.mark.clause("R15")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("app", ["app", "pass_through", "base_middleware"])
async def test_clients_that_leave_leave_nothing_behind(app: str, tmp_path: Path, project: Path) -> None:
    async with serving(uvicorn(app, "--no-access-log"), tmp_path, project) as server:
        await come_and_go(server)
        before = await settled(server)
        for _ in range(ROUNDS):
            await come_and_go(server)
        after = await settled(server, before)
        counts = {"tasks", "streams", "index", "wheel", "dirty", "descriptors"}
        # Less is well: the first look may see a task that is just about to end.
        assert {name: after[name] for name in counts if after[name] > before[name]} == {}, before
        clients = after["ended"] - before["ended"]
        assert clients > ROUNDS * CLIENTS / 2  # those that left at once may never have become streams
        assert after["objects"] - before["objects"] < clients / 20
        assert after["resident"] - before["resident"] < clients * KILOBYTE / 2
        assert CLOSE_WAIT not in states(server.port)
