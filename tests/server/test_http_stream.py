"""One stream over HTTP: what it carries, how it ends, and what is left of it afterwards.

Tests run on each way of sending: stepped by hand on uvicorn's own `send`, and by the task behind any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.subscription import Ending
from harken.core.wire import LISTEN, RequestId
from harken.server import http_stream
from harken.server.hub import Hub
from tests.core.frames import ODD_IDS, Message, brief, name
from tests.serving import PROTOCOLS, Switch, new_hub, no_problems, serving, until
from tests.wire_client import (
    ALL,
    META,
    PREFIX,
    Connection,
    Stream,
    connected,
    headers_for,
    listen,
    listening,
)

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}
EVERY_EVENT: list[Event] = [
    ToolsListChanged(),
    PromptsListChanged(),
    ResourcesListChanged(),
    ResourceUpdated("x://a"),
]
NAMES = ["tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated x://a"]

Wrap = Callable[[Any], Any]


def bare(app: Any) -> Any:
    """Nothing in between: the stream steps the server's `send` by hand."""
    return app


def behind(app: Any) -> Any:
    """A middleware in between, as plain as it gets: the stream sends from its own task."""

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        async def forward(message: Any) -> None:
            await send(message)

        await app(scope, receive, forward)

    return middleware


@pytest.fixture(params=[bare, behind], ids=["direct", "task"])
def wrap(request: pytest.FixtureRequest) -> Wrap:
    """Each way of sending."""
    wrap: Wrap = request.param
    return wrap


@pytest.fixture(scope="module", params=PROTOCOLS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Switch, int]]:
    """A server by each HTTP implementation, and its port."""
    switch = Switch()
    async with serving(switch, request.param, lifespan="off", expected="") as port:  # each test looks itself
        yield switch, port


@pytest.fixture
async def served(wrap: Wrap, server: tuple[Switch, int]) -> AsyncIterator[tuple[Hub, int]]:
    """A hub and the port on which it is served, in each way of sending and by each HTTP implementation."""
    switch, port = server
    hub = new_hub()
    switch.app = wrap(hub.asgi())
    with no_problems():
        yield hub, port
        await hub.aclose()


async def next_names(stream: Stream, count: int) -> list[str]:
    """The next messages in short."""
    return [name(await stream.expect()) for _ in range(count)]


# -- What a stream carries


@pytest.mark.clause("R1", "R3", "R4", "R7", "R8", "R9", "R10", "R23")
@pytest.mark.field("F12")
@pytest.mark.parametrize("chosen", range(16))
async def test_each_stream_hears_exactly_what_it_asked_for(served: tuple[Hub, int], chosen: int) -> None:
    hub, port = served
    wanted = {key: value for bit, (key, value) in enumerate(ALL.items()) if chosen & 1 << bit}
    async with listening(port, wanted) as stream:
        assert await stream.acknowledged() == wanted  # R3
        await hub.publish(*EVERY_EVENT, ResourceUpdated("x://b"))
        if not wanted:
            assert [name(message) for message in await stream.rest()] == ["result"]
            return
        expected = [NAMES[bit] for bit in range(4) if chosen & 1 << bit]
        assert await next_names(stream, len(expected)) == expected
        await hub.drain()  # R1: and nothing else up to the end
        assert [name(message) for message in await stream.rest()] == ["result"]


@pytest.mark.clause("R3", "D2")
@pytest.mark.parametrize("supported", ["toolsListChanged", "promptsListChanged", "resourceSubscriptions"])
async def test_only_what_is_supported_is_acknowledged(wrap: Wrap, supported: str) -> None:
    hub = new_hub(supports=[supported])
    async with serving(wrap(hub.asgi())) as port:
        async with listening(port, ALL) as stream:
            assert await stream.acknowledged() == {supported: ALL[supported]}
        rest = {key: value for key, value in ALL.items() if key != supported}
        async with listening(port, rest) as stream:
            assert await stream.acknowledged() == {}
            assert [name(message) for message in await stream.rest()] == ["result"]


