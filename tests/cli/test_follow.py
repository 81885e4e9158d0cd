"""Following the list of resources, against a real hub whose list the test holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest
import uvicorn

from harken.cli import follow
from harken.cli.follow import Follower, Overlap, list_resources
from harken.cli.output import Output
from harken.client.connection import Connection
from harken.client.listen import connect
from harken.client.status import WatchStatus
from harken.client.subscription import Subscription
from harken.core.demux import Ending, Stream
from harken.core.events import Event, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from harken.core.filters import Filter
from harken.core.subscription import Ending as HubEnding
from harken.core.wire import INTERNAL_ERROR, RequestId
from harken.errors import ProtocolError, RPCError
from harken.gateway.runner import bind
from harken.server.hub import Hub
from harken.server.limits import Limits
from harken.server.methods import Request
from harken.server.stream import Stream as HubStream

pytestmark = pytest.mark.anyio

LISTS = Filter(True, True, True)
A, B, TOOLS = ResourceUpdated("x:/a"), ResourceUpdated("x:/b"), ToolsListChanged()


def stream(id: int) -> Subscription:
    return Subscription(Stream(id, LISTS))


class TestOverlap:
    def test_one_stream_shows_everything(self) -> None:
        overlap, only = Overlap(), stream(1)
        overlap.open(only)
        assert all(overlap.shows(only, event) for event in (A, A, TOOLS, A))

    def test_a_copy_is_shown_once_whichever_comes_first(self) -> None:
        overlap, old, new = Overlap(), stream(1), stream(2)
        overlap.open(old)
        overlap.open(new)
        assert [overlap.shows(old, A), overlap.shows(new, A)] == [True, False]
        assert [overlap.shows(new, B), overlap.shows(old, B)] == [True, False]
        assert [overlap.shows(new, A), overlap.shows(old, A)] == [True, False]

    def test_what_came_before_the_new_stream_is_no_copy_of_what_comes_after(self) -> None:
        overlap, old, new = Overlap(), stream(1), stream(2)
        overlap.open(old)
        assert overlap.shows(old, A)
        overlap.open(new)
        assert overlap.shows(new, A)

    def test_what_only_the_old_one_brought_hides_nothing_for_good(self) -> None:
        """The old stream brings a late first event and both bring the second: two are shown."""
        overlap, old, new = Overlap(), stream(1), stream(2)
        overlap.open(old)
        overlap.open(new)
        shown = [overlap.shows(old, A), overlap.shows(new, A), overlap.shows(old, A)]
        assert shown == [True, False, True]
        assert overlap.last_hidden > 0

    def test_a_third_stream_starts_from_what_was_shown(self) -> None:
        overlap, old, new, newest = Overlap(), stream(1), stream(2), stream(3)
        for opened in (old, new):
            overlap.open(opened)
        assert overlap.shows(old, A)
        overlap.open(newest)
        assert overlap.shows(newest, A)
        overlap.close(old)
        overlap.close(old)
        assert not overlap.shows(new, A)

    def test_once_alone_the_count_starts_anew(self) -> None:
        overlap, old, new = Overlap(), stream(1), stream(2)
        overlap.open(old)
        overlap.open(new)
        assert overlap.shows(old, A)
        overlap.close(old)
        assert overlap.shows(new, A)
        third = stream(3)
        overlap.open(third)
        assert overlap.shows(third, A)


class Record(Output):
    """Remembers what is shown, and lets a test wait for more of it."""

    def __init__(self) -> None:
        self.shown: list[object] = []
        self.warnings: list[str] = []
        self._more = asyncio.Event()

    def ack(self, honored: Filter, unsupported: Filter, subscription_id: RequestId) -> None:
        self._add(honored)

    def event(self, event: Event) -> None:
        self._add(event)

    def ended(self, ending: Ending, detail: str | None) -> None:
        raise NotImplementedError

    def resync(self) -> None:
        raise NotImplementedError

    def state(self, status: WatchStatus) -> None:
        raise NotImplementedError

    def fault(self, message: str) -> None:
        raise NotImplementedError

    def keep_alive(self, quiet: float) -> None:
        raise NotImplementedError

    def warning(self, message: str) -> None:
        self.warnings.append(message)
        self._more.set()

    def _add(self, shown: object) -> None:
        self.shown.append(shown)
        self._more.set()

    async def until(self, *, shown: int = 0, warnings: int = 0) -> None:
        """Waits for so many of each."""
        while len(self.shown) < shown or len(self.warnings) < warnings:
            self._more.clear()
            await self._more.wait()


class Server:
    """A hub over HTTP with a list of resources, in pages of two."""

    def __init__(self, **options: object) -> None:
        self.uris = ["x:/a", "x:/b", "x:/c"]
        self.failures: list[Exception] = []
        self.asked = 0
        self.hub = Hub(methods={"resources/list": self._list}, **options)  # type: ignore[arg-type]  # as given

    async def _list(self, request: Request) -> Mapping[str, object]:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        start = int(str(request.params.get("cursor", 0)))
        page: dict[str, object] = {
            "resources": [{"uri": uri, "name": uri} for uri in self.uris[start : start + 2]],
            "ttlMs": 0,
            "cacheScope": "public",
        }
        if start + 2 < len(self.uris):
            page["nextCursor"] = str(start + 2)
        return page

    async def change(self, *uris: str) -> None:
        """Another list, and the word of it."""
        self.uris = list(uris)
        await self.hub.publish(ResourcesListChanged())

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        listener = bind("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(self.hub.asgi(), ws="none", log_config=None))
        task = asyncio.create_task(server._serve(sockets=[listener]))
        try:
            async with (
                asyncio.timeout(30),
                connect(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp") as connection,
            ):
                yield connection
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def following(
    server: Server, wanted: Filter = LISTS, *, everything: bool = True, count: int | None = None
) -> AsyncIterator[tuple[Record, asyncio.Task[tuple[Ending, object]]]]:
    """A follower at work."""
    record = Record()
    async with server.connection() as connection:
        follower = Follower(connection, wanted, record, everything=everything, count=count)
        task = asyncio.create_task(follower.run())
        try:
            yield record, task
        finally:
            task.cancel()
            await asyncio.wait([task])


async def until_streams(hub: Hub, most: int) -> None:
    """Waits until the hub holds so many streams at most."""
    left, leave = asyncio.Event(), hub.leave

    def leave_and_tell(stream: HubStream, ending: HubEnding) -> None:
        leave(stream, ending)
        left.set()

    hub.leave = leave_and_tell  # type: ignore[method-assign]  # the one way out of a hub
    while len(hub.streams) > most:
        left.clear()
        await left.wait()


def honoring(*uris: str) -> Filter:
    return Filter(True, True, True, uris)


async def test_every_page_is_listened_to() -> None:
    server = Server()
    async with following(server) as (record, _):
        await record.until(shown=1)
        await server.hub.publish(ResourceUpdated("x:/c"), TOOLS)
        await record.until(shown=3)
        assert record.shown == [honoring("x:/a", "x:/b", "x:/c"), ResourceUpdated("x:/c"), TOOLS]


async def test_a_new_resource_is_listened_to_before_the_old_stream_closes() -> None:
    server = Server()
    async with following(server) as (record, _):
        await record.until(shown=1)
        await server.change("x:/a", "x:/b", "x:/d")
        await record.until(shown=3)
        assert record.shown[1:] == [ResourcesListChanged(), honoring("x:/a", "x:/b", "x:/d")]
        assert len(server.hub.streams) == 2
        await server.hub.publish(ResourceUpdated("x:/d"), A)
        await record.until(shown=5)
        assert set(record.shown[3:]) == {ResourceUpdated("x:/d"), A}


async def test_what_both_streams_bring_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OVERLAP", 0.5)
    server = Server()
    async with following(server) as (record, _):
        await record.until(shown=1)
        await server.change("x:/a")
        await record.until(shown=3)
        for _ in range(20):  # one after the other, so that none collapses
            shown = len(record.shown)
            await server.hub.publish(A)
            await record.until(shown=shown + 1)
        # The old stream ends by itself; what comes after that is shown as well, once.
        await until_streams(server.hub, 1)
        await server.hub.publish(TOOLS)
        await record.until(shown=24)
        assert record.shown[3:] == [A] * 20 + [TOOLS]


async def test_a_change_between_the_list_and_the_ack_is_not_missed() -> None:
    server = Server()
    first = server.uris

    async def changed_meanwhile(request: Request) -> Mapping[str, object]:
        page = await Server._list(server, request)
        if "nextCursor" not in page and server.uris is first:
            server.uris = ["x:/late"]  # without a word: nobody listens yet
        return page

    server.hub = Hub(methods={"resources/list": changed_meanwhile})
    async with following(server) as (record, _):
        await record.until(shown=2)
        assert record.shown == [honoring("x:/a", "x:/b", "x:/c"), honoring("x:/late")]


async def test_without_a_change_in_the_list_the_stream_stays() -> None:
    server = Server()
    async with following(server) as (record, _):
        await record.until(shown=1)
        await server.change(*reversed(server.uris))
        await record.until(shown=2)
        asked = server.asked
        await server.hub.publish(ResourcesListChanged())
        await record.until(shown=3)
        await server.hub.publish(TOOLS)
        await record.until(shown=4)
        assert server.asked >= asked
        assert record.shown[1:] == [ResourcesListChanged(), ResourcesListChanged(), TOOLS]
        assert len(server.hub.streams) == 1


async def test_changes_in_a_row_keep_two_streams_at_most() -> None:
    server = Server()
    async with following(server) as (record, _):
        await record.until(shown=1)
        for number in range(5):
            shown = len(record.shown)
            await server.change(f"x:/{number}")
            await record.until(shown=shown + 2)
        assert record.shown[-1] == honoring("x:/4")
        await until_streams(server.hub, 2)


async def test_a_list_that_cannot_be_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_RETRY", 0.01)
    server = Server()
    async with following(server) as (record, _):
        await record.until(shown=1)
        server.failures = [RPCError(INTERNAL_ERROR, "the disk is away") for _ in range(3)]
        await server.change("x:/d")
        await record.until(shown=3, warnings=1)
        assert "the disk is away" in record.warnings[0]
        assert record.shown[1:] == [ResourcesListChanged(), honoring("x:/d")]


async def test_a_stream_that_is_refused_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_RETRY", 0.01)
    server = Server(limits=Limits(max_uris=3))
    async with following(server) as (record, _):
        await record.until(shown=1)
        await server.change("x:/1", "x:/2", "x:/3", "x:/4")
        await record.until(shown=2, warnings=2)
        await server.hub.publish(A)  # the stream before it goes on
        await record.until(shown=3)
        server.uris.pop()
        await record.until(shown=4)
        assert record.shown[1:] == [ResourcesListChanged(), A, honoring("x:/1", "x:/2", "x:/3")]


async def test_the_first_list_must_be_had() -> None:
    server = Server()
    server.failures = [RPCError(INTERNAL_ERROR, "the disk is away")]
    async with following(server) as (_, task):
        with pytest.raises(RPCError, match="the disk is away"):
            await task


async def test_the_first_stream_must_be_had() -> None:
    server = Server(limits=Limits(max_uris=2))
    async with following(server) as (_, task):
        with pytest.raises(RPCError, match="2 URIs"):
            await task


async def test_a_server_without_resources_is_listened_to_all_the_same() -> None:
    server = Server()
    server.hub = Hub(supports=["toolsListChanged"])
    async with following(server) as (record, _):
        await record.until(shown=1)
        await server.hub.publish(TOOLS)
        await record.until(shown=2)
        assert record.shown == [Filter(True), TOOLS]


@pytest.mark.parametrize("everything", [False, True])
async def test_the_end_of_the_stream_is_the_end(everything: bool) -> None:
    server = Server()
    async with following(server, everything=everything) as (record, task):
        await record.until(shown=1)
        await server.hub.drain()
        assert await task == (Ending.COMPLETED, None)


async def test_while_two_are_open_the_end_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OVERLAP", 60)
    server = Server()
    async with following(server) as (record, task):
        await record.until(shown=1)
        await server.change("x:/d")
        await record.until(shown=3)
        await server.hub.drain()
        assert await task == (Ending.COMPLETED, None)


async def test_after_so_many_events_it_ends_by_itself() -> None:
    server = Server()
    async with following(server, Filter(True), everything=False, count=2) as (record, task):
        await record.until(shown=1)
        for shown in (2, 3):
            await server.hub.publish(TOOLS)
            await record.until(shown=shown)
        assert await task == (Ending.CLOSED, None)
        assert record.shown == [Filter(True), TOOLS, TOOLS]


async def test_nothing_honored_is_an_end() -> None:
    server = Server(supports=["promptsListChanged"])
    async with following(server, Filter(True), everything=False) as (record, task):
        assert await task == (Ending.NOTHING_HONORED, None)
        assert record.shown == [Filter()]


@pytest.mark.parametrize(
    ("page", "uris"),
    [
        ({"resources": []}, ()),
        ({"resources": [{"uri": "x:/a"}, {"uri": "x:/a"}, {"uri": "no uri"}, {"uri": 1}, {}, 7]}, ("x:/a",)),
        ({"resources": [{"uri": "x:/a"}], "nextCursor": 7}, ("x:/a",)),
    ],
)
async def test_what_is_no_uri_is_passed_over(page: dict[str, object], uris: tuple[str, ...]) -> None:
    server = Server()

    async def listed(_: Request) -> Mapping[str, object]:
        return page

    server.hub = Hub(methods={"resources/list": listed})
    async with server.connection() as connection:
        assert await list_resources(connection) == uris


@pytest.mark.parametrize("page", [{}, {"resources": {}}, {"resources": [], "nextCursor": "more"}])
async def test_a_list_that_is_none_or_never_ends(
    page: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "MAX_PAGES", 20)
    server = Server()

    async def listed(_: Request) -> Mapping[str, object]:
        return page

    server.hub = Hub(methods={"resources/list": listed})
    async with server.connection() as connection:
        with pytest.raises(ProtocolError, match="resources/list"):
            await list_resources(connection)
