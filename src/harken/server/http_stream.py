"""One SSE stream over ASGI.

Two ways to send, with identical bytes:

- On a server's own `send` that is recognised (uvicorn's), the flush steps the send coroutine by hand: no task
  switch an event. A step that would wait goes on in a task of its own; it is never closed and tried again.
- On any other `send`, middleware's above all, only the task of the ASGI call itself sends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Generator
from types import MethodType
from typing import TYPE_CHECKING, Any

from harken.core.filters import Filter
from harken.core.subscription import SSE, Ending, State
from harken.core.wire import RequestId
from harken.server import drain
from harken.server.asgi import Message, Receive, Scope, Send
from harken.server.cuts import Connection, connection_of
from harken.server.stream import Stream

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["DirectStream", "TaskStream", "serve_stream"]

logger: logging.Logger = logging.getLogger("harken")

_KEEP_ALIVE = b":\n\n"  # H11
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]  # H2: and no hop-by-hop header
_CUT_TIMEOUT = 0.2  # seconds that a server has to notice that a connection was cut
_ASK_AGAIN = 1.0  # seconds between two questions to a `receive` that answers with what it must not
_STEPPABLE = frozenset({"uvicorn.protocols.http.httptools_impl", "uvicorn.protocols.http.h11_impl"})


async def serve_stream(
    hub: Hub,
    id: RequestId,
    honored: Filter,
    scope: Scope,
    receive: Receive,
    send: Send,
    headers: list[tuple[bytes, bytes]],
) -> None:
    """Serve one subscription until it ends; the task that calls is the stream's own."""
    stream: HTTPStream
    if _is_bare(send, receive):
        stream = DirectStream(hub, id, honored, send)
    else:
        stream = TaskStream(hub, id, honored, send, connection_of(scope))
        drain.follow(hub, send)
    hub.join(stream)
    try:
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *headers]})
        await stream.run(receive)
    except OSError:
        pass  # so a server says, by ASGI's rules, that the client has left
    finally:
        hub.leave(stream, Ending.CLIENT_GONE)


def _is_bare(send: Send, receive: Receive) -> bool:
    """Whether both are a server's own: a `send` that may be stepped, a `receive` that tells of the end."""
    return (
        isinstance(send, MethodType)
        and isinstance(receive, MethodType)
        and send.__self__ is receive.__self__
        and type(send.__self__).__module__ in _STEPPABLE
    )


async def _client_gone(receive: Receive) -> None:
    """Wait until the client has left, or the response is complete."""
    while True:
        if (await receive())["type"] == "http.disconnect":
            return
        # Some middleware gives the request's body again and again, at once: it must not own the event loop.
        await asyncio.sleep(_ASK_AGAIN)


class HTTPStream(Stream):
    """What both ways of sending share."""

    __slots__ = ("_send",)

    def __init__(self, hub: Hub, id: RequestId, honored: Filter, send: Send) -> None:
        super().__init__(hub, id, honored, SSE)
        self._send = send

    async def run(self, receive: Receive) -> None:
        """Send and wait until the subscription or the client is gone."""
        raise NotImplementedError

    def _body(self, data: bytes) -> Message:
        return {"type": "http.response.body", "body": data, "more_body": self.state is not State.ENDED}


