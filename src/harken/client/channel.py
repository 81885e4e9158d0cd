"""Subscriptions over one byte stream: newline-delimited messages, all on one channel (clauses T1 and T7)."""

from __future__ import annotations

import abc
import logging
import math
from collections.abc import Awaitable, Callable
from os import PathLike, fspath

import anyio
import anyio.abc

from harken.client.connection import Connection, Options, Outgoing
from harken.client.subscription import Subscription
from harken.core.calls import Error, Message, Result, decode_message, encode_notification
from harken.core.demux import Demux, Ending, State, Stream
from harken.core.lines import LineDecoder, Oversized
from harken.core.wire import CANCELLED, RequestId
from harken.errors import ConnectionLost, ProtocolError

__all__ = ["ChannelConnection", "StreamConnection", "connect_unix"]

logger: logging.Logger = logging.getLogger("harken.client")

# Messages that wait for the writer; a caller past it waits, so a server that doesn't read costs no memory.
_OUTBOX = 64
# How long what is already written may take to leave when the connection closes, in seconds.
_FLUSH_TIME = 1.0
# How long what a dead server has still written may take to be read, in seconds.
_DRAIN = 0.5
# How much of a line that is no message is shown, in bytes.
_SHOWN = 200


_Written = tuple[bytes, Callable[[], None]]
"""A message to write, and what to do once that is done."""


