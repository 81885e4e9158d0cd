"""`watch()` stays: one subscription after the other, so that who refetches on what it says is never stale.

::

    connecting ──ack──▶ live ──end──▶ backing_off ──delay──▶ connecting
         └──end───────────────────────────▲│
    connecting, live ──an end that is final──▶ refused ──update()──▶ connecting

What to do after which end, and when, is decided in harken.core.retry. One task does all the rest. What has
not been read stays pending in the stream that brought it, until a later stream's Resync stands for it.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.abc
import anyio.lowlevel

from harken.client.connection import Connection
from harken.client.listen import Target, connect
from harken.client.status import WatchState, WatchStatus
from harken.client.subscription import Subscription
from harken.core.demux import Ending
from harken.core.events import Event
from harken.core.filters import Filter
from harken.core.liveness import Liveness
from harken.core.retry import End, Retry, RetryPolicy
from harken.core.sse import DEFAULT_MAX_EVENT_BYTES
from harken.core.wire import RequestId
from harken.errors import ConnectionLost, HarkenError, NothingHonored

if TYPE_CHECKING:
    import httpx2

    from harken.client.http import Token

__all__ = ["Resync", "Watch", "watch"]

logger: logging.Logger = logging.getLogger("harken.client")

# Ends that may be the fault of the way to the server: another stream on it may still be well, or may not.
_ON_THE_WAY = frozenset({Ending.LOST, Ending.TIMEOUT})


@dataclass(frozen=True, slots=True)
class Resync:
    """Everything may have changed: fetch again all that is watched (decision D12).

    It comes after each acknowledgment and before any event that follows it. `honored` is what the server
    tells of from now on, `unsupported` what it does not (clause R11).
    """

    honored: Filter
    unsupported: Filter
    subscription_id: RequestId = field(compare=False)


class Watch:
    """An async context manager, and an async iterator of `Resync` and events.

    Iteration raises what made the watch give up: Refused, NeverAcknowledged, NothingHonored, ProtocolError,
    or ConnectionLost for a connection that is not the watch's own; and whatever else the source of tokens or
    `on_state` raise. It ends when the watch is left.
    """

    def __init__(
        self,
        reach: Callable[[], AbstractAsyncContextManager[Connection]],
        wanted: Filter,
        *,
        can_come_back: Callable[[], bool] = lambda: True,
        renewable: bool = False,
        retry: RetryPolicy | None = None,
        dead_after: float | None = None,
        on_state: Callable[[WatchStatus], object] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        """`reach` makes a connection, as often as needed and while `can_come_back`; the rest is `watch()`'s.

        `renewable` is whether each attempt brings a token of its own. `random` gives floats in [0, 1).
        """
        self._reach = reach
        self._can_come_back = can_come_back
        self._wanted = _checked(wanted)
        self._dead_after = dead_after
        self._on_state = on_state
        self._retry = Retry(retry or RetryPolicy(), random=random, now=time.monotonic(), renewable=renewable)
        # Which of the wanted filters, counted, is the latest, was last asked for, and was last acknowledged.
        self._version = self._asked = 1
        self._acknowledged = 0
        self._status = WatchStatus(WatchState.CONNECTING)
        self._entered: Counter[WatchState] = Counter()
        self._end: End
        self._resume_at = 0.0
        self._failure: Exception | None = None
        self._crashed = False
        self._connection: Connection | None = None
        self._source: Subscription | None = None
        self._resync: Resync | None = None
        self._changed = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("a watch can be entered once: call watch() again")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        try:
            # The body's own exception goes its own way, so that no group wraps it.
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._set(WatchState.CLOSED, Ending.CLOSED)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Resync | Event:
        self._check_entered()
        await anyio.lowlevel.checkpoint()
        while True:
            item = self.take()
            if item is not None:
                return item
            if self.state is WatchState.CLOSED:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()

    def take(self) -> Resync | Event | None:
        """What iteration would bring next, without waiting; None where there is nothing yet."""
        resync, self._resync = self._resync, None  # D12: it comes first
        if resync is not None:
            return resync
        return None if self._source is None else self._source.take()

    @property
    def status(self) -> WatchStatus:
        """What the watch is doing, and why."""
        return self._status

    @property
    def state(self) -> WatchState:
        """What the watch is doing."""
        return self._status.state

    @property
    def wanted(self) -> Filter:
        """What is watched, or will be as soon as the server acknowledges it."""
        return self._wanted

    async def wait_for(self, state: WatchState | str) -> None:
        """Until the watch is, or for a moment was, in this state.

        Raises what the watch has given up for, and ConnectionLost where it has been left.
        """
        self._check_entered()
        await anyio.lowlevel.checkpoint()
        state = WatchState(state)
        before = self._entered[state]
        while self.state is not state and self._entered[state] == before:
            self._check_alive()
            await self._changed.wait()

    async def update(self, wanted: Filter) -> None:
        """Watch `wanted` from now on: returns once the server has acknowledged it, or a later one.

        The new stream is acknowledged before the old one is closed, and nothing is missed (field case F32).
        A server that can't be reached is waited for, as ever; after `refused`, this makes another attempt.
        Raises ValueError for an empty filter, and what `wait_for()` raises.
        """
        self._check_entered()
        if wanted != self._wanted or self._failure is not None:
            self._wanted = _checked(wanted)
            self._version += 1
            if not self._crashed:
                self._failure = None
            self._wake()
        version = self._version
        while self._acknowledged < version:
            self._check_alive()
            await self._changed.wait()

    async def request(
        self, method: str, params: Mapping[str, object] | None = None, *, timeout: float | None = 30.0
    ) -> dict[str, object]:
        """The result of another request on the watch's own connection: see `Connection.request()`.

        Raises ConnectionLost also where there is no connection at this moment.
        """
        if self._connection is None:
            raise ConnectionLost(f"there is no connection to the server: the watch is {self.state}")
        return await self._connection.request(method, params, timeout=timeout)

    async def run(self, handle: Callable[[Resync | Event], Awaitable[object] | object]) -> None:
        """Enter, and call `handle`, a function or an async one, with each Resync and event, one at a time.

        What comes meanwhile collapses. Returns never; raises what iteration and `handle` raise.
        """
        async with self:
            async for change in self:
                outcome = handle(change)
                if inspect.isawaitable(outcome):
                    await outcome

    def _check_entered(self) -> None:
        if self._tasks is None:
            raise RuntimeError("the watch is not open yet: use it inside 'async with'")

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.state is WatchState.CLOSED:
            raise ConnectionLost("the watch has been left")

    async def _run(self) -> None:
        try:
            while True:
                await self._visit()
                await self._pause()
        except Exception as error:  # noqa: BLE001  # raised where the user is: in the iteration
            self._failure = error
            self._crashed = True
            self._status = WatchStatus(WatchState.REFUSED, error=error)  # `on_state` may be what has raised
            self._wake()

    async def _visit(self) -> None:
        """One connection, from its beginning until it can carry no more."""
        try:
            async with self._reach() as self._connection:
                await self._stay(self._connection)
        except ConnectionLost as error:
            self._ended(End(Ending.LOST, error))
        finally:
            self._connection = None

    async def _stay(self, connection: Connection) -> None:
        """Stream after stream on one connection."""
        current = AsyncExitStack()
        try:
            while True:
                async with AsyncExitStack() as opening:
                    opened = await self._open(connection, opening)
                    if isinstance(opened, Subscription):
                        await current.aclose()  # F32: not before the new one is acknowledged
                        current = opening.pop_all()
                end = await self._follow(opened) if isinstance(opened, Subscription) else opened
                if end is None:
                    continue
                self._ended(end)  # told at once: what is left to close may take its time
                on_the_way = end.ending in _ON_THE_WAY
                stays = on_the_way and self._source is not None and self._source.ending is None
                if not stays:
                    await current.aclose()  # the place that it takes may be the one that is missing
                if not connection.usable or (connection.shared and on_the_way and not stays):
                    return
                await self._pause()
        finally:
            await current.aclose()

    async def _open(self, connection: Connection, opening: AsyncExitStack) -> Subscription | End:
        """One attempt (clause R17: a new request each time, with a new id and a new token)."""
        self._asked = self._version
        try:
            stream = await opening.enter_async_context(
                connection.try_listen(self._wanted, on_change=self._wake)
            )
        except (ConnectionLost, OSError) as error:  # also of the source of tokens
            return End(Ending.LOST, error)
        if stream.acknowledged:
            return stream
        assert stream.ending is not None
        return End(stream.ending, stream.error)

    async def _follow(self, stream: Subscription) -> End | None:
        """Until the stream has ended: how. None where another filter is wanted before that."""
        began = time.monotonic()
        self._source = stream
        self._resync = Resync(stream.honored, stream.unsupported, stream.subscription_id)  # D12
        if not stream.honored:  # D10: also where the server holds such a stream open
            return End(Ending.NOTHING_HONORED, NothingHonored("the server honours nothing of it"), 0.0)
        self._acknowledged = self._asked
        self._set(WatchState.LIVE)
        liveness = Liveness(self._dead_after, began)
        while stream.ending is None:
            if self._version != self._asked:
                return None
            liveness.heard(stream.last_heard, kept_alive=stream.last_keep_alive is not None)
            left = liveness.left(time.monotonic())
            if left <= 0:
                silent = ConnectionLost(f"the server was not heard for {liveness.limit:g} s")
                stream.end(Ending.LOST, silent)  # D13
                break
            changed = self._changed
            with anyio.move_on_after(left):
                await changed.wait()
        assert stream.ending is not None
        return End(stream.ending, stream.error, time.monotonic() - began)

    def _ended(self, end: End) -> None:
        """Decides what to do after this end, and says so."""
        delay = self._retry.after(end, time.monotonic()) if self._can_come_back() else None
        self._end = end
        self._resume_at = anyio.current_time() + (delay or 0.0)
        if delay is not None:
            self._log(end, f"listening again in {delay:.1f} s")
            self._set(WatchState.BACKING_OFF, end.ending, delay, end.error)
        elif self._version == self._asked:
            self._log(end, "there is no other attempt")
            self._failure = end.error or HarkenError(f"the stream has ended: {end.ending}")
            self._set(WatchState.REFUSED, end.ending, None, self._failure)

    async def _pause(self) -> None:
        """Until the next attempt is due; after a final end, until another filter is wanted."""
        if self.state is WatchState.REFUSED:
            while self._version == self._asked:
                await self._changed.wait()
        else:
            await anyio.sleep_until(self._resume_at)
        self._set(WatchState.CONNECTING, self._end.ending, None, self._end.error)

    def _set(
        self,
        state: WatchState,
        reason: Ending | None = None,
        delay: float | None = None,
        error: Exception | None = None,
    ) -> None:
        before, self._status = self._status, WatchStatus(state, reason, delay, error)
        self._entered[state] += 1
        self._wake()
        if self._on_state is not None and self._status != before:
            self._on_state(self._status)

    def _log(self, end: End, what_next: str) -> None:
        """A warning, unless it is all in order or the user is told by `on_state`."""
        told = end.ending is Ending.COMPLETED or self._on_state is not None
        why = f"{end.ending}: {end.error}" if end.error is not None else end.ending
        logger.log(logging.INFO if told else logging.WARNING, "the stream ended (%s), %s", why, what_next)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def watch(
    target: Target | Connection,
    wanted: Filter | None = None,
    *,
    tools_list_changed: bool = False,
    prompts_list_changed: bool = False,
    resources_list_changed: bool = False,
    resource_subscriptions: Collection[str] = (),
    on_state: Callable[[WatchStatus], object] | None = None,
    dead_after: float | None = None,
    retry: RetryPolicy | None = None,
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    http_client: httpx2.AsyncClient | None = None,
    client_info: Mapping[str, object] | None = None,
    ack_timeout: float | None = 30.0,
    max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
    on_keep_alive: Callable[[], object] | None = None,
    stderr: Callable[[str], object] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Watch:
    """A watch on `wanted`, or on what the next four arguments name, to be entered with `async with`.

    - `target`: a URL, a command, the path of a Unix socket, or an open connection, which stays yours. A
      server that the watch has started is started again when it dies (clause T4).
    - `on_state`: called with each change of the state.
    - `dead_after`: after so many seconds of silence a stream counts as dead. Without it, once the server has
      sent a keep-alive: after 60 s, or three times its longest silence so far (decision D13).
    - `retry`: how to come back; the default makes 10 attempts within a minute at most.

    The rest is as for `connect()`. A `token` that is a callable is asked for each attempt; ConnectionLost or
    OSError raised by it count as a loss, and the watch comes back; anything else ends it.

    Raises ValueError for a target, a filter or a combination that makes no sense.
    """
    if wanted is None:
        uris = tuple(resource_subscriptions)
        wanted = Filter(tools_list_changed, prompts_list_changed, resources_list_changed, uris)
    if isinstance(target, Connection):
        given = target
        return Watch(
            lambda: nullcontext(given),
            wanted,
            can_come_back=lambda: given.usable,
            renewable=given.renewable,
            retry=retry,
            dead_after=dead_after,
            on_state=on_state,
        )
    if isinstance(target, anyio.abc.ByteStream):
        raise ValueError("a byte stream can't be opened again: connect() it, and watch the connection")

    def reach() -> Connection:
        return connect(
            target,
            token=token,
            headers=headers,
            http_client=http_client,
            client_info=client_info,
            ack_timeout=ack_timeout,
            max_event_bytes=max_event_bytes,
            on_keep_alive=on_keep_alive,
            stderr=stderr,
            env=env,
            cwd=cwd,
        )

    first = reach()  # never entered: what makes no sense is told here, not by a task
    return Watch(
        reach,
        wanted,
        renewable=first.renewable,
        retry=retry,
        dead_after=dead_after,
        on_state=on_state,
    )


def _checked(wanted: Filter) -> Filter:
    if not wanted:
        raise ValueError("say what to watch: at least one list, or one resource")
    return wanted
