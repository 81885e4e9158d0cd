"""What went over the wire between a peer and us, byte by byte, and whether it is what the schema says.

`HTTPTap` sits below the peer's HTTP client; `stdio_words` puts `keep.py` on both pipes of a command.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
from mcp_types import jsonrpc_message_adapter
from mcp_types.jsonrpc import JSONRPCError, JSONRPCNotification, JSONRPCResponse
from mcp_types.methods import parse_server_notification, parse_server_result

REVISION = "2026-07-28"
Frame = dict[str, Any]


class HTTPTap(httpx2.AsyncHTTPTransport):
    """An HTTP transport that keeps every request's body with the answer's."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends the request, and keeps what comes as it comes."""
        exchange = Exchange(request.method, await request.aread())
        self.exchanges.append(exchange)
        response = await super().handle_async_request(request)
        exchange.status = response.status_code
        exchange.content_type = response.headers.get("content-type", "")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Kept(response.stream, exchange),
            extensions=response.extensions,
        )


class Exchange:
    """One request: what the peer sent, and what of the answer has come so far."""

    def __init__(self, method: str, request: bytes) -> None:
        self.method = method
        self.request = request
        self.answer = bytearray()
        self.status = 0
        self.content_type = ""

    @property
    def sent(self) -> list[Frame]:
        """The peer's message."""
        return frames(self.request)

    @property
    def received(self) -> list[Frame]:
        """Our messages: one JSON body, or what stands behind `data: `."""
        if not self.content_type.startswith("text/event-stream"):
            return frames(self.answer)
        lines = bytes(self.answer).split(b"\n")[:-1]  # the last one may not be whole
        return [json.loads(line.removeprefix(b"data:")) for line in lines if line.startswith(b"data:")]


class _Kept(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._exchange.answer += chunk
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def stdio_words(folder: Path, words: Sequence[str]) -> list[str]:
    """A command that keeps what goes in and out of `words` in `folder`."""
    keep = f"{shlex.quote(sys.executable)} -IS {shlex.quote(str(Path(__file__).with_name('keep.py')))}"
    return ["sh", "-c", f'{keep} "$0/sent" | "$@" | {keep} "$0/received"', str(folder), *words]


def frames(data: bytes | bytearray) -> list[Frame]:
    """One JSON message a line."""
    return [json.loads(line) for line in data.splitlines() if line]


def check(sent: Sequence[Frame], received: Sequence[Frame]) -> None:
    """Fails unless each message of ours is valid by the schema, and the answer to its request."""
    methods = {message["id"]: message["method"] for message in sent if "id" in message}
    assert received, "nothing was received"
    for message in received:
        match jsonrpc_message_adapter.validate_python(message):
            case JSONRPCNotification(method=method):
                assert message.keys() == {"jsonrpc", "method", "params"}, message
                parse_server_notification(method, REVISION, message["params"])
            case JSONRPCResponse(id=id):
                assert message.keys() == {"jsonrpc", "id", "result"}, message
                assert message["result"]["resultType"] == "complete"
                parse_server_result(methods[id], REVISION, message["result"])
            case JSONRPCError(id=id):
                assert id is None or id in methods, message
            case other:
                raise AssertionError(f"a server never sends this: {other!r}")
