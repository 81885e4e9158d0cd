"""`POST /publish`: events into the hub by HTTP, from programs alone.

No web page may publish through its visitor's browser, so whatever a browser would add or cannot add is
checked: no `Origin`, a `Host` that names this server, JSON and nothing that a form could send. Without a
token only this machine may publish; with one, whoever has it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from harken.errors import HubClosed
from harken.gateway.entries import InvalidEntry, parse
from harken.gateway.loopback import is_loopback
from harken.server.asgi import Receive, Scope, Send, read_body
from harken.server.headers import Headers
from harken.server.hub import Hub

__all__ = ["Publish", "respond"]

MAX_BODY = 1_048_576  # bytes
BODY_TIMEOUT = 30.0  # seconds for a whole body
RETRY_AFTER = 1  # seconds: a hub that is closing is about to be replaced

# A proxy on this machine makes every caller look local; it gives itself away by one of these.
_PROXIED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class _Rejected(Exception):
    """The request is answered with `status` and this message."""

    def __init__(self, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = tuple(headers)


class Publish:
    """The ASGI app behind `/publish`.

    `token` is what publishers must show; None lets those on this machine publish without one. `any_host` is
    for a hub that others reach by names that it cannot know: there the token alone decides.
    """

    def __init__(self, hub: Hub, token: str | None, *, any_host: bool = False) -> None:
        self._hub = hub
        self._token = token
        self._any_host = any_host and token is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request: 202 `{"accepted": n}`, or why not."""
        try:
            self._admit(scope, Headers(scope["headers"]))
            body = await _body(receive)
            if body is None:
                return  # the publisher left, and half a request publishes nothing
            accepted = await self._publish(body)
        except _Rejected as rejected:
            await respond(send, rejected.status, {"error": str(rejected)}, rejected.headers)
        except InvalidEntry as error:
            await respond(send, 400, {"error": str(error), "index": error.index, "reason": error.reason})
        else:
            await respond(send, 202, {"accepted": accepted})

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Raises _Rejected where this caller may not publish, or not like this."""
        if scope["method"] != "POST":
            raise _Rejected(405, "publish with POST", [(b"allow", b"POST")])
        if headers.get("origin") is not None:
            raise _Rejected(403, "web pages may not publish (the request has an Origin header)")
        self._check_host(headers)
        if self._token is None:
            _check_local(scope, headers)
        else:
            _check_token(headers, self._token)
        if _media_type(headers) != "application/json":
            raise _Rejected(415, "the body must be JSON, sent with Content-Type: application/json")
        if _declared_length(headers) > MAX_BODY:
            raise _too_large()

    def _check_host(self, headers: Headers) -> None:
        """What defeats DNS rebinding: a page's own name that was pointed at this machine."""
        if self._any_host:
            return
        host = _host_name(headers.get("host"))
        if not is_loopback(host):
            raise _Rejected(
                403,
                f"the Host header names {host[:64]!r}, which is not this server: use localhost or 127.0.0.1 "
                "(a proxy in front must set Host to the address that it connects to)",
            )

    async def _publish(self, body: bytes) -> int:
        events = parse(body)
        try:
            if self._hub.draining:
                raise HubClosed
            await self._hub.publish(*events)
        except HubClosed:
            message = "the hub is shutting down; publish again in a moment"
            raise _Rejected(503, message, [(b"retry-after", b"%d" % RETRY_AFTER)]) from None
        return len(events)


async def respond(
    send: Send, status: int, body: dict[str, object], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Sends one JSON answer."""
    encoded = json.dumps({key: value for key, value in body.items() if value is not None}).encode()
    start = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(encoded)),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": encoded})


def _check_local(scope: Scope, headers: Headers) -> None:
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        raise _Rejected(403, "only programs on this machine may publish; the hub has no --publish-token")
    if any(headers.all(name) for name in _PROXIED):
        raise _Rejected(403, "publishing through a proxy needs a hub with --publish-token")


def _check_token(headers: Headers, token: str) -> None:
    scheme, _, given = (headers.get("authorization") or "").partition(" ")
    known = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
    if scheme.lower() != "bearer" or not known:
        error = b', error="invalid_token"' if given else b""
        raise _Rejected(
            401,
            "publishing needs the hub's token: Authorization: Bearer …",
            [(b"www-authenticate", b'Bearer realm="harken"' + error)],
        )


def _host_name(header: str | None) -> str:
    try:
        return urlsplit(f"//{header or ''}").hostname or ""
    except ValueError:
        return ""


def _media_type(headers: Headers) -> str:
    return (headers.get("content-type") or "").partition(";")[0].strip().lower()


def _declared_length(headers: Headers) -> int:
    """The body's length as announced, 0 where it isn't."""
    try:
        return int(headers.get("content-length") or "0")
    except ValueError:
        return 0


def _too_large() -> _Rejected:
    return _Rejected(413, f"the body may have {MAX_BODY} bytes; publish in several requests")


async def _body(receive: Receive) -> bytes | None:
    """The whole body, None where the client left."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            chunks, complete = await read_body(receive, MAX_BODY)
    except TimeoutError:
        raise _Rejected(408, f"the body did not arrive within {BODY_TIMEOUT:.0f} s") from None
    if chunks is None:
        return None
    if not complete:
        raise _too_large()
    return b"".join(chunks)
