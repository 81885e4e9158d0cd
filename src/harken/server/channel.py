"""One channel of newline-delimited JSON-RPC: requests, listens and cancels side by side (clause T2).

The same verbs as in `server/http.py`: check, answer, listen. Bytes come and go through `server/stdio.py`.
"""

from __future__ import annotations

import asyncio
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
from harken.server.methods import Request, encode_answer
from harken.server.stream import Stream

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["Channel", "LineStream", "Reader", "Writer"]

_ANSWER_TIMEOUT = 1.0  # seconds that requests in flight have once the input has ended


class Reader(Protocol):
    """Where input comes from: asyncio's `ReadTransport`."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Writer(Protocol):
    """Where output goes: asyncio's `WriteTransport`."""

    def write(self, data: bytes) -> None: ...

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
            self.last_write = now
            if data := self.take():
                self._channel.write(data)
            if not self.alive:
                self._channel.forget(self)

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
        self.writable = True
        self.finished = asyncio.Event()
        """Set when nothing is left to say."""
        self._decoder = LineDecoder(hub.limits.max_body)
        self._streams: dict[RequestId, LineStream] = {}
        self._requests: dict[RequestId, asyncio.Task[None]] = {}
        self._out: list[bytes] = []
        self._input_over = False

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
        if inbound.method == "initialize":
            self.hub.methods.check(inbound)  # A7
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
        self.write(encode_answer(request.id, answer) + LINES.after)

    # -- Output

    def write(self, data: bytes) -> None:
        """Write whole lines; all lines of one turn of the event loop leave in one write."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._write_out)
        self._out.append(data)

    def _write_out(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if self.writer is not None and data:
            self.writer.write(data)

    def _error(self, id: RequestId | None, error: RPCError) -> None:
        self.write(encode_error(id, error) + LINES.after)

    def pause(self) -> None:
        """The peer reads too slowly: streams collapse, and nothing is read that would need an answer."""
        self.writable = False
        if self.reader is not None:
            self.reader.pause_reading()
        for stream in self._streams.values():
            self.hub.blocked(stream)

    def resume(self) -> None:
        """The peer reads again: say what has collapsed meanwhile."""
        self.writable = True
        if self.reader is not None:
            self.reader.resume_reading()
        now = asyncio.get_running_loop().time()
        for stream in list(self._streams.values()):
            stream.blocked_since = None
            if stream.has_output:
                stream.flush(now)

    # -- The end

    def forget(self, stream: LineStream) -> None:
        """`stream` has told its end."""
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
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
        for stream in list(self._streams.values()):
            self.hub.end(stream, Ending.SHUTDOWN)
        self._write_out()
        self.finished.set()

    def abort(self) -> None:
        """Give the channel up."""
        if self.writer is not None:
            self.writer.abort()

    def lost(self) -> None:
        """The output is gone: free everything at once (clause R15)."""
        self._input_over = True
        self.writer = None
        for stream in list(self._streams.values()):
            self.hub.leave(stream, Ending.CLIENT_GONE)
        self._streams.clear()
        for task in self._requests.values():
            task.cancel()
        self.finished.set()
