"""ASGI's own types, and reading a request's body once for two readers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__ = ["ASGIApp", "Message", "Receive", "Scope", "Send", "read_body", "replay"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


async def read_body(receive: Receive, cap: int) -> tuple[list[bytes] | None, bool]:
    """The chunks of the body, and whether they are all of it; reading stops past `cap` bytes.

    The last chunk may lie past it. The chunks are None where the client left.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None, False
        if chunk := message.get("body", b""):
            chunks.append(chunk)
            size += len(chunk)
        if not message.get("more_body", False):
            return chunks, True
        if size > cap:
            return chunks, False


def replay(chunks: list[bytes], complete: bool, receive: Receive) -> Receive:
    """A `receive` that gives what was read already, then the rest."""
    pending: Message | None = {"type": "http.request", "body": b"".join(chunks), "more_body": not complete}

    async def receive_again() -> Message:
        nonlocal pending
        if pending is not None:
            message, pending = pending, None
            return message
        return await receive()

    return receive_again
