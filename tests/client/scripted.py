"""Servers that say exactly what a test tells them to, over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from harken.core.wire import ACKNOWLEDGED, SUBSCRIPTION_ID

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}


def tagged(method: str, id: object, **params: object) -> dict[str, Any]:
    """A notification of the subscription `id`."""
    return {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": {SUBSCRIPTION_ID: id}}}


def ack(id: object, **notifications: object) -> dict[str, Any]:
    return tagged(ACKNOWLEDGED, id, notifications=notifications)


def tools_changed(id: object) -> dict[str, Any]:
    return tagged("notifications/tools/list_changed", id)


def updated(id: object, uri: object) -> dict[str, Any]:
    return tagged("notifications/resources/updated", id, uri=uri)


def result(id: object, **fields: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **fields}}


def error(id: object, code: int = -32603, message: str = "no", **fields: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **fields}}


def encode(message: object) -> bytes:
    return json.dumps(message).encode()


@dataclass
class Exchange:
    """One HTTP request, and the means to answer it byte by byte."""

    stream: anyio.abc.ByteStream
    target: str
    header_lines: list[str]
    body: Any
    stays: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in self.header_lines)
        }

    @property
    def id(self) -> Any:
        return self.body["id"]

    async def raw(self, data: bytes) -> None:
        await self.stream.send(data)

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """A whole response; the connection stays open."""
        self.stays = True
        await self.head(status, {**JSON, **(headers or {}), "content-length": str(len(body))})
        await self.raw(body)

    async def open(self, status: int = 200, **headers: str) -> None:
        """The head of an event stream that ends with the connection."""
        await self.head(status, {**SSE, **headers, "connection": "close"})

    async def say(self, *messages: object) -> None:
        """One event for each message, in one write."""
        await self.raw(b"".join(b"data: %b\n\n" % encode(message) for message in messages))

    async def acknowledge(self, **notifications: object) -> None:
        await self.open()
        await self.say(ack(self.id, **notifications))

    async def until_closed(self) -> None:
        """Until the client has closed the connection."""
        try:
            await self.stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
        raise AssertionError("the client sent more")


@dataclass
class Server:
    """Where a scripted server is, and what it has seen."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)
    closed: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)

    def saw(self, exchange: Exchange | None = None) -> None:
        """A request has come, or a connection has been closed."""
        if exchange is None:
            self.closed += 1
        else:
            self.exchanges.append(exchange)
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, *, exchanges: int = 0, closed: int = 0) -> None:
        """Until it has seen so many of each."""
        while len(self.exchanges) < exchanges or self.closed < closed:
            await self.changed.wait()


Script = Callable[[Exchange], Awaitable[None]]


@asynccontextmanager
async def http_server(script: Script) -> AsyncIterator[Server]:
    """`script` answers each request; when it returns, the connection is closed unless it was a `reply`."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port = listener.extra(SocketAttribute.local_port)
    server = Server(f"http://127.0.0.1:{port}/mcp")

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            try:
                while True:
                    exchange = await _read_request(reader, stream)
                    server.saw(exchange)
                    await script(exchange)
                    if not exchange.stays:
                        return
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
                pass
            finally:
                server.saw()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield server
        finally:
            tasks.cancel_scope.cancel()


async def _read_request(reader: BufferedByteReceiveStream, stream: anyio.abc.ByteStream) -> Exchange:
    head = (await reader.receive_until(b"\r\n\r\n", 65536)).decode()
    request_line, *lines = head.split("\r\n")
    exchange = Exchange(stream, request_line.split(" ")[1], lines, None)
    exchange.body = json.loads(await reader.receive_exactly(int(exchange.headers["content-length"])))
    return exchange


class Channel:
    """The server's end of a byte stream with newline-delimited messages."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream
        self._reader = BufferedByteReceiveStream(stream)

    async def heard(self) -> Any:
        """The client's next message."""
        return json.loads(await self._reader.receive_until(b"\n", 1024 * 1024))

    async def raw(self, data: bytes) -> None:
        await self.stream.send(data)

    async def say(self, *messages: object) -> None:
        await self.raw(b"".join(encode(message) + b"\n" for message in messages))

    async def until_closed(self) -> None:
        try:
            while True:
                await self._reader.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass


@asynccontextmanager
async def channel_server(folder: Path, script: Callable[[Channel], Awaitable[None]]) -> AsyncIterator[Path]:
    """A Unix socket in `folder` on which `script` serves each connection until it returns."""
    path = folder / "s"
    listener = await anyio.create_unix_listener(path)

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                await script(Channel(stream))
            except (anyio.IncompleteRead, anyio.BrokenResourceError):
                pass

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield path
        finally:
            tasks.cancel_scope.cancel()