@pytest.mark.clause("R4", "H13")
@pytest.mark.field("F45")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
async def test_the_id_comes_back_with_its_type_and_value(served: tuple[Hub, int], id: RequestId) -> None:
    hub, port = served
    async with listening(port, TOOLS, id) as stream:  # every message's tag is checked as it is read
        await stream.acknowledged()
        await hub.publish(ToolsListChanged())
        assert await next_names(stream, 1) == NAMES[:1]
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["result"]


@pytest.mark.clause("R6", "H13")
@pytest.mark.field("F9", "F46")
async def test_streams_of_many_clients_never_meet(served: tuple[Hub, int]) -> None:
    """All use the id 1; filters overlap; some leave."""
    hub, port = served
    filters = [TOOLS, ALL, {"promptsListChanged": True}, TOOLS]
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(port, wanted)) for wanted in filters]
        for stream, wanted in zip(streams, filters, strict=True):
            assert await stream.acknowledged() == wanted
        await hub.publish(ToolsListChanged())
        for stream in (streams[0], streams[1], streams[3]):
            assert await next_names(stream, 1) == NAMES[:1]
        streams[0].connection.reset()
        await until(lambda: len(hub.streams) == 3)
        await hub.publish(ToolsListChanged(), PromptsListChanged())
        assert await next_names(streams[1], 2) == NAMES[:2]
        assert await next_names(streams[2], 1) == NAMES[1:2]
        assert await next_names(streams[3], 1) == NAMES[:1]
    await until(lambda: not hub.streams)


@pytest.mark.field("F9")
@pytest.mark.parametrize("leaver", range(3))
async def test_whoever_leaves_the_others_still_hear(served: tuple[Hub, int], leaver: int) -> None:
    hub, port = served
    one_uri = {"resourceSubscriptions": ["x://a"]}
    async with contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(port, one_uri, id)) for id in range(3)]
        for stream in streams:
            await stream.acknowledged()
        streams.pop(leaver).connection.reset()
        await until(lambda: len(hub.streams) == 2)
        await hub.publish(ResourceUpdated("x://a"))
        for stream in streams:
            assert await next_names(stream, 1) == NAMES[3:]


@pytest.mark.clause("D4", "D5", "D7", "R10")
async def test_uris_are_compared_in_normal_form_and_told_as_the_client_spells_them(
    served: tuple[Hub, int],
) -> None:
    hub, port = served
    spelled = ["X://A/%7e/../b", "file:///never/there", "x://a/b", "file:///never/there", "X://A/b"]
    async with listening(port, {"resourceSubscriptions": spelled}) as stream:
        assert await stream.acknowledged() == {"resourceSubscriptions": spelled[:2]}
        await hub.publish(ResourceUpdated("x://a/b"), ResourceUpdated("x://A/%62"))
        await hub.publish(ResourceUpdated("file:///never/there"))
        assert await next_names(stream, 2) == [f"resources/updated {uri}" for uri in spelled[:2]]
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["result"]


@pytest.mark.clause("D6", "R3", "R13")
async def test_unknown_keys_and_false_ones_are_not_echoed(served: tuple[Hub, int]) -> None:
    _, port = served
    wanted = {"tools": True, "x-other": {"a": [1]}, "promptsListChanged": False, "toolsListChanged": True}
    async with listening(port, wanted) as stream:
        assert await stream.acknowledged() == TOOLS


@pytest.mark.clause("R21")
async def test_progress_and_log_settings_of_a_listen_change_nothing(served: tuple[Hub, int]) -> None:
    hub, port = served
    message = listen(TOOLS)
    message["params"]["_meta"] = {**META, "progressToken": 7, PREFIX + "logLevel": "debug"}
    async with connected(port) as connection:
        await connection.send(json.dumps(message).encode(), headers_for(LISTEN))
        stream = Stream(connection, (await connection.head()).headers, 1)
        await stream.acknowledged()
        await hub.publish(ToolsListChanged())
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["tools/list_changed", "result"]


