"""What both transports share: ids, requests, and opening and leaving subscriptions.

A transport adds its verbs: `_connect`, `_disconnect`, `_call`, `_notify`, and for subscriptions `_start` and
`_stop`.
"""

from __future__ import annotations

import abc
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import ClassVar, Self

import anyio
import anyio.abc

from harken.client.subscription import Subscription
from harken.core.calls import Error, Message, Result, encode_notification, encode_request, request_meta
from harken.core.demux import Demux, Ending, Ignored, State, Stream
from harken.core.filters import Filter
from harken.core.sse import DEFAULT_MAX_EVENT_BYTES
from harken.core.wire import DISCOVER, LISTEN
from harken.errors import ConnectionLost, ListenTimeout, ProtocolError
from harken.version import __version__

__all__ = ["CLIENT_INFO", "Connection", "Options", "Outgoing"]

logger: logging.Logger = logging.getLogger("harken.client")

# T6, R17: unique over all methods and never used again, on whatever connection.
_ids = count(1)


CLIENT_INFO: Mapping[str, object] = {"name": "harken", "version": __version__}
"""Who the client says it is, where its user says nothing else."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is the same for both transports; times in seconds."""

    client_info: Mapping[str, object] = field(default_factory=lambda: CLIENT_INFO)
    ack_timeout: float | None = 30.0
    max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES
    on_keep_alive: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request that is about to leave."""

    id: int
    method: str
    params: Mapping[str, object]

    @property
    def body(self) -> bytes:
        """The request as JSON."""
        return encode_request(self.id, self.method, self.params)


class Connection(abc.ABC):
    """One way to a server, for any number of requests and subscriptions at once.

    An async context manager; leaving it ends everything on it, and leaves no task, socket or child behind.
    `ignored` counts what the server sent and nobody waited for, by reason.
    """

    shared: ClassVar[bool]
    """Whether all subscriptions share one channel, whose fault it may be when one of them stays silent."""

    renewable = False
    """Whether each request brings a token of its own, so that one that is refused may be granted later."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._subscriptions: dict[object, Subscription] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._closed = False
        self.ignored: Counter[Ignored] = Counter()

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("a connection can be entered once: call connect() again")
        await self._connect()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._launch(self._tasks)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        try:
            await self.aclose()
        finally:
            self._tasks.cancel_scope.cancel()
            # The body's own exception goes its own way, so that no group wraps it.
            await self._tasks.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Leave every subscription and close the connection; it cannot be used again."""
        self._closed = True
        for subscription in list(self._subscriptions.values()):
            subscription.end(Ending.CLOSED, ConnectionLost("the connection was closed from this side"))
        if self._tasks is None:
            return  # it was never entered
        with anyio.CancelScope(shield=True):
            await self._disconnect()

    async def request(
        self, method: str, params: Mapping[str, object] | None = None, *, timeout: float | None = 30.0
    ) -> dict[str, object]:
        """The result of any request; `_meta` is added to `params`.

        Raises RPCError for the server's error, ConnectionLost, ProtocolError for an answer that is none, and
        TimeoutError after `timeout` seconds (None waits for ever); the request is then cancelled.
        """
        request = self._prepare(method, params)
        answer: Result | Error | None = None
        with anyio.move_on_after(timeout):
            answer = await self._call(request)
        if answer is None:
            raise TimeoutError(f"no answer to {method} within {timeout} s")
        if isinstance(answer, Error):
            raise answer.error
        if not isinstance(answer.result, dict):
            raise ProtocolError(f"the result of {method} is no object")
        return answer.result

    async def discover(self, *, timeout: float | None = 30.0) -> dict[str, object]:
        """The result of `server/discover`: versions, capabilities, who the server is."""
        return await self.request(DISCOVER, timeout=timeout)

    async def notify(self, method: str, params: Mapping[str, object] | None = None) -> None:
        """Send a notification. One that fails is logged and never fatal (clause H12)."""
        self._check_open()
        await self._notify(method, encode_notification(method, params or {}))

    @property
    def usable(self) -> bool:
        """Whether it is open, as far as anybody knows."""
        return self._tasks is not None and not self._closed

    @asynccontextmanager
    async def listen(
        self,
        wanted: Filter | None = None,
        *,
        tools_list_changed: bool = False,
        prompts_list_changed: bool = False,
        resources_list_changed: bool = False,
        resource_subscriptions: Collection[str] = (),
        ack_timeout: float | None = None,
    ) -> AsyncIterator[Subscription]:
        """One subscription, to `wanted` or to what the other arguments name.

        Entering returns once the server has acknowledged. Raises Refused, ListenTimeout (after `ack_timeout`
        seconds, the connection's own where None), NeverAcknowledged, ConnectionLost or ProtocolError.
        Leaving cancels the subscription (clause R16).
        """
        if wanted is None:
            wanted = Filter(
                tools_list_changed,
                prompts_list_changed,
                resources_list_changed,
                tuple(resource_subscriptions),
            )
        async with self.try_listen(wanted, ack_timeout=ack_timeout) as subscription:
            if not subscription.acknowledged:
                raise subscription.error or ConnectionLost("the stream ended before any acknowledgment")
            yield subscription

    @asynccontextmanager
    async def try_listen(
        self,
        wanted: Filter,
        *,
        ack_timeout: float | None = None,
        on_change: Callable[[], object] | None = None,
    ) -> AsyncIterator[Subscription]:
        """As `listen()`, but a subscription that was not acknowledged is entered too, and says why.

        `on_change` is called whenever something has come for it, and when it has ended. Raises ConnectionLost
        where the connection has been closed, and what the token's source raises.
        """
        request = self._prepare(LISTEN, {"notifications": wanted.to_wire()})
        demux = self._demux()
        stream = demux.open(request.id, wanted)  # F47: known before the request leaves
        subscription = Subscription(stream, self._options.on_keep_alive, on_change)
        self._subscriptions[stream.id] = subscription
        try:
            await self._settle(subscription, stream, request, demux, ack_timeout)
            yield subscription
        finally:
            demux.end(stream, Ending.CLOSED)
            subscription.wake()
            with anyio.CancelScope(shield=True):
                await self._stop(subscription, stream)
            del self._subscriptions[stream.id]

    async def _settle(
        self,
        subscription: Subscription,
        stream: Stream,
        request: Outgoing,
        demux: Demux,
        ack_timeout: float | None,
    ) -> None:
        timeout = self._options.ack_timeout if ack_timeout is None else ack_timeout
        with anyio.move_on_after(timeout):  # R26: it runs to the ack, then stops
            await self._start(subscription, stream, request, demux)
            await subscription.wait_settled()
        if stream.state is State.WAITING:
            demux.end(stream, Ending.TIMEOUT, ListenTimeout(f"no acknowledgment within {timeout} s"))
        if subscription.acknowledged and (missing := subscription.unsupported):
            logger.info("the server does not honour %s", missing.to_wire())  # R11

    def _prepare(self, method: str, params: Mapping[str, object] | None) -> Outgoing:
        self._check_open()
        params = dict(params or {})
        meta = params.get("_meta")
        params["_meta"] = {
            **request_meta(self._options.client_info),
            **(meta if isinstance(meta, dict) else {}),
        }
        return Outgoing(next(_ids), method, params)

    def _check_open(self) -> None:
        if self._tasks is None:
            raise RuntimeError("the connection is not open yet: use it inside 'async with'")
        if self._closed:
            raise ConnectionLost("the connection has been closed")

    def _note(self, outcome: Ignored, message: Message) -> None:
        """Tell of the first of each kind that was ignored; the rest are counted (clause R22)."""
        if self.ignored[outcome] == 1 and outcome is not Ignored.LATE:
            logger.warning("ignored what the server sent (%s): %.200r", outcome, message)

    @abc.abstractmethod
    async def _connect(self) -> None:
        """Make the connection, or raise ConnectionLost."""

    @abc.abstractmethod
    def _launch(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the tasks that live as long as the connection."""

    @abc.abstractmethod
    async def _disconnect(self) -> None:
        """Close what `_connect` made, within a bounded time; may be called again."""

    @abc.abstractmethod
    def _demux(self) -> Demux:
        """The demultiplexer of the channel on which the next subscription's messages will come."""

    @abc.abstractmethod
    async def _call(self, request: Outgoing) -> Result | Error:
        """Send a request and wait for its answer; when cancelled, cancel the request (clause R16)."""

    @abc.abstractmethod
    async def _notify(self, method: str, body: bytes) -> None:
        """Send a notification."""

    @abc.abstractmethod
    async def _start(
        self, subscription: Subscription, stream: Stream, request: Outgoing, demux: Demux
    ) -> None:
        """Send the listen request, and from then on pass on what comes for it."""

    @abc.abstractmethod
    async def _stop(self, subscription: Subscription, stream: Stream) -> None:
        """Leave the subscription: its stream has ended on this side (clause R16)."""
