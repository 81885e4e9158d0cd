"""A client for tests, as plain as it gets: raw sockets, HTTP/1.1 and SSE by hand, each message checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_types.methods import parse_server_result

from harken.core.wire import DISCOVER, LISTEN, PROTOCOL_VERSION, RequestId
from tests.core.frames import Message, check, same_id, tag

LIMIT = 20.0  # seconds: a bound on a machine with much else to do
PREFIX = "io.modelcontextprotocol/"
META: dict[str, Any] = {f"{PREFIX}protocolVersion": PROTOCOL_VERSION, f"{PREFIX}clientCapabilities": {}}
ALL: dict[str, Any] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["x://a"],
}
"""A filter that asks for everything."""

# A5: those of JSON-RPC and those that the specification defines
CODES = frozenset({-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022})
HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "upgrade", "te", "trailer"})

Headers = list[tuple[str, str]]


def request(method: str, params: Mapping[str, Any] | None = None, id: RequestId = 1) -> Message:
    """A request of this revision."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": META, **(params or {})}}


def listen(notifications: object, id: RequestId = 1) -> Message:
    """A request to listen."""
    return request(LISTEN, {"notifications": notifications}, id)


def without_id(message: Message) -> Message:
    """The same as a notification."""
    return {key: value for key, value in message.items() if key != "id"}


def headers_for(method: str, changes: Mapping[str, str | None] | None = None, name: str = "") -> Headers:
    """The headers that go with a request; `changes` replaces some, or leaves out those that are None."""
    headers: dict[str, str | None] = {
        "Host": "127.0.0.1:8765",  # with a port, as the official SDK wants it
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": PROTOCOL_VERSION,
        "Mcp-Method": method,
        **({"Mcp-Name": name} if name else {}),
        **(changes or {}),
    }
    return [(key, value) for key, value in headers.items() if value is not None]


def check_error(message: Message) -> None:
    """Whether `message` is an error as this protocol allows it (clause A5, decision D14)."""
    assert message["jsonrpc"] == "2.0"
    assert set(message) - {"id"} == {"jsonrpc", "error"}
    assert "id" not in message or type(message["id"]) in {int, str}
    error = message["error"]
    assert set(error) - {"data"} == {"code", "message"}
    assert error["code"] in CODES
    assert isinstance(error["message"], str)
    assert error["message"]


@dataclass
class Answer:
    """A whole HTTP response."""

    status: int
    headers: dict[str, list[str]]
    body: bytes = b""

    @property
    def message(self) -> Message:
        """The JSON-RPC message that it carries, which must be a good one."""
        assert self.headers["content-type"] == ["application/json"]
        message: Message = json.loads(self.body)
        if "error" in message:
            check_error(message)
        return message

    @property
    def error(self) -> Message:
        """The error that it carries."""
        error: Message = self.message["error"]
        return error

    @property
    def discovered(self) -> Message:
        """The result of `server/discover` that it carries, checked against the official types."""
        result: Message = self.message["result"]
        parse_server_result(DISCOVER, PROTOCOL_VERSION, result)
        return result