@pytest.mark.clause("R22", "R23")
async def test_a_stream_carries_notifications_and_one_result_alone(served: tuple[Hub, int]) -> None:
    hub, port = served
    async with listening(port, ALL) as stream:
        messages = [await stream.expect()]
        for _ in range(3):
            await hub.publish(*EVERY_EVENT)
            messages += [await stream.expect() for _ in range(4)]
        await hub.drain()
        messages += await stream.rest()
        assert [set(message) for message in messages[:-1]] == [{"jsonrpc", "method", "params"}] * 13
        assert set(messages[-1]) == {"jsonrpc", "id", "result"}


# -- How it ends


@pytest.mark.clause("D2", "R14")
@pytest.mark.field("F1")
@pytest.mark.parametrize(
    "wanted", [{}, {"toolsListChanged": False}, ALL], ids=["empty", "false", "unsupported"]
)
async def test_a_stream_for_nothing_is_not_held(wrap: Wrap, wanted: Message) -> None:
    hub = new_hub(supports=[])
    async with serving(wrap(hub.asgi())) as port, connected(port) as connection:
        tasks = len(asyncio.all_tasks())
        await connection.send(json.dumps(listen(wanted)).encode(), headers_for(LISTEN))
        stream = Stream(connection, (await connection.head()).headers, 1)
        assert await stream.acknowledged() == {}
        assert [name(message) for message in await stream.rest()] == ["result"]
        await until(lambda: not hub.streams, limit=1)
        assert hub.endings == {Ending.NOTHING_HONORED: 1}
        await until(lambda: len(asyncio.all_tasks()) <= tasks, limit=1)
        assert hub._wheel._handle is None  # no timer is left
        assert (await connection.ask(listen({}))).status == 200  # the connection lives on


@pytest.mark.clause("D2")
async def test_a_stream_for_nothing_is_held_where_that_is_wanted(wrap: Wrap) -> None:
    hub = new_hub(supports=[], hold_empty=True, keep_alive=0.1)
    async with serving(wrap(hub.asgi())) as port, listening(port, ALL) as stream:
        assert await stream.acknowledged() == {}
        await stream.comment()
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["result"]


@pytest.mark.clause("R14", "D1")
@pytest.mark.field("F38")
async def test_what_was_published_before_the_end_comes_before_the_result(served: tuple[Hub, int]) -> None:
    hub, port = served
    async with listening(port, ALL, id="z") as stream:
        await stream.acknowledged()
        await hub.publish(*EVERY_EVENT)
        drained = hub.begin_drain()
        await hub.publish(*EVERY_EVENT)
        rest = await stream.rest()
        assert [name(message) for message in rest] == [*NAMES, "result"]
        assert rest[-1]["result"]["_meta"][PREFIX + "serverInfo"] == hub.server_info
        await drained
        assert hub.endings == {Ending.SHUTDOWN: 1}
        assert not hub.streams


@pytest.mark.field("F4")
async def test_max_age_ends_a_stream_with_the_result_and_leaves_nothing(wrap: Wrap) -> None:
    """Also of a client that the platform never tells us has left."""
    hub = new_hub(max_age=0.3, keep_alive=60)
    async with serving(wrap(hub.asgi())) as port:
        tasks = len(asyncio.all_tasks())
        async with listening(port, TOOLS) as stream, listening(port, ALL) as other:
            for each in (stream, other):
                await each.acknowledged()
                assert [name(message) for message in await each.rest()] == ["result"]
            await until(lambda: not hub.streams)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert hub.endings == {Ending.MAX_AGE: 2}
        assert hub._wheel._handle is None


