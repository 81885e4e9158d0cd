"""Standing around another ASGI app: its lifespan, and what its `server/discover` says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harken.core.calls import Result, decode_message, encode_request
from harken.core.events import ALL_KINDS, Kind
from harken.core.wire import (
    DISCOVER,
    INTERNAL_ERROR,
    PROTOCOL_VERSION,
    RequestId,
    encode_error,
    encode_result,
)
from harken.errors import ProtocolError, RPCError
from harken.server.asgi import ASGIApp, Message, Receive, Scope, Send
from harken.server.discover import BITS, with_bits

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["Answer", "Inner", "lifespan", "pass_on"]

_TURNED_AWAY = frozenset({401, 403, 407, 421, 429})
_NO_SUCH_METHOD = frozenset({404, 405})

logger: logging.Logger = logging.getLogger("harken")


@dataclass(slots=True)
class Answer:
    """What the app answered to `server/discover`: its result, or a refusal to pass on."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    result: dict[str, Any] | None


class Inner:
    """The app around which the hub stands, as far as its `server/discover` goes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kinds: frozenset[Kind] | None = None

    async def discover(self, hub: Hub, scope: Scope, body: bytes) -> Answer | None:
        """The app's answer with the bits told truly (clause R20); None where the app has no such method."""
        answer = await self._ask(scope, body)
        if answer.result is not None:
            capabilities = answer.result.get("capabilities")
            capabilities = capabilities if isinstance(capabilities, dict) else {}
            self._kinds = _kinds_within(capabilities)
            answer.result["capabilities"] = with_bits(capabilities, hub.kinds(self._kinds))
            return answer
        if answer.status in _TURNED_AWAY or answer.status >= 500:
            return answer  # who may not ask the app may not ask us either; nor is a failure an answer
        if self._kinds is None and answer.status in _NO_SUCH_METHOD:
            self._kinds = ALL_KINDS
        return None

    async def kinds(self, hub: Hub, scope: Scope, meta: object) -> frozenset[Kind] | Answer:
        """The kinds whose family the app has, or its refusal, for a listen with this `_meta`.

        It is asked for each listen anew: whom it turns away is its own affair each time (clause R24).
        """
        answer = await self.discover(hub, *_question(scope, meta))
        if answer is not None and answer.result is None:
            return answer
        return ALL_KINDS if self._kinds is None else self._kinds

    async def _ask(self, scope: Scope, body: bytes) -> Answer:
        start: Message = {"status": 500, "headers": []}
        chunks: list[bytes] = []
        asked = False
        answered = asyncio.Event()

        async def receive() -> Message:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))
                if not message.get("more_body", False):
                    answered.set()

        try:
            await self._app({**scope, "headers": _uncompressed(scope["headers"])}, receive, send)
        except Exception:
            logger.exception("the app around which the hub stands failed at %s", DISCOVER)
            error = RPCError(INTERNAL_ERROR, f"{DISCOVER} failed inside the server")
            return Answer(500, [(b"content-type", b"application/json")], encode_error(None, error), None)
        whole = b"".join(chunks)
        return Answer(start["status"], list(start.get("headers", [])), whole, _result(whole))


async def pass_on(answer: Answer, id: RequestId, send: Send, extra: Iterable[tuple[bytes, bytes]]) -> None:
    """Send the app's answer, with our result where there is one, and `extra` headers that it lacks."""
    body, headers = answer.body, answer.headers
    if answer.result is not None:
        body = encode_result(id, answer.result)
        headers = [(n, v) for n, v in headers if n.lower() not in {b"content-type", b"content-length"}]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    present = {name.lower() for name, _ in headers}
    headers = [*headers, *(header for header in extra if header[0] not in present)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _question(scope: Scope, meta: object) -> tuple[Scope, bytes]:
    """A listen made into the `server/discover` that its client could have sent."""
    question = encode_request(0, DISCOVER, {"_meta": meta})
    changed = {b"mcp-method": DISCOVER.encode(), b"content-length": str(len(question)).encode()}
    headers = [
        (name, changed.get(name.lower(), value))
        for name, value in scope["headers"]
        if name.lower() != b"transfer-encoding"
    ]
    return {**scope, "headers": headers}, question


def _uncompressed(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The same without leave to compress: the answer is read here."""
    return [(name, value) for name, value in headers if name.lower() != b"accept-encoding"]


def _result(body: bytes) -> dict[str, Any] | None:
    """The result in an answer, which is JSON or an SSE stream (clause H12)."""
    candidates = [body, *(line[5:] for line in body.splitlines() if line.startswith(b"data:"))]
    for candidate in candidates:
        try:
            message = decode_message(candidate)
        except ProtocolError:
            continue
        if isinstance(message, Result) and isinstance(message.result, dict):
            versions = message.result.get("supportedVersions")
            if isinstance(versions, list) and PROTOCOL_VERSION in versions:
                return message.result
    return None


def _kinds_within(capabilities: Mapping[str, object]) -> frozenset[Kind]:
    return frozenset(kind for kind, (family, _) in BITS.items() if family in capabilities)


async def lifespan(hub: Hub, app: ASGIApp | None, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the hub as long as the server runs, around the app's own lifespan where it has one."""
    asked = told = False

    async def receive_first() -> Message:
        nonlocal asked
        message = await receive()
        asked = True
        if message["type"] == "lifespan.startup":
            await hub.start()
        else:
            await hub.drain()
        return message

    async def send_last(message: Message) -> None:
        nonlocal told
        told = True
        if message["type"] != "lifespan.startup.complete":  # the end, or a start that failed
            await hub.aclose()
        await send(message)

    if app is not None:
        try:
            await app(scope, receive_first, send_last)
        except Exception:
            if told:
                raise
        if told:
            return
    # By ASGI's rule an app that raises, or returns, at once has no lifespan. The hub has one all the same.
    if not asked:
        await receive()
    await hub.start()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await hub.aclose()
    await send({"type": "lifespan.shutdown.complete"})
