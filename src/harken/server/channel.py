"""One channel of newline-delimited JSON-RPC: requests, listens and cancels side by side (clause T2).

The same verbs as in `server/http.py`: check, answer, listen. Bytes come and go through `server/stdio.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from harken.core.filters import Filter
from harken.core.lines import LineDecoder, Oversized
from harken.core.subscription import LINES, Ending
from harken.core.wire import (
    CANCELLED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LISTEN,
    METHOD_NOT_FOUND,
    Inbound,
    Meta,
    RequestId,
    check_version,
    decode,
    encode_error,
    read_meta,
    valid_id,
)
from harken.errors import InvalidFilter, InvalidMessage, RPCError
from harken.server.limits import busy
from harken.server.methods import Request
from harken.server.stream import Stream

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["Channel", "LineStream", "Reader", "Writer"]

logger: logging.Logger = logging.getLogger("harken")

_ANSWER_TIMEOUT = 1.0  # seconds that requests in flight have once the input has ended
_END_TIMEOUT = 0.5  # seconds that a slow reader then has until the streams' ends can be written
_SLICE = 65_536  # bytes to write before looking whether the peer still takes them


class Reader(Protocol):
    """Where input comes from: asyncio's `ReadTransport`."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


class Writer(Protocol):
    """Where output goes: asyncio's `WriteTransport`."""

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class LineStream(Stream):
    """A subscription on a channel."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel, id: RequestId, honored: Filter) -> None:
        super().__init__(channel.hub, id, honored, LINES, channel.hub.end_signal)
        self._channel = channel

    def flush(self, now: float) -> None:
        """See `Stream.flush`."""
        if self._channel.writable:
            self.last_write: float = now
            self._channel.write(self)

    def lines(self) -> bytes:
        """What is to be written at this very moment: until then it may collapse, or be cancelled (R15)."""
        if not self._channel.writable:
            return b""
        data = self.take()
        if not self.alive:
            self._channel.forget(self)
        return data

    def beat(self, now: float) -> None:
        """Nothing: a channel needs no keep-alives."""
        self.last_write = now

    def abort(self) -> None:
        """See `Stream.abort`: who does not read the channel reads none of its streams."""
        self._channel.abort()


class Channel:
    """One client's channel and all that is in flight on it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.reader: Reader | None = None
        self.writer: Writer | None = None
        self.writable: bool = True
        self.finished: asyncio.Event = asyncio.Event()
        """Set when nothing is left to say."""
        self._decoder = LineDecoder(hub.limits.max_body)
        self._streams: dict[RequestId, LineStream] = {}
        self._requests: dict[RequestId, asyncio.Task[None]] = {}
        self._out: list[bytes | LineStream] = []
        self._input_over = False
        self._finishing: asyncio.Task[None] | None = None
        self._all_told = asyncio.Event()
        self._written = self._progress = 0  # bytes: handed to the writer; of those, taken by the peer
        self._stuck_timer: asyncio.TimerHandle | None = None

    # -- Input

    def received(self, data: bytes) -> None:
        """Take a chunk of input, cut anywhere."""
        for line in self._decoder.feed(data):
            if self._input_over:
                return
            if isinstance(line, Oversized):  # T9: the channel lives on
                self._error(
                    None, RPCError(INVALID_REQUEST, f"a line may have {self.hub.limits.max_body} bytes")
                )
            elif line.strip():
                self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            inbound = decode(line)
        except InvalidMessage as error:
            if error.answerable:
                self._error(error.id, error)
            return
        if inbound.id is None:
            if inbound.method == CANCELLED:
                self._cancelled(inbound.params or {})
            return  # D16, R23: any other notification says nothing to us and is never answered
        try:
            self._request(inbound.id, inbound)
        except RPCError as error:
            self._error(inbound.id, error)

    def _request(self, id: RequestId, inbound: Inbound) -> None:
        if id in self._streams or id in self._requests:  # T6: the first goes on undisturbed
            raise RPCError(INVALID_REQUEST, f"the id {str(id)[:64]} is in use by a request in flight")
        if inbound.method in {"initialize", "ping"}:  # A7, R22: what older clients send has no _meta
            self.hub.methods.check(inbound)
        meta = read_meta(inbound.params)  # T8
        check_version(meta.version)
        if inbound.method == LISTEN:
            self._listen(id, inbound.params or {})
        else:
            self.hub.methods.check(inbound)
            self._start(id, inbound, meta)

    def _listen(self, id: RequestId, params: Mapping[str, object]) -> None:
        if not self.hub.subscriptions:  # D3
            raise RPCError(METHOD_NOT_FOUND, f"{LISTEN} is switched off here")
        try:
            requested = Filter.parse(params.get("notifications"))
        except InvalidFilter as error:
            raise RPCError(INVALID_PARAMS, str(error)) from error  # R13
        self.hub.admit(requested, len(self._streams))
        stream = LineStream(self, id, requested.narrow(self.hub.kinds()))
        self._streams[id] = stream
        self.hub.join(stream)
        stream.flush(stream.last_write)

    def _cancelled(self, params: Mapping[str, object]) -> None:
        """R15: end what the client names; the unknown, the finished and the malformed are ignored."""
        id = params.get("requestId")
        if not isinstance(id, int | str) or not valid_id(id):
            return
        if (stream := self._streams.pop(id, None)) is not None:
            self.hub.leave(stream, Ending.CANCELLED)
        elif (task := self._requests.get(id)) is not None:
            task.cancel()

    # -- Requests

    def _start(self, id: RequestId, inbound: Inbound, meta: Meta) -> None:
        if len(self._requests) >= self.hub.limits.max_requests_per_channel:
            raise busy("quota", "this channel has as many requests in flight as it may", 1)
        request = Request(id, inbound.method, inbound.params or {}, meta)
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._requests[id] = task
        task.add_done_callback(lambda _: self._requests.pop(id, None))

    async def _answer(self, request: Request) -> None:
        answer = await self.hub.methods.answer(request)
        task = asyncio.current_task()
        if task is not None and not task.cancelling():  # a handler may have kept its cancellation to itself
            encoded = encode_error(request.id, answer) if isinstance(answer, RPCError) else answer
            self.write(encoded + LINES.after)

    # -- Output

    def write(self, due: bytes | LineStream) -> None:
        """Write whole lines, or what a stream has to say; all that is due in one turn leaves together."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._write_out)
        self._out.append(due)

    def _write_out(self) -> None:
        """Write what is due, a slice at a time: what the peer has no room for stays with its stream."""
        out, self._out = self._out, []
        lines: list[bytes] = []
        size = 0
        for due in out:
            lines.append(due.lines() if isinstance(due, LineStream) else due)
            size += len(lines[-1])
            if size >= _SLICE:
                self._send(lines)
                lines, size = [], 0
        self._send(lines)

    def _send(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        if self.writer is not None and data:
            self._written += len(data)
            self.writer.write(data)

    def _error(self, id: RequestId | None, error: RPCError) -> None:
        self.write(encode_error(id, error) + LINES.after)

    def pause(self) -> None:
        """The peer reads too slowly: streams collapse, and nothing is read that would need an answer."""
        self.writable = False
        if self.reader is not None:
            self.reader.pause_reading()
        self._progress = self._taken()
        self._watch()

    def resume(self) -> None:
        """The peer reads again: say what has collapsed meanwhile."""
        self.writable = True
        self._unwatch()
        if self.reader is not None:
            self.reader.resume_reading()
        now = asyncio.get_running_loop().time()
        for stream in list(self._streams.values()):
            if stream.has_output:
                stream.flush(now)

    def _taken(self) -> int:
        return self._written - (0 if self.writer is None else self.writer.get_write_buffer_size())

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._stuck_timer = loop.call_later(self.hub.write_timeout, self._look_for_progress)

    def _unwatch(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    def _look_for_progress(self) -> None:
        """D13: who took nothing for a whole `write_timeout` is left, who reads slowly is not."""
        before, self._progress = self._progress, self._taken()
        if self._progress > before:
            self._watch()
            return
        logger.warning("left a channel whose reader took nothing for %g s", self.hub.write_timeout)
        for stream in list(self._streams.values()):
            self.hub.leave(stream, Ending.STUCK_READER)
        self.abort()

    # -- The end

    def forget(self, stream: LineStream) -> None:
        """`stream` has told its end."""
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            if not self._streams:
                self._all_told.set()
        self.hub.leave(stream, stream.ending or Ending.SHUTDOWN)

    def input_ended(self) -> None:
        """No more input: answer what is in flight, end every stream, and be finished (clause T3)."""
        if not self._input_over:
            self._input_over = True
            self._finishing = asyncio.get_running_loop().create_task(self._finish())

    async def _finish(self) -> None:
        if self._requests:
            _, late = await asyncio.wait(list(self._requests.values()), timeout=_ANSWER_TIMEOUT)
            for task in late:
                task.cancel()
        self._all_told.clear()
        for stream in list(self._streams.values()):
            self.hub.end(stream, Ending.SHUTDOWN)
        self._write_out()
        if self._streams:  # they wait until the peer reads on
            try:
                async with asyncio.timeout(_END_TIMEOUT):
                    await self._all_told.wait()
            except TimeoutError:
                pass  # a peer that does not read is told nothing
        self.finished.set()

    def abort(self) -> None:
        """Give the channel up."""
        if self.writer is not None:
            self.writer.abort()

    def lost(self) -> None:
        """The output is gone: free everything at once (clause R15). Harmless when repeated."""
        self._input_over = True
        self._unwatch()
        self.writer = None
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        for stream in list(self._streams.values()):
            self.hub.leave(stream, Ending.CLIENT_GONE)
        self._streams.clear()
        self._all_told.set()
        for task in self._requests.values():
            task.cancel()
        self.finished.set()