@pytest.mark.clause("R15", "H9")
@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_a_client_that_closes_its_stream_frees_everything(served: tuple[Hub, int], how: str) -> None:
    hub, port = served
    tasks = len(asyncio.all_tasks())
    async with listening(port, ALL) as stream:
        await stream.acknowledged()
        if how == "reset":
            stream.connection.reset()
        elif how == "half":
            stream.connection.writer.write_eof()
            assert await stream.connection.at_end()
        else:
            stream.connection.writer.close()
        await until(lambda: not hub.streams)
        await hub.publish(*EVERY_EVENT)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert hub.endings == {Ending.CLIENT_GONE: 1}
    assert hub._wheel._handle is None
    assert not hub._index._uris
    assert not any(hub._index._lists.values())


@pytest.mark.clause("R15")
async def test_clients_that_leave_at_once_leave_nothing(served: tuple[Hub, int]) -> None:
    """Before the acknowledgment, in its midst, while events come, while the server ends the streams."""
    hub, port = served
    body = json.dumps(listen(ALL)).encode()
    for turn in range(60):
        async with connected(port) as connection:
            await connection.send(body, headers_for(LISTEN))
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            connection.reset()
            await hub.publish(*EVERY_EVENT)
    await until(lambda: not hub.streams)
    assert hub._wheel._handle is None
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, http_stream.HTTPStream)]


# -- Keep-alives


@pytest.mark.clause("H11")
async def test_a_quiet_stream_gets_comments_from_one_timer(wrap: Wrap) -> None:
    hub = new_hub(keep_alive=0.1)
    async with serving(wrap(hub.asgi())) as port, contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(port, TOOLS)) for _ in range(5)]
        for stream in streams:
            await stream.acknowledged()
        for stream in streams * 3:
            await stream.comment()
        await hub.publish(ToolsListChanged())
        for stream in streams:
            assert await next_names(stream, 1) == NAMES[:1]


@pytest.mark.field("F25")
async def test_no_event_is_lost_around_a_keep_alive(wrap: Wrap) -> None:
    """10,000 URIs, one by one, at moments before, at and after those at which the timer fires."""
    hub = new_hub(keep_alive=0.02)
    uris = [f"x://{number}" for number in range(10_000)]

    async def publish() -> None:
        for number, uri in enumerate(uris):
            await hub.publish(ResourceUpdated(uri))
            if number % 100 == 0:
                await asyncio.sleep(random.uniform(0.018, 0.024))
            elif number % 5 == 0:
                await asyncio.sleep(0)

    wanted = {"resourceSubscriptions": uris}
    async with serving(wrap(hub.asgi())) as port, listening(port, wanted) as stream:
        await stream.acknowledged()
        publishing = asyncio.create_task(publish())
        heard = [(await stream.expect())["params"]["uri"] for _ in uris]
        await publishing
        assert heard == uris
        assert stream.comments > 10


# -- Readers that are slow, or stand still


