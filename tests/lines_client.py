"""A client for tests, as plain as it gets: lines of JSON over any byte stream, each message checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harken.core.wire import CANCELLED, LISTEN, PROTOCOL_VERSION, RequestId
from harken.server.hub import Hub
from tests.core.frames import Message, check, name, same_id, tag

LIMIT = 20.0  # seconds: a bound on a machine with much else to do
PREFIX = "io.modelcontextprotocol/"
META: dict[str, Any] = {f"{PREFIX}protocolVersion": PROTOCOL_VERSION, f"{PREFIX}clientCapabilities": {}}
TOOLS = {"toolsListChanged": True}
ALL: dict[str, Any] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["x://a"],
}
ACK = "subscriptions/acknowledged"
SERVER = Path(__file__).with_name("lines_server.py")


def request(method: str, params: Any = None, id: object = 1) -> Message:
    """A request of this revision."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": META, **(params or {})}}


def listen(notifications: object, id: object = 1) -> Message:
    """A request to listen."""
    return request(LISTEN, {"notifications": notifications}, id)


def cancel(id: object) -> Message:
    """A cancellation."""
    return {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": id}}


def encode(message: Message | bytes) -> bytes:
    """A line; bytes are sent as they are."""
    return message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"


@dataclass
class Lines:
    """One channel to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    process: asyncio.subprocess.Process | None = None
    pipe: Any = None
    seen: list[Message] = field(default_factory=list)

    async def send(self, *messages: Message | bytes) -> None:
        """Sends all of it in one write."""
        self.writer.write(b"".join(map(encode, messages)))
        await self.writer.drain()

    async def receive(self) -> Message:
        """The next message, which must be a good one."""
        async with asyncio.timeout(LIMIT):
            line = await self.reader.readline()
        assert line.endswith(b"\n"), f"the channel has ended with {line!r}"
        message: Message = json.loads(line.decode("utf-8", "strict"))
        if "error" in message:
            assert set(message) - {"id"} == {"jsonrpc", "error"}
            assert message.get("id", 0) is not None
        elif "method" in message or tagged(message):
            check(message)
        self.seen.append(message)
        return message

    async def names(self, count: int) -> list[str]:
        """The next messages of streams, in short."""
        return [name(await self.receive()) for _ in range(count)]

    async def answer(self, id: object) -> Message:
        """The response to a request; what comes before it is in `seen`."""
        while not ("method" not in (message := await self.receive()) and same_id(message.get("id"), id)):
            pass
        return message

    async def ask(self, method: str, params: Any = None, id: object = "asked") -> Message:
        """A request and its response."""
        await self.send(request(method, params, id))
        return await self.answer(id)

    async def call(self, method: str, **params: Any) -> Any:
        """The result of a request."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def listen(self, notifications: object, id: RequestId = 1) -> Message:
        """Listens; the acknowledgment, which is the next message."""
        await self.send(listen(notifications, id))
        message = await self.receive()
        assert name(message) == ACK, message
        assert same_id(tag(message), id)
        return message

    async def quiet(self) -> None:
        """Asks something: nothing may come before the answer, by when whatever was due has left."""
        before = len(self.seen)
        await self.ask("server/discover", id="quiet")
        await self.ask("server/discover", id="quiet")
        assert [m for m in self.seen[before:] if m.get("id") != "quiet"] == []

    async def quiet_but(self, tags: Collection[object]) -> None:
        """The same, but for change notifications of these subscriptions."""
        before = len(self.seen)
        await self.ask("server/discover", id="quiet")
        await self.ask("server/discover", id="quiet")
        for message in self.seen[before:]:
            assert message.get("id") == "quiet" or ("method" in message and tag(message) in tags)

    async def rest(self) -> list[Message]:
        """Everything until the end of the channel."""
        rest: list[Message] = []
        while not await self.at_end():
            rest.append(await self.receive())
        return rest

    async def at_end(self) -> bool:
        """Whether nothing comes any more; waits until that is known."""
        async with asyncio.timeout(LIMIT):
            while not self.reader._buffer and not self.reader._eof:  # type: ignore[attr-defined]
                await self.reader._wait_for_data("at_end")  # type: ignore[attr-defined]
        return self.reader.at_eof()

    def end_input(self) -> None:
        """Says that nothing more will come."""
        if self.process is not None:
            self.writer.close()
        else:
            self.writer.write_eof()

    async def exit_code(self) -> int:
        """The exit code, once the server is gone."""
        assert self.process is not None
        async with asyncio.timeout(LIMIT):
            return await self.process.wait()

    async def stderr(self) -> str:
        """All that stderr says, to its end."""
        assert self.process is not None
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT):
            return (await self.process.stderr.read()).decode()


def tagged(message: Message) -> bool:
    """Whether this is the result of a listen."""
    result = message.get("result")
    return isinstance(result, dict) and f"{PREFIX}subscriptionId" in result.get("_meta", {})


@contextlib.asynccontextmanager
async def over_unix(hub: Hub, path: Path, count: int = 1) -> AsyncIterator[list[Lines]]:
    """Serves `hub` on a Unix socket, and connects so many clients."""
    async with hub.serve_unix(path):
        clients = [await connect(path) for _ in range(count)]
        try:
            yield clients
        finally:
            for client in clients:
                client.writer.close()
                with contextlib.suppress(OSError):
                    await client.writer.wait_closed()
    await hub.aclose()


async def connect(path: Path) -> Lines:
    """A client on a Unix socket."""
    return Lines(*await asyncio.open_unix_connection(str(path), limit=2**26))


@contextlib.asynccontextmanager
async def server(**options: Any) -> AsyncIterator[Lines]:
    """Runs tests/lines_server.py over pipes; `options` are the hub's, or `uvloop`."""
    output, stdout = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        str(SERVER),
        json.dumps(options),
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SERVER.parent.parent), "PYTHONUNBUFFERED": ""},
    )
    os.close(stdout)
    assert process.stdin is not None
    # A pipe of our own: who waits for a subprocess waits for its pipes, too, which not every test reads.
    reader = asyncio.StreamReader(limit=2**26)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb", buffering=0)
    )
    try:
        yield Lines(reader, process.stdin, process, pipe)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        pipe.close()


async def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Waits until `condition` holds; fails after `limit` seconds."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110 - there is no event for what the hub holds
            await asyncio.sleep(0.005)
