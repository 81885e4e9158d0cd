"""Streams over HTTP end to end: each HTTP implementation of uvicorn, each event loop, each publisher."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.subscription import Ending
from harken.core.wire import LISTEN
from harken.server import http_stream
from tests.core.frames import name
from tests.e2e.commands import command, run
from tests.serving import PROTOCOLS, Protocol, new_hub, serving, until
from tests.wire_client import (
    ALL,
    Stream,
    asked,
    connected,
    discovered,
    headers_for,
    listen,
    listening,
    request,
)

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}


@pytest.fixture(
    scope="module",
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})],
    ids=["asyncio", "uvloop"],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Each event loop that uvicorn runs on."""
    return request.param


@pytest.fixture(params=PROTOCOLS)
def http(request: pytest.FixtureRequest) -> Protocol:
    """Each HTTP implementation of uvicorn."""
    http: Protocol = request.param
    return http


def timers(hub: Any) -> object:
    """The hub's one timer, None where it has none."""
    return hub._wheel._handle


@pytest.mark.clause("R1", "R2", "R3", "R4", "R6", "R7", "R8", "R9", "R10", "R14", "H13")
@pytest.mark.field("F46")
async def test_the_whole_life_of_several_streams(http: Protocol) -> None:
    hub = new_hub(keep_alive=0.2)
    async with serving(hub.asgi(), http) as port, contextlib.AsyncExitStack() as stack:
        wanted: list[dict[str, Any]] = [{key: value} for key, value in ALL.items()] + [ALL, TOOLS]
        streams = [await stack.enter_async_context(listening(port, each, id="1")) for each in wanted]
        for stream, each in zip(streams, wanted, strict=True):
            assert await stream.acknowledged() == each
        events: list[Event] = [
            ToolsListChanged(),
            PromptsListChanged(),
            ResourcesListChanged(),
            ResourceUpdated("x://a"),
            ResourceUpdated("x://never"),
        ]
        for event in events:
            await hub.publish(event)
        names = [
            "tools/list_changed",
            "prompts/list_changed",
            "resources/list_changed",
            "resources/updated x://a",
        ]
        for stream, heard in zip(streams, [*([each] for each in names), names, names[:1]], strict=True):
            assert [name(await stream.expect()) for _ in heard] == heard
        for stream in streams:
            await stream.comment()
        streams[0].connection.reset()
        await until(lambda: len(hub.streams) == 5)
        await hub.publish(ToolsListChanged())
        hub.begin_drain()
        ends = [[name(message) for message in await stream.rest()] for stream in streams[1:]]
        assert ends == [["result"]] * 3 + [["tools/list_changed", "result"]] * 2
    assert hub.endings == {Ending.CLIENT_GONE: 1, Ending.SHUTDOWN: 5}


@pytest.mark.clause("D2")
@pytest.mark.field("F1")
async def test_nothing_is_left_of_a_stream_for_nothing(http: Protocol) -> None:
    """A second later: no stream, no timer, no listener, though the client keeps its connection."""
    hub = new_hub(supports=[])
    async with serving(hub.asgi(), http) as port, connected(port) as connection:
        assert (await connection.ask(request("server/discover"))).status == 200
        tasks = len(asyncio.all_tasks())
        await connection.send(json.dumps(listen(ALL)).encode(), headers_for(LISTEN))
        stream = Stream(connection, (await connection.head()).headers, 1)
        assert await stream.acknowledged() == {}
        assert [name(message) for message in await stream.rest()] == ["result"]
        await until(lambda: not hub.streams and timers(hub) is None and not hub._index._uris, limit=1)
        await until(lambda: len(asyncio.all_tasks()) <= tasks, limit=1)
        assert (await connection.ask(request("server/discover"))).status == 200


@pytest.mark.clause("R20", "D3")
@pytest.mark.field("F2")
async def test_switched_off_nothing_is_promised_and_nothing_held(http: Protocol) -> None:
    hub = new_hub(subscriptions=False)
    async with serving(hub.asgi(), http) as port:
        assert (await discovered(port)).discovered["capabilities"] == {}
        answer = await asked(port, listen(ALL))
        assert (answer.status, answer.error["code"]) == (404, -32601)
        await hub.publish(ToolsListChanged())
        assert not hub.streams


@pytest.mark.field("F4")
async def test_a_client_whose_leaving_nobody_tells_is_ended_by_age(http: Protocol) -> None:
    """The platform in front swallows the disconnect."""
    hub = new_hub(max_age=0.5)
    app = hub.asgi()

    async def platform(scope: Any, receive: Any, send: Any) -> None:
        async def never_leaves() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                await asyncio.Event().wait()
            return message

        await app(scope, never_leaves if scope["type"] == "http" else receive, send)

    async with serving(platform, http) as port:
        tasks = len(asyncio.all_tasks())
        async with listening(port, TOOLS) as gone, listening(port, TOOLS) as stays:
            await gone.acknowledged()
            gone.connection.reset()
            await stays.acknowledged()
            assert [name(message) for message in await stays.rest()] == ["result"]
            await until(lambda: not hub.streams)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert hub.endings == {Ending.MAX_AGE: 2}
        assert timers(hub) is None


