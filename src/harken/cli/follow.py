"""What `harken listen` does: one stream, or with `--all` a stream that follows the list of resources.

When the list changes, it is fetched again, and the new stream is open before the old one closes. For a moment
both are open and each brings its own copy of an event. Which of two equal events are copies of one can't be
known, but how many each stream brought can: what the richer one brought is shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

import anyio
import anyio.abc

from harken.cli.output import Output, room
from harken.client.connection import Connection
from harken.client.subscription import Subscription
from harken.core.demux import Ending
from harken.core.events import Event, ResourcesListChanged
from harken.core.filters import Filter
from harken.core.uris import normalize
from harken.core.wire import METHOD_NOT_FOUND
from harken.errors import HarkenError, InvalidURI, ProtocolError, RPCError

__all__ = ["Follower", "Overlap", "joined", "list_resources"]

OVERLAP = 1.0  # seconds that the old stream stays once the new one is acknowledged
SETTLE = 0.2  # seconds that it stays beyond, while its copies of events may still be on their way
MAX_OVERLAP = 10.0  # seconds, all in all
FIRST_RETRY, LAST_RETRY = 1.0, 30.0  # seconds to wait where the new list or stream can't be had
MAX_PAGES = 10_000


class Overlap:
    """Which of the copies that several open streams bring are shown."""

    def __init__(self) -> None:
        self._shown: Counter[Event] = Counter()
        self._brought: dict[Subscription, Counter[Event]] = {}
        self.last_hidden: float = float("-inf")
        """When a copy was last not shown, by `time.monotonic()`."""

    def open(self, stream: Subscription) -> None:
        """From now on `stream` brings events, later than all that was shown."""
        self._brought[stream] = self._shown.copy()

    def close(self, stream: Subscription) -> None:
        """`stream` brings nothing more."""
        self._brought.pop(stream, None)
        if len(self._brought) <= 1:
            self._shown.clear()
            for brought in self._brought.values():
                brought.clear()

    def shows(self, stream: Subscription, event: Event) -> bool:
        """Whether the event that `stream` brings is to be shown, or is a copy of one that was."""
        if len(self._brought) == 1:
            return True
        brought = self._brought[stream]
        brought[event] += 1
        if brought[event] > self._shown[event]:
            self._shown[event] += 1
            return True
        self.last_hidden = time.monotonic()
        return False


class Follower:
    """Listens on an open connection until the stream ends, or `count` events were shown.

    With `everything`, the filter grows and shrinks with what `resources/list` names.
    """

    def __init__(
        self, connection: Connection, wanted: Filter, output: Output, *, everything: bool, count: int | None
    ) -> None:
        self._connection = connection
        self._wanted = wanted
        self._output = output
        self._everything = everything
        self._left = count
        self._overlap = Overlap()
        self._scopes: dict[Subscription, anyio.CancelScope] = {}
        self._current: Subscription | None = None
        self._list_changed = anyio.Event()
        self._tasks: anyio.abc.TaskGroup
        self._ended: tuple[Ending, HarkenError | None] = (Ending.CLOSED, None)

    async def run(self) -> tuple[Ending, HarkenError | None]:
        """How the stream ended, with its error where there is one.

        Raises what `Connection.listen()` and `Connection.request()` raise at the beginning.
        """
        listed = await list_resources(self._connection) if self._everything else ()
        error: HarkenError | None = None
        async with anyio.create_task_group() as self._tasks:
            try:
                await self._open(listed)
            except HarkenError as failed:
                error = failed  # carried out of the group, which would wrap it
            else:
                if self._everything:
                    self._tasks.start_soon(self._keep_up, listed)
        if error is not None:
            raise error
        return self._ended

    async def _open(self, listed: Iterable[str]) -> None:
        """Opens the stream for what is listed; those before it are closed, the last of them after a while."""
        before = list(self._scopes)
        wanted = joined(self._wanted, listed)
        await self._tasks.start(self._listen, wanted)
        for stream in before[:-1]:
            self._close(stream)
        if before:
            self._tasks.start_soon(self._let_go, before[-1])

    async def _listen(self, wanted: Filter, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.CancelScope() as scope:
            async with self._connection.listen(wanted) as stream:
                self._overlap.open(stream)
                self._scopes[stream] = scope
                self._current = stream
                self._output.ack(stream.honored, stream.unsupported, stream.subscription_id)
                task_status.started()
                await self._show(stream)
                if stream is self._current:
                    assert stream.ending is not None
                    self._finish(stream.ending, stream.error)

    async def _show(self, stream: Subscription) -> None:
        async for event in stream:
            if isinstance(event, ResourcesListChanged):
                self._list_changed.set()
            if self._overlap.shows(stream, event):
                self._output.event(event)
                if self._left is not None:
                    self._left -= 1
                    if self._left == 0:
                        self._finish(Ending.CLOSED)
                        return
                await room()  # what comes meanwhile collapses inside the subscription

    def _finish(self, ending: Ending, error: HarkenError | None = None) -> None:
        self._current = None
        self._ended = ending, error
        self._tasks.cancel_scope.cancel()

    def _close(self, stream: Subscription) -> None:
        self._overlap.close(stream)
        if (scope := self._scopes.pop(stream, None)) is not None:
            scope.cancel()

    async def _let_go(self, stream: Subscription) -> None:
        """Closes a stream that another one has followed, once it has brought what was on its way."""
        now = time.monotonic()
        earliest, latest = now + OVERLAP, now + MAX_OVERLAP
        while True:
            settled = max(earliest, self._overlap.last_hidden + SETTLE)
            wait = min(settled, latest) - time.monotonic()
            if wait <= 0:
                break
            await anyio.sleep(wait)
        self._close(stream)

    async def _keep_up(self, listed: Iterable[str]) -> None:
        """Follows the list; the first look is for what changed between the first list and the ack."""
        known = frozenset(listed)
        while True:
            known = await self._catch_up(known)
            await self._list_changed.wait()

    async def _catch_up(self, known: frozenset[str]) -> frozenset[str]:
        delay = FIRST_RETRY
        while True:
            self._list_changed = anyio.Event()
            try:
                listed = await list_resources(self._connection)
                if frozenset(listed) != known:
                    await self._open(listed)
                return frozenset(listed)
            except (HarkenError, TimeoutError) as error:
                self._output.warning(f"the list of resources could not be followed ({error}); trying again")
                await anyio.sleep(delay)
                delay = min(delay * 2, LAST_RETRY)


class _Asked(Protocol):
    async def request(self, method: str, params: Mapping[str, object]) -> dict[str, object]: ...


async def list_resources(connection: _Asked) -> tuple[str, ...]:
    """Every URI on all pages of `resources/list`; none where the server has no such method.

    `connection` is one, or a watch. Raises what its `request()` raises.
    """
    uris: dict[str, None] = {}
    params: dict[str, object] = {}
    for _ in range(MAX_PAGES):
        try:
            page = await connection.request("resources/list", params)
        except RPCError as error:
            if error.code == METHOD_NOT_FOUND:
                return ()
            raise
        resources = page.get("resources")
        if not isinstance(resources, list):
            raise ProtocolError("the result of resources/list has no list of resources")
        uris.update((uri, None) for resource in resources if (uri := _uri_of(resource)) is not None)
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return tuple(uris)
        params = {"cursor": cursor}
    raise ProtocolError(f"resources/list has not ended after {MAX_PAGES} pages")


def _uri_of(resource: object) -> str | None:
    """The resource's URI, None where it is none that could be listened to."""
    uri = resource.get("uri") if isinstance(resource, dict) else None
    try:
        return uri if isinstance(uri, str) and normalize(uri) else None
    except InvalidURI:
        return None


def joined(wanted: Filter, uris: Iterable[str]) -> Filter:
    """`wanted`, and these resources as well."""
    return Filter(
        wanted.tools_list_changed,
        wanted.prompts_list_changed,
        wanted.resources_list_changed,
        (*wanted.resource_subscriptions, *uris),
    )