async def stopped(port: int, wanted: Message) -> socket.socket:
    """A client that has sent its listen and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    body = json.dumps(listen(wanted)).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers_for(LISTEN))
    whole = f"POST /mcp HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    await loop.sock_sendall(client, whole)
    return client


MANY = [f"x://{number}/{'a' * 900}" for number in range(1_000)]


async def fill(hub: Hub) -> None:
    """Publish until the one stream takes no more."""
    await until(lambda: hub.streams)
    async with asyncio.timeout(20):
        while not any(stream.blocked_since for stream in hub.streams):
            await hub.publish(*(ResourceUpdated(uri) for uri in MANY))
            await asyncio.sleep(0)


async def test_a_slow_reader_gets_the_latest_of_everything_in_the_end(served: tuple[Hub, int]) -> None:
    hub, port = served
    with contextlib.closing(await stopped(port, {"resourceSubscriptions": MANY})) as client:
        await fill(hub)
        (stream,) = hub.streams
        for _ in range(20):
            await hub.publish(*(ResourceUpdated(uri) for uri in MANY))
        await asyncio.sleep(0)
        assert len(stream.pending) == len(MANY)  # a set, not a queue
        reader, writer = await asyncio.open_connection(sock=client, limit=2**24)
        connection = Connection(reader, writer)
        reading = Stream(connection, (await connection.head()).headers, 1)
        await reading.acknowledged()
        hub.begin_drain()
        names = [name(message) for message in await reading.rest()]
        assert names[-1] == "result"
        assert names[-1001:-1] == [f"resources/updated {uri}" for uri in MANY]
        writer.close()
    await until(lambda: not hub.streams)


UNCOMPLETED = "ASGI callable returned without completing response"  # all that an app behind others can do


async def test_a_reader_that_stands_still_is_left(wrap: Wrap) -> None:
    """Its place and its set are free; the others go on."""
    hub = new_hub(write_timeout=0.3, keep_alive=0.1)
    async with serving(wrap(hub.asgi()), expected=UNCOMPLETED) as port:
        with contextlib.closing(await stopped(port, {"resourceSubscriptions": MANY})):
            await fill(hub)
            async with listening(port, TOOLS) as other:
                await other.acknowledged()
                await until(lambda: len(hub.streams) == 1)
                assert hub.endings == {Ending.STUCK_READER: 1}
                assert not hub._index._uris
                await hub.publish(ToolsListChanged())
                assert await next_names(other, 1) == NAMES[:1]


@pytest.mark.clause("D13")
async def test_a_slow_reader_that_gets_on_is_not_left() -> None:
    """What waits for it takes longer than a write may make no progress."""
    hub = new_hub(write_timeout=0.5)
    endpoint = hub.asgi()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connection = send.__self__.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)  # or the system takes it all
        await endpoint(scope, receive, send)

    async with serving(app, lifespan="off") as port:
        with contextlib.closing(await stopped(port, {"resourceSubscriptions": MANY})) as client:
            await fill(hub)
            (stream,) = hub.streams
            assert isinstance(stream, http_stream.DirectStream)
            loop = asyncio.get_running_loop()
            begun = loop.time()
            while stream.blocked_since is not None:
                assert await loop.sock_recv(client, 8_192), "the connection was cut"
                await asyncio.sleep(0.01)  # that is what makes it slow
            assert not hub.endings
            assert loop.time() - begun > 2 * 0.5
        await until(lambda: not hub.streams)


async def test_a_reader_that_reads_again_gets_keep_alives_again(wrap: Wrap) -> None:
    """They come at their own interval, whatever the bound on a write is."""
    hub = new_hub(write_timeout=3_600, keep_alive=0.2)
    async with serving(wrap(hub.asgi())) as port:
        with contextlib.closing(await stopped(port, {"resourceSubscriptions": MANY})) as client:
            await fill(hub)
            (stream,) = hub.streams
            slot = stream.slot
            await until(lambda: stream.slot != slot)  # its keep-alive was due meanwhile, and could not be
            assert stream.blocked_since is not None
            reader, writer = await asyncio.open_connection(sock=client, limit=2**24)
            connection = Connection(reader, writer)
            reading = Stream(connection, (await connection.head()).headers, 1)
            while not (await reading.frame()).startswith(b":"):
                pass
            writer.close()


async def test_the_end_of_a_stream_waits_for_a_slow_reader_but_not_for_ever(wrap: Wrap) -> None:
    hub = new_hub()
    async with serving(wrap(hub.asgi()), expected=UNCOMPLETED) as port:
        with contextlib.closing(await stopped(port, {"resourceSubscriptions": MANY})):
            await fill(hub)
            async with asyncio.timeout(10):
                await hub.drain()
            await until(lambda: not hub.streams)
            assert hub.endings == {Ending.SHUTDOWN: 1}


# -- The two ways of sending are one


async def recorded(wrap: Wrap) -> tuple[dict[str, list[str]], bytes]:
    """Headers and body of a stream with a bit of everything."""
    hub = new_hub(keep_alive=0.2)
    async with serving(wrap(hub.asgi())) as port, listening(port, ALL, id="ü") as stream:
        await stream.acknowledged()
        await hub.publish(*EVERY_EVENT, *EVERY_EVENT)
        await next_names(stream, 4)
        await stream.comment()
        await hub.publish(ToolsListChanged())
        await hub.publish(ResourceUpdated("x://a"))
        hub.begin_drain()
        await stream.rest()
        del stream.headers["date"]
        return stream.headers, stream.raw


async def test_both_ways_of_sending_give_the_same_bytes() -> None:
    assert await recorded(bare) == await recorded(behind)


class Hidden:
    """A `receive` that never tells of the end."""

    def __init__(self, receive: Any) -> None:
        self._receive = receive

    async def receive(self) -> Any:
        """Everything but the end."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            await asyncio.Event().wait()
        return message

    async def __call__(self) -> Any:
        """The same."""
        return await self.receive()


