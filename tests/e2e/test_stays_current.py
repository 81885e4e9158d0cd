"""Watchers of a server that refuses, breaks off, dies mid-frame and recycles at random.

Meanwhile things change. At the end no watcher's view may be stale. The seed is printed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import anyio
import anyio.abc
import pytest

from harken import Filter, ResourceUpdated, Resync, RetryPolicy, Watch, watch
from tests.client.scripted import Exchange, encode, error, http_server, result, updated

pytestmark = pytest.mark.anyio

WATCHERS = 20
SECONDS = 5.0
FAST = RetryPolicy(first_delay=0.01, max_delay=0.1, attempts=1000)


@dataclass
class Place:
    """What changes, and who is told: every open stream that asked for it."""

    random: random.Random
    versions: dict[str, int] = field(default_factory=lambda: {f"x://{number}": 0 for number in range(5)})
    streams: dict[object, tuple[Exchange, frozenset[str], anyio.Lock]] = field(default_factory=dict)
    calm: bool = False

    async def script(self, exchange: Exchange) -> None:
        """One listen, with whatever fate."""
        fate = 1.0 if self.calm else self.random.random()
        if fate < 0.1:
            return  # closed without a word
        if fate < 0.2:
            await exchange.reply(503, encode(error(exchange.id)), {"Retry-After": "0"})
            return
        uris = exchange.body["params"]["notifications"]["resourceSubscriptions"]
        writing = anyio.Lock()
        async with writing:
            self.streams[exchange.id] = exchange, frozenset(uris), writing
            await exchange.acknowledge(resourceSubscriptions=uris)
        try:
            with anyio.move_on_after(None if fate > 0.9 else self.random.random() / 2):
                await exchange.until_closed()
                return
            async with writing:
                del self.streams[exchange.id]
                await self._end(exchange, fate)
        finally:
            self.streams.pop(exchange.id, None)

    async def _end(self, exchange: Exchange, fate: float) -> None:
        if fate < 0.5:
            await exchange.say(result(exchange.id))
        elif fate < 0.7:
            await exchange.raw(b'data: {"jsonrpc":"2.0","met')

    async def change(self) -> None:
        """One resource, and whoever asked is told."""
        uri = self.random.choice(list(self.versions))
        self.versions[uri] += 1
        for id, (exchange, uris, writing) in list(self.streams.items()):
            async with writing:
                if uri in uris and id in self.streams:
                    try:
                        await exchange.say(updated(id, uri))
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        pass  # its client has just left it

    def some(self) -> Filter:
        """A few of the resources."""
        uris = self.random.sample(list(self.versions), self.random.randint(1, len(self.versions)))
        return Filter(resource_subscriptions=tuple(uris))


@dataclass
class View:
    """What one watcher has fetched, when told to and not otherwise."""

    place: Place
    watch: Watch
    fetched: dict[str, int] = field(default_factory=dict)
    news: anyio.Event = field(default_factory=anyio.Event)

    @property
    def stale(self) -> set[str]:
        """The resources whose newest version is not there."""
        wanted = self.watch.wanted.resource_subscriptions
        return {uri for uri in wanted if self.fetched.get(uri) != self.place.versions[uri]}

    async def follow(self) -> None:
        """Fetch on each Resync and each event; sometimes slowly."""
        async for change in self.watch:
            if self.place.random.random() < 0.1:
                await anyio.sleep(0.05)
            if isinstance(change, Resync):
                uris = change.honored.resource_subscriptions
                self.fetched = {uri: self.place.versions[uri] for uri in uris}
            elif isinstance(change, ResourceUpdated) and change.uri in self.fetched:
                self.fetched[change.uri] = self.place.versions[change.uri]
            self.news.set()

    async def turn(self) -> None:
        """Want something else from time to time."""
        while not self.place.calm:
            await self.watch.update(self.place.some())
            await anyio.sleep(self.place.random.random() / 3)

    async def until_current(self) -> None:
        while self.stale:
            self.news = anyio.Event()
            await self.news.wait()


@pytest.mark.field("F11", "F32")
@pytest.mark.clause("D10", "D12", "R18")
async def test_at_the_end_no_view_is_stale() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    place = Place(random.Random(seed))
    async with http_server(place.script) as server, anyio.create_task_group() as following:
        views = [View(place, watch(server.url, place.some(), retry=FAST)) for _ in range(WATCHERS)]
        async with anyio.create_task_group() as turning:
            for view in views:
                following.start_soon(enter, view, turning)
            end = anyio.current_time() + SECONDS
            while anyio.current_time() < end:  # no cancellation: it could leave a change half told
                await place.change()
                await anyio.sleep(0.002)
            place.calm = True
        with anyio.move_on_after(15):
            for view in views:
                await view.until_current()
        assert [view.stale for view in views if view.stale] == []
        assert len(server.exchanges) > 3 * WATCHERS
        following.cancel_scope.cancel()


async def enter(view: View, turning: anyio.abc.TaskGroup) -> None:
    async with view.watch:
        turning.start_soon(view.turn)
        await view.follow()