@pytest.mark.field("F7")
async def test_an_event_comes_from_anywhere_within_the_process(http: Protocol) -> None:
    """A background task, a lifespan task, another thread, a tool; and it is a no-op where nobody listens."""
    hub = new_hub()
    go = {way: asyncio.Event() for way in ("background", "lifespan")}
    server = MCPServer("inner")

    @server.tool()
    async def publish() -> str:
        await hub.publish(ToolsListChanged())
        return "done"

    async def publish_later(way: str) -> None:
        await go[way].wait()
        await hub.publish(ToolsListChanged())

    inner = server.streamable_http_app()
    inner_lifespan = inner.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        async with inner_lifespan(app) as state:
            await hub.publish(ToolsListChanged())
            task = asyncio.create_task(publish_later("lifespan"))
            yield state
            await task

    inner.router.lifespan_context = lifespan
    hub.publish_from_thread(ToolsListChanged())  # before the hub has started
    async with serving(hub.asgi(inner), http) as port:
        background = asyncio.create_task(publish_later("background"))
        await hub.publish(ToolsListChanged())
        async with listening(port, TOOLS) as first, listening(port, TOOLS) as second:
            for stream in (first, second):
                await stream.acknowledged()
            for way in ("background", "lifespan", "thread", "tool"):
                if way == "thread":
                    await asyncio.to_thread(hub.publish_from_thread, ToolsListChanged())
                elif way == "tool":
                    call = request("tools/call", {"name": "publish", "arguments": {}})
                    assert (await asked(port, call, headers_for("tools/call", name="publish"))).status == 200
                else:
                    go[way].set()
                for stream in (first, second):
                    assert name(await stream.expect()) == "tools/list_changed", way
            hub.begin_drain()
            for stream in (first, second):
                assert [name(message) for message in await stream.rest()] == ["result"]
        await background


@pytest.mark.field("F7")
async def test_an_event_comes_from_another_process(harken_command: str) -> None:
    async with command(harken_command, "hub", "--port", "0", "--json") as hub:
        url = (await hub.message())["url"]
        port = int(url.split(":")[2].split("/")[0])
        async with listening(port, ALL) as stream:
            assert await stream.acknowledged() == ALL
            base = f"http://127.0.0.1:{port}"
            code, _, stderr = await run(harken_command, "publish", "tools_list_changed", "--hub", base)
            assert code == 0, stderr
            assert name(await stream.expect()) == "tools/list_changed"


@pytest.mark.field("F8")
@pytest.mark.clause("R21")
async def test_the_official_servers_tool_tells_listeners_on_other_connections(http: Protocol) -> None:
    hub = new_hub()
    server = MCPServer("inner")

    @server.tool()
    async def change(uri: str) -> str:
        await hub.publish(ResourceUpdated(uri))
        return "done"

    wanted = {"resourceSubscriptions": ["x://a"]}
    async with (
        serving(hub.asgi(server.streamable_http_app()), http) as port,
        listening(port, wanted) as mine,
        listening(port, wanted) as other,
    ):
        for stream in (mine, other):
            assert await stream.acknowledged() == wanted
        for number in range(20):
            call = request("tools/call", {"name": "change", "arguments": {"uri": "x://a"}}, id=number)
            answer = await asked(port, call, headers_for("tools/call", name="change"))
            assert answer.status == 200
            assert b"resources/updated" not in answer.body
            for stream in (mine, other):
                assert name(await stream.expect()) == "resources/updated x://a"
    await until(lambda: not hub.streams)


@pytest.mark.field("F41")
async def test_a_burst_of_equal_changes_is_one_or_two_frames(http: Protocol) -> None:
    hub = new_hub()
    async with serving(hub.asgi(), http) as port, listening(port, ALL) as stream:
        await stream.acknowledged()
        for _ in range(200):
            await hub.publish(ToolsListChanged(), ResourceUpdated("x://a"))
        hub.begin_drain()
        names = [name(message) for message in await stream.rest()]
        assert names[-1] == "result"
        for changed in ("tools/list_changed", "resources/updated x://a"):
            assert 1 <= names.count(changed) <= 2


@pytest.mark.field("F57")
async def test_one_stream_serves_fifty_uris(http: Protocol) -> None:
    hub = new_hub()
    uris = [f"x://{number}" for number in range(50)]
    async with serving(hub.asgi(), http) as port, listening(port, {"resourceSubscriptions": uris}) as stream:
        assert await stream.acknowledged() == {"resourceSubscriptions": uris}
        assert "connection" not in stream.headers
        for uri in reversed(uris):
            await hub.publish(ResourceUpdated(uri))
            assert name(await stream.expect()) == f"resources/updated {uri}"


def sockets_in_close_wait(port: int) -> int:
    """How many of our connections the peer has closed and we have not."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "08" for row in rows)


@pytest.mark.clause("R15")
@pytest.mark.field("F35")
async def test_a_thousand_listens_that_are_reset_leave_nothing(http: Protocol) -> None:
    hub = new_hub()
    body = json.dumps(listen(ALL)).encode()
    async with serving(hub.asgi(), http) as port:

        async def listen_and_leave(number: int) -> None:
            async with connected(port) as connection:
                await connection.send(body, headers_for(LISTEN))
                if number % 2:
                    await connection.head()
                connection.reset()

        await listen_and_leave(1)
        await until(lambda: not hub.streams)
        descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        for start in range(0, 1_000, 50):
            await asyncio.gather(*(listen_and_leave(number) for number in range(start, start + 50)))
        await until(lambda: not hub.streams)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
        await until(lambda: sockets_in_close_wait(port) == 0)
        assert timers(hub) is None
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, http_stream.HTTPStream)]
        async with listening(port, TOOLS) as stream:
            await stream.acknowledged()
