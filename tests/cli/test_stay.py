"""What `harken listen --follow` shows, in which order, against servers that end as a test tells them to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from harken.cli import stay
from harken.cli.output import Output
from harken.cli.stay import Stayer
from harken.client.status import WatchStatus
from harken.client.watch import Watch, watch
from harken.core.demux import Ending
from harken.core.events import Event, ResourceUpdated, ToolsListChanged
from harken.core.filters import Filter
from harken.core.retry import RetryPolicy
from harken.core.wire import RequestId
from harken.errors import HarkenError, NothingHonored, Refused
from tests.client.scripted import (
    Exchange,
    Script,
    Server,
    encode,
    error,
    http_server,
    result,
    tagged,
    tools_changed,
)

pytestmark = pytest.mark.anyio

TOOLS, LISTS = Filter(True), Filter(True, True, True)
FAST = RetryPolicy(first_delay=0.01, max_delay=0.02, attempts=100)
Outcome = asyncio.Task[tuple[Ending, HarkenError | None]]


class Record(Output):
    """Remembers what is shown, and lets a test wait for more of it."""

    def __init__(self) -> None:
        self.shown: list[object] = []
        self.warnings: list[str] = []
        self._more = asyncio.Event()

    def ack(self, honored: Filter, unsupported: Filter, subscription_id: RequestId) -> None:
        self._add(honored)

    def resync(self) -> None:
        self._add("resync")

    def state(self, status: WatchStatus) -> None:
        self._add(str(status.state))

    def event(self, event: Event) -> None:
        self._add(event)

    def ended(self, ending: Ending, detail: str | None) -> None:
        self._add(ending)

    def warning(self, message: str) -> None:
        self.warnings.append(message)
        self._more.set()

    def fault(self, message: str) -> None:
        raise NotImplementedError

    def keep_alive(self, quiet: float) -> None:
        raise NotImplementedError

    def _add(self, shown: object) -> None:
        self.shown.append(shown)
        self._more.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._more.clear()
            await self._more.wait()


@contextlib.asynccontextmanager
async def staying(
    script: Script, wanted: Filter = TOOLS, *, everything: bool = False, count: int | None = None
) -> AsyncIterator[tuple[Record, Outcome, Server]]:
    record = Record()
    async with asyncio.timeout(20), http_server(script) as server:

        def open_watch(on_state: Callable[[WatchStatus], object]) -> Watch:
            return watch(server.url, wanted, retry=FAST, on_state=on_state)

        task = asyncio.create_task(Stayer(open_watch, record, everything=everything, count=count).run())
        try:
            yield record, task, server
        finally:
            task.cancel()
            await asyncio.wait([task])


async def hold(exchange: Exchange) -> None:
    await exchange.acknowledge(**exchange.body["params"]["notifications"])
    await exchange.until_closed()


async def test_everything_is_shown_in_its_order() -> None:
    """Also an event that came in one piece with the end of its stream."""
    ends = [True, False]

    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        await exchange.say(tools_changed(exchange.id), *([result(exchange.id)] if ends.pop(0) else []))
        await exchange.until_closed()

    opened = ["live", TOOLS, "resync", ToolsListChanged()]
    expected = ["connecting", *opened, Ending.COMPLETED, "backing_off", "connecting", *opened]
    async with staying(script) as (record, _, _):
        await record.until(lambda: len(record.shown) >= len(expected))
        assert record.shown == expected


async def test_a_failed_attempt_is_an_end_too() -> None:
    async def script(exchange: Exchange) -> None:
        if server.closed:
            await hold(exchange)

    async with staying(script) as (record, _, server):
        await record.until(lambda: "resync" in record.shown)
        assert record.shown == [
            *("connecting", Ending.LOST, "backing_off"),
            *("connecting", "live", TOOLS, "resync"),
        ]


async def test_after_so_many_events_it_ends_by_itself() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True, resourceSubscriptions=["x:/a", "x:/b"])
        for uri in ("x:/a", "x:/b"):
            await exchange.say(tagged("notifications/resources/updated", exchange.id, uri=uri))
        await exchange.say(tools_changed(exchange.id), result(exchange.id))

    wanted = Filter(True, resource_subscriptions=("x:/a", "x:/b"))
    async with staying(script, wanted, count=2) as (record, task, _):
        assert await task == (Ending.CLOSED, None)
        assert record.shown[-2:] == [ResourceUpdated("x:/a"), ResourceUpdated("x:/b")]


async def test_a_no_is_the_end() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.reply(404, encode(error(exchange.id, -32601)))

    async with staying(script) as (record, task, _):
        ending, failed = await task
        assert ending is Ending.REFUSED
        assert isinstance(failed, Refused)
        assert record.shown == ["connecting", "refused"]


class Listing:
    """A server with a list of resources, that honours what it is told to."""

    def __init__(self, *uris: str, lists: bool = True) -> None:
        self.uris = list(uris)
        self.lists = lists
        self.failures = 0
        self.streams: list[Exchange] = []

    async def script(self, exchange: Exchange) -> None:
        if exchange.body["method"] == "resources/list":
            await self._list(exchange)
            return
        wanted = Filter.parse(exchange.body["params"]["notifications"])
        honored = wanted if self.lists else Filter(resource_subscriptions=wanted.resource_subscriptions)
        self.streams.append(exchange)
        await exchange.acknowledge(**honored.to_wire())
        if honored:
            await exchange.until_closed()
        await exchange.say(result(exchange.id))

    async def _list(self, exchange: Exchange) -> None:
        if self.failures:
            self.failures -= 1
            await exchange.reply(200, encode(error(exchange.id, -32603, "the disk is away")))
        else:
            listed = {"resources": [{"uri": uri} for uri in self.uris]}
            await exchange.reply(200, encode(result(exchange.id, **listed)))

    async def change(self, *uris: str) -> None:
        self.uris = list(uris)
        stream = self.streams[-1]
        await stream.say(tagged("notifications/resources/list_changed", stream.id))


def joined(*uris: str) -> Filter:
    return Filter(True, True, True, uris)


async def test_every_listed_resource_is_watched_and_new_ones_too() -> None:
    server = Listing("x:/a", "x:/b")
    async with staying(server.script, LISTS, everything=True) as (record, _, http):
        await record.until(lambda: record.shown[-2:] == [joined("x:/a", "x:/b"), "resync"])
        await server.change("x:/b", "x:/c")
        await record.until(lambda: record.shown[-2:] == [joined("x:/b", "x:/c"), "resync"])
        assert record.shown.count(Ending.CLOSED) == 2
        assert [shown for shown in record.shown if isinstance(shown, Filter)] == [
            LISTS,
            joined("x:/a", "x:/b"),
            joined("x:/b", "x:/c"),
        ]
        await http.until(closed=2)
        await server.change("x:/c", "x:/b")  # in another order only
        await record.until(lambda: not isinstance(record.shown[-1], str))
        assert len(server.streams) == 3


async def test_where_only_resources_are_honored_they_are_found() -> None:
    server = Listing("x:/a", lists=False)
    async with staying(server.script, LISTS, everything=True) as (record, _, _):
        only = Filter(resource_subscriptions=("x:/a",))
        await record.until(lambda: record.shown[-2:] == [only, "resync"])


async def test_where_nothing_is_honored_at_all_that_is_the_end() -> None:
    server = Listing(lists=False)
    async with staying(server.script, LISTS, everything=True) as (_, task, _):
        ending, failed = await task
        assert ending is Ending.NOTHING_HONORED
        assert isinstance(failed, NothingHonored)


async def test_a_list_that_cannot_be_had_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stay, "FIRST_RETRY", 0.01)
    server = Listing("x:/a")
    server.failures = 3
    async with staying(server.script, LISTS, everything=True) as (record, _, _):
        await record.until(lambda: joined("x:/a") in record.shown)
        assert len(record.warnings) == 3
        assert "the disk is away" in record.warnings[0]