@dataclass
class Connection:
    """One TCP connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(
        self, body: bytes, headers: Iterable[tuple[str, str]], method: str = "POST", path: str = "/mcp"
    ) -> None:
        """Sends a whole request."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        lines.append(f"Content-Length: {len(body)}")
        await self.send_raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def send_raw(self, data: bytes) -> None:
        """Sends bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Answer:
        """Status and headers of the response."""
        async with asyncio.timeout(LIMIT):
            head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers.setdefault(name.lower(), []).append(value)
        return Answer(int(first.split(" ")[1]), headers)

    async def answer(self) -> Answer:
        """A whole response."""
        answer = await self.head()
        async with asyncio.timeout(LIMIT):
            if "content-length" in answer.headers:
                answer.body = await self.reader.readexactly(int(answer.headers["content-length"][0]))
            elif "transfer-encoding" in answer.headers:
                while chunk := await self.chunk():
                    answer.body += chunk
        return answer

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its proper end, IncompleteReadError at another."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def ask(
        self, message: object, headers: Headers | None = None, path: str = "/mcp", method: str = "POST"
    ) -> Answer:
        """Posts a message, or bytes as they are, and returns the whole response."""
        if headers is None:
            named = message.get("method", "") if isinstance(message, dict) else LISTEN
            headers = headers_for(str(named))
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self.send(body, headers, method, path)
        return await self.answer()

    async def at_end(self) -> bool:
        """Waits until the server has closed the connection."""
        async with asyncio.timeout(LIMIT):
            return await self.reader.read() == b""

    def reset(self) -> None:
        """Closes the connection at once."""
        self.writer.transport.abort()


@dataclass
class Stream:
    """An open `subscriptions/listen` stream."""

    connection: Connection
    headers: dict[str, list[str]]
    id: RequestId
    comments: int = 0
    frames: list[bytes] = field(default_factory=list)
    """The SSE events so far, as they came."""
    raw: bytes = b""
    """The whole body so far."""
    _buffer: bytes = b""
    _ended: bool = False

    async def frame(self, limit: float = LIMIT) -> bytes:
        """The next SSE event or comment as it came, empty at the end of the stream."""
        async with asyncio.timeout(limit):
            while b"\n\n" not in self._buffer:
                if self._ended or not (chunk := await self.connection.chunk()):
                    self._ended = True
                    assert self._buffer == b"", "the stream ends within an event"
                    return b""
                self._buffer += chunk
                self.raw += chunk
        frame, _, self._buffer = self._buffer.partition(b"\n\n")
        return frame + b"\n\n"

    async def message(self, limit: float = LIMIT) -> Message | None:
        """The next message, checked; None at the end. Comments are counted."""
        while (frame := await self.frame(limit)).startswith(b":"):
            assert re.fullmatch(rb":[^\r\n]*\n\n", frame)
            self.comments += 1
        if not frame:
            return None
        self.frames.append(frame)
        matched = re.fullmatch(rb"(?:event: message\n)?data: ([^\r\n]*)\n\n", frame)  # H2
        assert matched is not None, frame
        message: Message = json.loads(matched[1])
        check(message)
        assert same_id(tag(message), self.id)  # R4
        return message

    async def expect(self) -> Message:
        """The next message, which must be there."""
        message = await self.message()
        assert message is not None, "the stream has ended"
        return message

    async def acknowledged(self) -> Message:
        """What the acknowledgment, which must be next, says is honoured."""
        message = await self.expect()
        assert message["method"] == "notifications/subscriptions/acknowledged"
        honored: Message = message["params"]["notifications"]
        return honored

    async def rest(self) -> list[Message]:
        """All messages up to the proper end of the stream."""
        messages = []
        while (message := await self.message()) is not None:
            messages.append(message)
        return messages

    async def comment(self) -> None:
        """Waits for a comment, before which no message comes."""
        frame = await self.frame()
        assert frame.startswith(b":"), frame
        self.comments += 1


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    """A connection that is closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def listening(
    port: int,
    notifications: object,
    id: RequestId = 1,
    headers: Headers | None = None,
    path: str = "/mcp",
) -> AsyncIterator[Stream]:
    """A stream that was accepted; the acknowledgment is still to be read."""
    async with connected(port) as connection:
        await connection.send(
            json.dumps(listen(notifications, id)).encode(), headers or headers_for(LISTEN), path=path
        )
        head = await connection.head()
        assert head.status == 200, (await connection.reader.read(1000)).decode()
        yield Stream(connection, head.headers, id)


async def asked(
    port: int, message: object, headers: Headers | None = None, path: str = "/mcp", method: str = "POST"
) -> Answer:
    """The answer to one request on a connection of its own."""
    async with connected(port) as connection:
        return await connection.ask(message, headers, path, method)


async def discovered(
    port: int, path: str = "/mcp", changes: Mapping[str, str | None] | None = None
) -> Answer:
    """The answer to `server/discover`."""
    return await asked(port, request(DISCOVER), headers_for(DISCOVER, changes), path)