class DirectStream(HTTPStream):
    """Sends by stepping the server's own send coroutine."""

    __slots__ = ("_rest", "_started", "_unsent")

    def __init__(self, hub: Hub, id: RequestId, honored: Filter, send: Send) -> None:
        super().__init__(hub, id, honored, send)
        self._rest: asyncio.Task[None] | None = None
        self._started = False
        self._unsent = 0  # bytes that waited for the reader when somebody last looked

    async def run(self, receive: Receive) -> None:
        """See `HTTPStream.run`."""
        self._started = True
        self.flush(self.last_write)
        try:
            await _client_gone(receive)
        finally:
            if self._rest is not None:
                self._rest.cancel()

    def flush(self, now: float) -> None:
        """See `Stream.flush`."""
        if self._rest is None and self._started and (data := self.take()):
            self.last_write: float = now
            self._write(self._body(data))

    def beat(self, now: float) -> None:
        """See `Stream.beat`."""
        if self._rest is None and self._started and self.state is not State.ENDED:
            self.last_write = now
            self._write(self._body(_KEEP_ALIVE))

    def progressed(self) -> bool:
        """See `Stream.progressed`."""
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        return self._unsent < before

    def abort(self) -> None:
        """See `Stream.abort`."""
        self._transport.abort()

    @property
    def _transport(self) -> asyncio.WriteTransport:
        server: Any = self._send.__self__  # type: ignore[attr-defined]  # _is_bare() saw uvicorn's
        transport: asyncio.WriteTransport = server.transport
        return transport

    def _write(self, message: Message) -> None:
        sending: Any = self._send(message)
        try:
            waits_for = sending.send(None)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - the flush in whose middle we are owes the others theirs
            self._broken(error)
            return
        self._unsent = self._transport.get_write_buffer_size()
        self.hub.blocked(self)
        self._rest = asyncio.get_running_loop().create_task(_finish(_Rest(sending, waits_for)))
        self._rest.add_done_callback(self._unblock)

    def _unblock(self, rest: asyncio.Task[None]) -> None:
        self._rest = None
        self.unblocked()
        if rest.cancelled():
            self.hub.leave(self, Ending.CLIENT_GONE)
        elif (error := rest.exception()) is not None:
            self._broken(error)
        else:
            self.flush(asyncio.get_running_loop().time())

    def _broken(self, error: BaseException) -> None:
        logger.error("the server would not send on stream %r", self.id, exc_info=error)
        self.hub.leave(self, Ending.CLIENT_GONE)
        self.abort()


class _Rest(Awaitable[None]):
    """The rest of a coroutine that was stepped once by hand and waits for something."""

    def __init__(self, stepped: Generator[Any, Any, None], waits_for: Any) -> None:
        self._stepped = stepped
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine that waits
                thrown: BaseException | None = error
            else:
                thrown = None
            try:
                waits_for = self._stepped.send(value) if thrown is None else self._stepped.throw(thrown)
            except StopIteration:
                return


async def _finish(rest: _Rest) -> None:
    await rest


class TaskStream(HTTPStream):
    """Sends from the task of the ASGI call alone; a second task waits for the client to leave."""

    __slots__ = ("_beat_due", "_connection", "_stuck", "_task", "_wake")

    def __init__(
        self, hub: Hub, id: RequestId, honored: Filter, send: Send, connection: Connection | None
    ) -> None:
        super().__init__(hub, id, honored, send)
        self._connection = connection
        self._wake = asyncio.Event()
        self._beat_due = self._stuck = False
        self._task: asyncio.Task[Any] | None = None

    async def run(self, receive: Receive) -> None:
        """See `HTTPStream.run`."""
        self._task = asyncio.current_task()
        watcher = asyncio.get_running_loop().create_task(self._watch(receive))
        try:
            await self._write_all()
        except asyncio.CancelledError:
            if not self._stuck:
                raise
            if self._task is not None:
                self._task.uncancel()
        finally:
            self._task = None  # what the caller does afterwards is not ours to cancel
            watcher.cancel()

    def flush(self, now: float) -> None:
        """See `Stream.flush`."""
        self.last_write = now
        self._wake.set()

    def beat(self, now: float) -> None:
        """See `Stream.beat`."""
        self._beat_due = True
        self.flush(now)

    def abort(self) -> None:
        """See `Stream.abort`: cut the connection, and return once the server knows."""
        if self._connection is None:
            self._give_up()  # the app can only return; the server's own settings bound the rest
        else:
            self.hub.cuts.add(self._connection)
            asyncio.get_running_loop().call_later(_CUT_TIMEOUT, self._give_up)

    def _give_up(self) -> None:
        """Return, also from a `send` that waits."""
        self._stuck = True
        if self._task is not None and self.blocked_since is not None:
            self._task.cancel()
        self._wake.set()

    async def _write_all(self) -> None:
        while True:
            data = self.take()
            if not data and self._beat_due:
                data = _KEEP_ALIVE
            self._beat_due = False
            if data:
                self.hub.blocked(self)
                await self._send(self._body(data))
                self.unblocked()
            if self.state is State.ENDED:
                return
            if not self.has_output:
                self._wake.clear()
                await self._wake.wait()

    async def _watch(self, receive: Receive) -> None:
        try:
            await _client_gone(receive)
        except Exception:
            logger.exception("a middleware's receive failed; its stream counts as left")
        if self.state is not State.ENDED:  # else the last send is on its way, and this is its echo
            self.cancel(Ending.CLIENT_GONE)
            self._give_up()  # not every server wakes a send that waits for a client that has left
