"""Streams over raw sockets: every byte that a server sent is looked at."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, Self

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
LISTEN = "subscriptions/listen"


def request(id: int, uris: Sequence[str] = ()) -> bytes:
    """A whole listen request for the list of tools and `uris`."""
    wanted = {"toolsListChanged": True, "resourceSubscriptions": list(uris)}
    params = {"_meta": META, "notifications": wanted}
    message = {"jsonrpc": "2.0", "id": id, "method": LISTEN, "params": params}
    body = json.dumps(message).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        "mcp-protocol-version: 2026-07-28",
        f"mcp-method: {LISTEN}",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def get(port: int, path: str) -> Any:
    """The JSON that a path answers with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if b"transfer-encoding: chunked" in head.lower():
        body = unchunked(body)
    return json.loads(body)


class Raw:
    """One HTTP/1.1 connection with one listen on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received = b""

    @classmethod
    async def open(
        cls,
        port: int,
        id: int = 1,
        uris: Sequence[str] = (),
        buffer: int | None = None,
        acknowledged: bool = True,
    ) -> Self:
        """Listen, and wait for the acknowledgment; `buffer` bytes of room for a reader that will stop."""
        connection = socket.socket()
        connection.setblocking(False)
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=buffer or 2**16)
        self = cls(reader, writer)
        writer.write(request(id, uris))
        if acknowledged:
            await self.until(b"notifications/subscriptions/acknowledged")
            await self.until(b"}}}\n\n")
        return self

    async def until(self, words: bytes) -> None:
        """Read until `words` have come."""
        while words not in self.received:
            data = await self.reader.read(2**16)
            assert data, f"ended before {words!r}: {self.received!r}"
            self.received += data

    async def messages(self) -> list[Any]:
        """Read to the end; all messages, from a body that ended as HTTP wants it."""
        self.received += await self.reader.read()
        self.writer.close()
        head, _, body = self.received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b"transfer-encoding: chunked" in head.lower(), head
        lines = unchunked(body).decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]

    def reset(self) -> None:
        """Leave with an RST."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        """Leave with a FIN."""
        self.writer.close()


def unchunked(body: bytes) -> bytes:
    """What a chunked body carries; fails unless it ends with the last chunk and nothing after."""
    data = b""
    while True:
        size, separator, body = body.partition(b"\r\n")
        assert separator, f"the body ends without its last chunk: {data!r}"
        length = int(size, 16)
        data, end, body = data + body[:length], body[length : length + 2], body[length + 2 :]
        assert end == b"\r\n", f"a chunk is cut off: {data!r}"
        if not length:
            assert not body, f"something follows the last chunk: {body!r}"
            return data