class _Call:
    """A request other than a listen that waits for its answer."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.answer: Result | Error | None = None


class ChannelConnection(Connection):
    """A connection on which everything shares one channel. A subclass says where its two ends come from."""

    shared = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._channel = Demux(self.ignored)
        self._calls: dict[RequestId | None, _Call] = {}
        self._sent: set[object] = set()  # the listens that have been handed to the writer
        self._lost: ConnectionLost | None = None
        self._heard = False  # whether the server has ever sent a message
        self._garbled = b""  # the last line before that, which was none
        self._room = anyio.Semaphore(_OUTBOX)
        self._written = anyio.Event()
        self._read_out = anyio.Event()

    @property
    def usable(self) -> bool:
        """See the base class."""
        return super().usable and self._lost is None

    @abc.abstractmethod
    async def _receive(self) -> bytes:
        """The next bytes from the server; raises what an anyio stream raises at its end."""

    @abc.abstractmethod
    async def _send(self, data: bytes) -> None:
        """Write bytes to the server."""

    @abc.abstractmethod
    async def _close_write(self) -> None:
        """Tell the server that nothing more comes."""

    @abc.abstractmethod
    async def _last_words(self) -> str:
        """Why there is nothing more to read."""

    @abc.abstractmethod
    async def _close(self) -> None:
        """Close both directions, within a bounded time."""

    def _launch(self, tasks: anyio.abc.TaskGroup) -> None:
        self._outbox, self._to_write = anyio.create_memory_object_stream[_Written](math.inf)
        tasks.start_soon(self._read)
        tasks.start_soon(self._write)

    def _demux(self) -> Demux:
        return self._channel

    async def _disconnect(self) -> None:
        self._outbox.close()
        with anyio.move_on_after(_FLUSH_TIME):
            await self._written.wait()
        self._to_write.close()
        await self._close()

    async def _call(self, request: Outgoing) -> Result | Error:
        call = self._calls[request.id] = _Call()
        sent = False
        try:
            await self._put(request.body)
            sent = True
            await call.done.wait()
        finally:
            del self._calls[request.id]
            if sent and not call.done.is_set():
                self._channel.give_up(request.id)
                self._put_cancelled(request.id)
        if call.answer is None:
            raise self._lost or ConnectionLost("the connection was closed before the answer came")
        return call.answer

    async def _notify(self, method: str, body: bytes) -> None:
        try:
            await self._put(body)
        except ConnectionLost as error:
            logger.warning("%s was not sent: %s", method, error)

    async def _start(
        self, subscription: Subscription, stream: Stream, request: Outgoing, demux: Demux
    ) -> None:
        try:
            await self._put(request.body)
        except ConnectionLost as error:
            demux.end(stream, Ending.LOST, error)
        else:
            self._sent.add(stream.id)

    async def _stop(self, subscription: Subscription, stream: Stream) -> None:
        if stream.id in self._sent:
            self._sent.discard(stream.id)
            if not stream.answered:
                self._put_cancelled(stream.id)

    async def _put(self, body: bytes) -> None:
        """Hand a message to the writer, once it has room for it."""
        await self._room.acquire()
        try:
            self._post(body, self._room.release)
        except ConnectionLost:
            self._room.release()
            raise

    def _put_cancelled(self, id: object) -> None:
        """Cancel a request of ours (clause R16). It takes no room: each request has one at most."""
        try:
            self._post(encode_notification(CANCELLED, {"requestId": id}), _nothing)
        except ConnectionLost:
            pass  # then nothing is in flight any more

    def _post(self, body: bytes, written: Callable[[], None]) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            self._outbox.send_nowait((body + b"\n", written))  # T1
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise ConnectionLost("the connection has been closed") from None

    async def _write(self) -> None:
        """One task writes, so that a caller that is cancelled never leaves half a line behind."""
        try:
            async for data, written in self._to_write:
                await self._send(data)
                written()
            await self._close_write()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            with anyio.move_on_after(_DRAIN):
                await self._read_out.wait()  # its last words may still be on their way
            read_out = self._read_out.is_set()
            self._lose(ConnectionLost(await self._last_words() if read_out else "the server no longer reads"))
        finally:
            self._written.set()

    async def _read(self) -> None:
        decoder = LineDecoder(self._options.max_event_bytes)
        try:
            while True:
                for line in decoder.feed(await self._receive()):
                    self._line(line)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._read_out.set()
        self._lose(ConnectionLost(await self._last_words()))

    def _line(self, line: bytes | Oversized) -> None:
        try:
            if isinstance(line, Oversized):
                raise ProtocolError(f"the server sent a line of more than {line.cap} bytes")
            message = decode_message(line)
        except ProtocolError as error:
            if not self._heard:
                self._garbled = b"" if isinstance(line, Oversized) else line[:_SHOWN]
            shown = "" if isinstance(line, Oversized) else f": {line[:_SHOWN].decode(errors='replace')!r}"
            streams = self._channel.resync()  # F24
            told = "; all subscriptions are told that anything may have changed" if streams else ""
            logger.warning("%s%s%s", error, shown, told)
            for stream in streams:
                self._wake(stream)
        else:
            self._heard = True
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, Error) and message.id is None:
            message = self._attribute(message)
        if isinstance(message, Result | Error) and message.id in self._calls:
            call = self._calls[message.id]
            call.answer = call.answer or message  # T6: the first of two answers counts
            call.done.set()
            return
        outcome = self._channel.receive(message)
        if isinstance(outcome, Stream):
            self._wake(outcome)
        else:
            self._note(outcome, message)

    def _attribute(self, message: Error) -> Error:
        """An error without an id (decision D14) belongs to the one request that it can belong to, if any."""
        waiting: list[RequestId | None] = [id for id, call in self._calls.items() if call.answer is None]
        waiting += [stream.id for stream in self._channel.streams if stream.state is State.WAITING]
        return Error(waiting[0], message.error) if len(waiting) == 1 else message

    def _lose(self, error: ConnectionLost) -> None:
        """The channel is gone, and with it all that was on it (clauses R18 and T4)."""
        if self._lost is not None:
            return
        self._lost = error
        for stream in self._channel.streams:
            self._channel.end(stream, Ending.LOST, error)
            self._wake(stream)
        for call in self._calls.values():
            call.done.set()
        self._room.release()  # whoever waits for room learns of it, one after the other

    def _wake(self, stream: Stream) -> None:
        self._subscriptions[stream.id].wake()


class StreamConnection(ChannelConnection):
    """A connection over a byte stream that `open_stream` brings, and which it then owns (clause T7)."""

    def __init__(self, open_stream: Callable[[], Awaitable[anyio.abc.ByteStream]], options: Options) -> None:
        super().__init__(options)
        self._open_stream = open_stream
        self._stream: anyio.abc.ByteStream

    async def _connect(self) -> None:
        self._stream = await self._open_stream()

    async def _receive(self) -> bytes:
        return await self._stream.receive()

    async def _send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def _close_write(self) -> None:
        pass  # not every stream can be closed by half, and the other half follows at once

    async def _last_words(self) -> str:
        return "the server closed the connection"

    async def _close(self) -> None:
        await self._stream.aclose()


async def connect_unix(path: PathLike[str]) -> anyio.abc.ByteStream:
    """The byte stream of a Unix socket (clause T7)."""
    try:
        return await anyio.connect_unix(fspath(path))
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {fspath(path)}: {error.strerror or error}") from error


def _nothing() -> None:
    """What is to be done after a message that takes no room."""