@pytest.mark.parametrize("method", [False, True])
async def test_only_a_server_of_which_both_ends_are_seen_is_stepped_by_hand(method: bool) -> None:
    """A middleware may hide the end of the response from us: then nobody but our own task knows of it."""
    kinds: list[type] = []
    hub = new_hub()
    app = hub.asgi()

    async def hides_the_end(scope: Any, receive: Any, send: Any) -> None:
        hidden = Hidden(receive)
        await app(scope, hidden.receive if method else hidden, send)

    async with serving(hides_the_end, lifespan="off") as port, listening(port, TOOLS) as stream:
        await stream.acknowledged()
        kinds += map(type, hub.streams)
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["result"]
        await until(lambda: not hub.streams)
    await hub.aclose()
    async with serving(app) as port, listening(port, TOOLS) as stream:
        await stream.acknowledged()
        kinds += map(type, hub.streams)
    assert kinds == [http_stream.TaskStream, http_stream.DirectStream]


# -- Servers and middleware that misbehave


def with_receive(app: Any, change: Callable[[Any], Any]) -> Any:
    """A middleware that changes `receive`, and `send` in nothing but its identity."""

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        await behind(app)(scope, change(receive) if scope["type"] == "http" else receive, send)

    return middleware


async def test_a_middleware_that_repeats_the_body_does_not_own_the_event_loop() -> None:
    hub = new_hub()
    asked = 0

    def repeat(receive: Any) -> Any:
        body = json.dumps(listen(TOOLS)).encode()

        async def receive_the_same() -> Any:
            nonlocal asked
            asked += 1
            if asked > 1_000:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": False}

        return receive_the_same

    async with serving(with_receive(hub.asgi(), repeat)) as port, listening(port, TOOLS) as stream:
        await stream.acknowledged()
        await hub.publish(ToolsListChanged())
        assert await next_names(stream, 1) == NAMES[:1]
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["result"]
    assert asked < 100


async def test_a_middleware_whose_receive_fails_loses_its_stream_alone() -> None:
    hub = new_hub()
    fail = asyncio.Event()

    def failing(receive: Any) -> Any:
        first = True

        async def receive_once() -> Any:
            nonlocal first
            if first:
                first = False
                return await receive()
            await fail.wait()
            raise RuntimeError("no more")

        return receive_once

    app = with_receive(hub.asgi(), failing)
    with no_problems(expected=""):
        async with serving(app, expected="") as port, listening(port, TOOLS) as stream:
            await stream.acknowledged()
            fail.set()
            await until(lambda: not hub.streams)


