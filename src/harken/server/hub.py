"""The hub: ties publishers, broker and streams together inside one process.

The main path, from a request to a notification: a transport (`server/http.py`, `server/stdio.py`) accepts a
listen; `core/filters` narrows what is asked for; the stream joins the index and then acknowledges; a publish
goes through the broker; `core/index` marks the pending set of each stream that cares; one flush at the end of
the event loop's turn writes `core/wire` bytes.

A publisher never waits for a reader: a stream whose transport would wait keeps collapsing into its pending
set.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harken.brokers.base import Broker
from harken.brokers.memory import MemoryBroker
from harken.core.events import ALL_KINDS, Event, Kind
from harken.core.filters import Filter
from harken.core.index import Index, Report
from harken.core.subscription import Ending, EndSignal
from harken.core.wire import DISCOVER
from harken.errors import HubClosed, RPCError
from harken.server import drain
from harken.server.cuts import Cuts
from harken.server.discover import discover_result, families
from harken.server.intake import Intake, checked
from harken.server.limits import Limits, busy, check
from harken.server.methods import Handler, Methods, Request
from harken.server.options import (
    check_choice,
    check_flag,
    check_handlers,
    check_kinds,
    check_seconds,
    check_text,
)
from harken.server.stream import Stream
from harken.server.throttle import Throttle
from harken.server.wheel import Wheel
from harken.version import __version__

if TYPE_CHECKING:
    from harken.server.asgi import ASGIApp

__all__ = ["Hub"]

logger: logging.Logger = logging.getLogger("harken")

_QUIET = 0.5  # the share of the keep-alive interval after which a stream counts as quiet
_SLICE = 0.01  # seconds that one flush, or one publisher in a hot loop, keeps the event loop to itself


class Hub:
    """Publishes events to every `subscriptions/listen` stream that asked for them.

    A hub runs on one asyncio event loop. It starts by itself at the first use, by the lifespan of the app
    from `asgi()`, or as an async context manager.

    :param name: and `version`: what `serverInfo` says.
    :param supports: the kinds that something here publishes; the rest is not honoured (clause R3) and not
        advertised (clause R20). None: all four, or around an app those of which its `server/discover` shows
        the family.
    :param methods: handlers for further requests, by method.
    :param capabilities: further capabilities for `server/discover`.
    :param instructions: the text of that name in `server/discover`.
    :param broker: what carries events between hubs; by default this process alone.
    :param keep_alive: seconds between the comments on a quiet HTTP stream (clause H11).
    :param max_age: seconds after which a stream ends gracefully; jittered down by up to a tenth. None: never.
    :param min_interval: seconds between two notifications of one item; 0 for none. The last is never lost.
    :param write_timeout: seconds that a reader may take nothing before it is left (decision D13); behind
        middleware, where nobody sees what it takes, that one write may last.
    :param drain_window: seconds over which a shutdown spreads the ends of the streams; None: one second for
        each thousand, at least 1 and at most 10.
    :param limits: when to refuse (decision D9).
    :param subresources: whether a stream hears of what lies below the URIs it named (decision D8).
    :param report: which URI such a notification names.
    :param hold_empty: whether a stream of which nothing is honoured stays open (decision D2).
    :param subscriptions: the off-switch (decision D3): False takes the method and every capability bit away.
    :param end_signal: how the server's end is told on stdio (decision D1).
    """

    def __init__(
        self,
        *,
        name: str = "harken",
        version: str = __version__,
        supports: Collection[Kind | str] | None = None,
        methods: Mapping[str, Handler] | None = None,
        capabilities: Mapping[str, object] | None = None,
        instructions: str | None = None,
        broker: Broker | None = None,
        keep_alive: float = 15.0,
        max_age: float | None = None,
        min_interval: float = 0.0,
        write_timeout: float = 30.0,
        drain_window: float | None = None,
        limits: Limits | None = None,
        subresources: bool = False,
        report: Report = "subscribed",
        hold_empty: bool = False,
        subscriptions: bool = True,
        end_signal: EndSignal = "result",
    ) -> None:
        check_text("name", name)
        check_text("version", version)
        check_seconds("keep_alive", keep_alive)
        check_seconds("write_timeout", write_timeout)
        check_seconds("max_age", max_age, none=True)
        check_seconds("min_interval", min_interval, zero=True)
        check_seconds("drain_window", drain_window, zero=True, none=True)
        check_flag("subresources", subresources)
        check_flag("hold_empty", hold_empty)
        check_flag("subscriptions", subscriptions)
        check_choice("report", report, ("subscribed", "child"))
        check_choice("end_signal", end_signal, ("result", "cancelled", "both"))
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be harken's Limits(…), not {limits!r}")
        self.server_info: dict[str, str] = {"name": name, "version": version}
        self.supports: frozenset[Kind] | None = check_kinds("supports", supports)
        self.instructions = instructions
        self.keep_alive = keep_alive
        self.max_age = max_age
        self.write_timeout = write_timeout
        self.drain_window = drain_window
        self.limits: Limits = limits or Limits()
        self.hold_empty = hold_empty
        self.subscriptions = subscriptions
        self.end_signal: EndSignal = end_signal
        self.streams: set[Stream] = set()
        """The streams that are open."""
        self.endings: Counter[Ending] = Counter()
        """How many streams ended, by why; refused listens count as `rejected`."""
        self.draining: bool = False
        self._extra_capabilities = dict(capabilities or {})
        self._broker: Broker = broker if broker is not None else MemoryBroker()
        self._index: Index[Stream] = Index(subresources=subresources, report=report)
        self._dirty: deque[Stream] = deque()
        self._flush_due: float | None = None
        self._deliver = Throttle(min_interval, self._mark) if min_interval else self._mark
        self._intake = Intake(self._accept)
        self.cuts: Cuts = Cuts()
        self._wheel: Wheel[Stream] = Wheel(self._due, grain=min(1.0, keep_alive / 10, write_timeout / 10))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = False
        self._closed = False
        self._starting = asyncio.Lock()
        self._drained: asyncio.Task[None] | None = None
        self._empty: asyncio.Event | None = None
        handlers = dict(methods or {})
        check_handlers(methods or {})
        handlers.setdefault(DISCOVER, self._discover)
        self.methods: Methods = Methods(handlers, self.server_info)

    # -- Publishing

    async def publish(self, *events: Event) -> None:
        """Tell every stream that asked for it of `events`. Returns once they are accepted.

        Never waits for a reader. All are accepted, or none. Raises TypeError, InvalidURI, and HubClosed after
        the close.
        """
        await self.start_lazily()
        self._accept(events)
        if self._flush_due is None:
            self._schedule_flush()  # also where nobody listens yet: who wants to must get a turn
        elif self._now() > self._flush_due:
            await asyncio.sleep(0)  # a publisher in a hot loop gives the others a turn

    def publish_from_thread(self, *events: Event, timeout: float = 5.0) -> None:
        """The same from any thread; returns once they are accepted.

        Before the hub starts they are kept, each once, and published at its start. Raises TimeoutError after
        `timeout` seconds (they may still go out later), TypeError, InvalidURI, HubClosed after the close, and
        HarkenError where too many wait for the start already.
        """
        self._intake.from_thread(checked(events), timeout)

    def _accept(self, events: Sequence[Event]) -> None:
        if self._closed:
            raise HubClosed("the hub has ended; it takes no more events")
        self._broker.publish(checked(events))

    def _mark(self, events: Sequence[Event]) -> None:
        dirty = self._dirty
        for event in events:
            self._index.mark(event, dirty)
        if dirty and self._flush_due is None:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        loop = asyncio.get_running_loop()
        self._flush_due = loop.time() + _SLICE
        loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what is pending; a long flush gives the loop back and goes on in its next turn."""
        self._flush_due = None
        dirty, now = self._dirty, self._now()
        try:
            for count in range(len(dirty)):
                dirty.popleft().flush(now)
                if not count & 63 and self._now() > now + _SLICE:
                    break
        finally:  # whatever one stream does, the others are flushed
            if dirty and self._flush_due is None:
                self._schedule_flush()

    # -- Streams

    def kinds(self, within: frozenset[Kind] = ALL_KINDS) -> frozenset[Kind]:
        """The kinds that are honoured, where the app around which we stand has those `within`."""
        if not self.subscriptions:
            return frozenset()
        return within if self.supports is None else self.supports

    def admit(self, requested: Filter, on_channel: int = 0) -> None:
        """Raises RPCError where a new stream must be refused now (decision D9)."""
        try:
            if self.draining or self._closed:
                raise busy("shutting_down", "the server is shutting down; listen again elsewhere", 1)
            check(self.limits, requested, len(self.streams), on_channel)
        except RPCError as error:
            self.endings[Ending.REJECTED] += 1
            logger.warning("refused a listen: %s", error.message)
            raise

    def join(self, stream: Stream) -> None:
        """Let events reach `stream` from now on; its first flush acknowledges.

        The acknowledgment is a barrier: the stream stands in the index before it can leave.
        """
        now = self._now()
        stream.last_write = now
        self.streams.add(stream)
        if not stream.honored and not self.hold_empty:
            stream.end(Ending.NOTHING_HONORED)  # D2
        else:
            self._index.add(stream)
            if self.max_age is not None:
                stream.expires = now + self.max_age * random.uniform(0.9, 1.0)
            # Streams that opened together don't beat together.
            self._wheel.schedule(
                stream, min(stream.expires, now + self.keep_alive * random.uniform(_QUIET, 1.0))
            )
        if len(self.streams) == 1:
            drain.look_again()
        logger.debug("stream %r opened: %s", stream.id, stream.honored)

    def end(self, stream: Stream, ending: Ending) -> None:
        """End `stream` gracefully: what is pending, then the result (clause R14)."""
        stream.end(ending)
        self._index.remove(stream)
        stream.flush(self._now())

    def blocked(self, stream: Stream) -> None:
        """The transport of `stream` takes no bytes: from now on `write_timeout` counts."""
        stream.blocked_since = now = self._now()
        self._wheel.hasten(stream, now + self.write_timeout)

    def leave(self, stream: Stream, ending: Ending) -> None:
        """`stream` is over; free all that it held (clause R15). Harmless when repeated."""
        stream.cancel(ending)
        self._index.remove(stream)
        self._wheel.cancel(stream)
        if stream in self.streams:
            self.streams.discard(stream)
            self.endings[stream.ending or ending] += 1
            logger.debug("stream %r ended: %s", stream.id, stream.ending)
            if self._empty is not None and not self.streams:
                self._empty.set()

    def _due(self, stream: Stream, now: float) -> None:
        """A deadline of `stream` has come: a stuck reader, its age, or a keep-alive."""
        stuck_at = float("inf") if stream.blocked_since is None else stream.blocked_since + self.write_timeout
        if now >= stuck_at:
            if not stream.progressed():
                self._leave_stuck(stream, Ending.STUCK_READER)
                return
            stream.blocked_since, stuck_at = now, now + self.write_timeout  # D13: slow is not stuck
        if now >= stream.expires:
            stream.expires = float("inf")
            self.end(stream, Ending.MAX_AGE)
        if stream not in self.streams:
            return
        next_beat = now + self.keep_alive
        if stream.blocked_since is None:
            if now >= stream.last_write + self.keep_alive * _QUIET:
                stream.beat(now)
            next_beat = stream.last_write + self.keep_alive
        self._wheel.schedule(stream, min(stuck_at, stream.expires, next_beat))

    # -- The hub's own life

    @property
    def running(self) -> bool:
        """Whether the hub has started and not closed."""
        return self._running

    async def start_lazily(self) -> None:
        """Start at the first use, where nobody did before; a closed hub stays closed."""
        if not self._closed and not (self._running and self._loop is asyncio.get_running_loop()):
            await self.start()

    def _leave_dead_loop(self) -> None:
        """Some test clients give each request an event loop of its own, and close it without a word."""
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(
                "this hub runs on another event loop; from here, publish with publish_from_thread()"
            )
        for stream in self.streams:
            self._index.remove(stream)
        self.streams.clear()
        self._dirty.clear()
        self._wheel.clear()
        if isinstance(self._deliver, Throttle):
            self._deliver.release()
        self._flush_due = None
        self._starting = asyncio.Lock()
        self._running = False

    async def start(self) -> None:
        """Start now instead of at the first use; after a close, start anew."""
        if self._running and self._loop is not asyncio.get_running_loop():
            self._leave_dead_loop()
        async with self._starting:
            if self._running:
                return
            self._closed = self.draining = False
            self._drained = self._empty = None
            self._loop = asyncio.get_running_loop()
            await self._broker.start(self._deliver)
            self._running = True
            drain.watch(self)
            self._intake.open(self._loop)

    async def drain(self) -> None:
        """End every stream gracefully and take no new ones (clause R14); returns when all have ended.

        What was published before goes out first. The ends are spread over the drain window; a reader that
        has not taken its end a second after that is left.
        """
        await asyncio.shield(self.begin_drain())

    def begin_drain(self) -> asyncio.Task[None]:
        """Start `drain()` without waiting for it; must be called on the hub's event loop."""
        if self._running and self._loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "this hub runs on another event loop: use asyncio.run_coroutine_threadsafe(hub.drain(), loop)"
            )
        if self._drained is None:
            self.draining = True
            self._drained = asyncio.get_running_loop().create_task(self._drain())
        return self._drained

    def hurry(self) -> None:
        """Cut a drain short: every stream ends now; a reader that has not taken it a second later is left."""
        if isinstance(self._deliver, Throttle):
            self._deliver.release()
        for stream in list(self.streams):
            self.end(stream, Ending.SHUTDOWN)
        asyncio.get_running_loop().call_later(drain.GRACE, self.abort)

    def abort(self) -> None:
        """Leave every stream at once, without an end; of a hub that drains, no more."""
        if self.draining:
            for stream in list(self.streams):
                self._leave_stuck(stream, Ending.SHUTDOWN)

    def _leave_stuck(self, stream: Stream, ending: Ending) -> None:
        self._index.remove(stream)
        stream.stuck(ending)

    async def aclose(self) -> None:
        """Drain, then close: nothing more is taken unless the hub is started anew. Harmless when repeated."""
        if self._running:
            await self.drain()
        if self._running:  # else somebody else who waited for the same drain has closed it
            self._closed = True
            self._running = False
            drain.forget(self)
            self._intake.close()
            self._wheel.clear()
            if isinstance(self._deliver, Throttle):
                self._deliver.release()  # nobody is left to tell, but its timer goes
            await self._broker.close()
        self._closed = True
        self._intake.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _drain(self) -> None:
        if isinstance(self._deliver, Throttle):
            self._deliver.release()
        self._empty = asyncio.Event()
        streams = list(self.streams)
        window = drain.window(len(streams)) if self.drain_window is None else self.drain_window
        begun = self._now()
        for position, stream in enumerate(streams):
            if await drain.is_set_by(self._empty, begun + window * position / len(streams)):
                return
            if stream in self.streams:
                self.end(stream, Ending.SHUTDOWN)
        if self.streams and not await drain.is_set_by(self._empty, begun + window + drain.GRACE):
            self.abort()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- The transports

    def asgi(
        self,
        app: ASGIApp | None = None,
        *,
        path: str | None = "/mcp",
        allowed_origins: Collection[str] | None = None,
        allowed_hosts: Collection[str] | None = None,
    ) -> Callable[..., Awaitable[None]]:
        """An ASGI app that serves Streamable HTTP, alone or around `app`.

        Around an app it takes `subscriptions/listen` and `server/discover` and hands everything else on.

        :param path: the MCP endpoint; None for every path.
        :param allowed_origins: what `Origin` may say (clause H8), such as `"https://chat.example"`, or `"*"`;
            by default the loopback origins.
        :param allowed_hosts: what `Host` may say, without the port; None for anything.
        """
        from harken.server.http import Endpoint

        return Endpoint(self, app, path=path, allowed_origins=allowed_origins, allowed_hosts=allowed_hosts)

    async def serve_stdio(self) -> None:
        """Serve this process's stdin and stdout until the input ends (clause T3).

        Meanwhile whatever else writes to stdout goes to stderr: the channel stays clean (clause T1).
        """
        from harken.server.stdio import serve_stdio

        await serve_stdio(self)

    def serve_unix(self, path: str | PathLike[str]) -> AbstractAsyncContextManager[None]:
        """Serve the same over a Unix socket at `path` as long as the context lasts (clause T7)."""
        from harken.server.stdio import serve_unix

        return serve_unix(self, path)

    def capabilities(self) -> dict[str, object]:
        """The capabilities without the bits of the kinds."""
        return {**families(self.methods.names), **self._extra_capabilities}

    async def _discover(self, request: Request) -> Mapping[str, object]:
        return discover_result(self.capabilities(), self.kinds(), self.instructions)