class Cycle:
    """Takes the place of uvicorn's own request: its `send` fails when told to."""

    __module__ = "uvicorn.protocols.http.h11_impl"

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        self.fails: Exception | None = None
        self.waits: asyncio.Future[None] | None = None
        self.transport = self

    def get_write_buffer_size(self) -> int:
        """The transport's."""
        return 0

    def abort(self) -> None:
        """The transport's."""
        self.gone.set()

    async def receive(self) -> Any:
        """Gives the body, then waits for the client to leave."""
        if (body := self.body) is not None:
            self.body = None
            return {"type": "http.request", "body": body}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Fails, or waits, or keeps what was sent."""
        if self.waits is not None:
            await self.waits
        if self.fails is not None:
            raise self.fails
        self.sent.append(message)


async def start(hub: Hub, cycle: Cycle, id: int, wrap: Wrap = bare) -> asyncio.Task[None]:
    """A stream on a server of ours, acknowledged."""
    cycle.body = json.dumps(listen(TOOLS, id)).encode()
    headers = [(name.lower().encode(), value.encode()) for name, value in headers_for(LISTEN)]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers}

    async def call() -> None:
        await wrap(hub.asgi())(scope, cycle.receive, cycle.send)

    task = asyncio.create_task(call())
    await until(lambda: len(cycle.sent) == 2)
    return task


@pytest.mark.parametrize("waits", [False, True])
async def test_a_server_that_will_not_send_loses_its_stream_alone(
    caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    async with new_hub() as hub:
        cycles = [Cycle() for _ in range(3)]
        tasks = [await start(hub, cycle, id) for id, cycle in enumerate(cycles)]
        cycles[0].fails = RuntimeError("no")
        if waits:
            cycles[0].waits = asyncio.get_running_loop().create_future()
        await hub.publish(ToolsListChanged())
        if waits:
            await until(lambda: any(stream.blocked_since for stream in hub.streams))
            assert cycles[0].waits is not None
            cycles[0].waits.set_result(None)
        await asyncio.wait_for(tasks[0], 5)
        assert len(hub.streams) == 2
        await until(lambda: len(cycles[1].sent) == len(cycles[2].sent) == 3)
        assert "would not send" in caplog.text
        for cycle in cycles:
            cycle.gone.set()
        await asyncio.gather(*tasks)


async def test_what_a_server_waits_with_is_sent_once_and_in_order() -> None:
    async with new_hub() as hub:
        cycle = Cycle()
        task = await start(hub, cycle, 1)
        cycle.waits = asyncio.get_running_loop().create_future()
        await hub.publish(ToolsListChanged())
        await until(lambda: any(stream.blocked_since for stream in hub.streams))
        await hub.publish(ToolsListChanged())
        (stream,) = hub.streams
        hub.end(stream, Ending.MAX_AGE)
        cycle.waits.set_result(None)
        await until(lambda: len(cycle.sent) == 4)
        first, last = (message["body"].decode() for message in cycle.sent[2:])
        assert (first.count("list_changed"), first.count("result")) == (1, 0)
        assert (last.count("list_changed"), last.count('"result"')) == (1, 1)
        assert [message["more_body"] for message in cycle.sent[1:]] == [True, True, False]
        stream.beat(0.0)
        await hub.publish(ToolsListChanged())
        await asyncio.sleep(0)
        assert len(cycle.sent) == 4  # R14: nothing follows
        cycle.gone.set()
        await task


async def test_a_stream_whose_task_is_cancelled_leaves_nothing() -> None:
    async with new_hub() as hub:
        cycle = Cycle()
        tasks = len(asyncio.all_tasks())
        task = await start(hub, cycle, 1)
        cycle.waits = asyncio.get_running_loop().create_future()
        await hub.publish(ToolsListChanged())
        await until(lambda: any(stream.blocked_since for stream in hub.streams))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(asyncio.all_tasks()) == tasks)
        assert not hub.streams
        assert len(cycle.sent) == 2


async def test_the_place_of_a_refused_client_is_not_taken_in_the_meantime(served: tuple[Hub, int]) -> None:
    """A hundred clients at once, one place each: none too many."""
    hub, port = served
    object.__setattr__(hub.limits, "max_streams", 10)

    async def attempt() -> int:
        async with connected(port) as connection:
            await connection.send(json.dumps(listen(TOOLS)).encode(), headers_for(LISTEN))
            status = (await connection.head()).status
            await everybody.wait()
            return status

    everybody = asyncio.Event()
    attempts = [asyncio.create_task(attempt()) for _ in range(40)]
    await until(lambda: hub.endings[Ending.REJECTED] == 30)
    everybody.set()
    statuses = await asyncio.gather(*attempts)
    assert (statuses.count(200), statuses.count(503)) == (10, 30)


async def test_a_stream_behind_others_whose_task_is_cancelled_leaves_nothing() -> None:
    async with new_hub() as hub:
        cycle = Cycle()
        tasks = len(asyncio.all_tasks())
        task = await start(hub, cycle, 1, behind)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(asyncio.all_tasks()) == tasks)
        assert not hub.streams
        assert len(cycle.sent) == 2


def test_a_loop_that_died_with_a_stream_open_is_left_behind() -> None:
    """And with an event that was not yet written: some test clients close their loop like this."""
    hub = new_hub(keep_alive=0.2)
    dying = asyncio.new_event_loop()
    task = dying.run_until_complete(start(hub, Cycle(), 1))
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # its end is the point

    def publish_and_die() -> None:
        dying.stop()
        hub.publish_from_thread(ToolsListChanged())

    dying.call_soon(publish_and_die)
    dying.run_forever()
    dying.close()

    async def live_on() -> None:
        cycle = Cycle()
        task = await start(hub, cycle, 2)
        assert len(hub.streams) == 1
        await hub.publish(ToolsListChanged())
        await until(lambda: len(cycle.sent) == 3)
        assert b"list_changed" in cycle.sent[2]["body"]
        await until(lambda: len(cycle.sent) == 4)
        assert cycle.sent[3]["body"].startswith(b":")
        cycle.gone.set()
        await task
        await hub.aclose()

    asyncio.run(live_on())


async def test_what_a_middleware_does_after_the_last_message_is_not_cut_off() -> None:
    """The server says that the response is complete while the middleware is still at it."""
    hub = new_hub()
    written: list[bool] = []

    async def books(scope: Any, receive: Any, send: Any) -> None:
        async def send_and_write_down(message: Any) -> None:
            await send(message)
            for _ in range(20):
                await asyncio.sleep(0)
            written.append(message.get("more_body", True))

        await hub.asgi()(scope, receive, send_and_write_down)
        written.append(False)

    async with serving(books, lifespan="off") as port, listening(port, TOOLS) as stream:
        await stream.acknowledged()
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["result"]
        await until(lambda: len(written) == 4)
        assert written == [True, True, False, False]


@pytest.mark.clause("R15")
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_server_may_say_by_an_error_that_the_client_has_left(at: int) -> None:
    """So ASGI has it since 2.4: `send` raises an OSError."""
    hub = new_hub()
    sent: list[Any] = []

    async def receive() -> Any:
        if not sent:
            body = json.dumps(listen(TOOLS)).encode()
            return {"type": "http.request", "body": body}
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == at:
            raise BrokenPipeError

    headers = [(name.lower().encode(), value.encode()) for name, value in headers_for(LISTEN)]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers}
    async with hub:
        call = asyncio.gather(hub.asgi()(scope, receive, send))
        if at == 3:
            await until(lambda: len(sent) == 2)
            await hub.publish(ToolsListChanged())
        async with asyncio.timeout(5):
            await call
        assert not hub.streams
        assert hub.endings == {Ending.CLIENT_GONE: 1}
        assert len(sent) == at


async def test_a_stream_keeps_nothing_of_its_request() -> None:
    """A filter may be a megabyte long, and a hundred thousand streams open."""
    hub = new_hub()
    wanted = {**TOOLS, "x-padding": "~" * 500_000}
    async with serving(hub.asgi()) as port, listening(port, wanted) as stream:
        await stream.acknowledged()
        del wanted["x-padding"]
        gc.collect()
        padded = [
            type(holder)
            for holder in gc.get_objects()
            for thing in gc.get_referents(holder)
            if (isinstance(thing, str) and "~" * 9_000 in thing)
            or (isinstance(thing, bytes | bytearray) and b"~" * 9_000 in thing)
        ]
        assert padded == []
