"""Streamable HTTP: an ASGI app, alone or around another one.

It takes `subscriptions/listen` and `server/discover` (and, alone, whatever else the hub answers); around an
app everything else goes through untouched (clause H1). The same verbs as in `server/stdio.py`: check, answer,
listen.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from harken.core.events import ALL_KINDS
from harken.core.filters import Filter
from harken.core.wire import (
    DISCOVER,
    INTERNAL_ERROR,
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
    peek_method,
    read_meta,
)
from harken.errors import InvalidFilter, InvalidMessage, RPCError
from harken.server import around
from harken.server.asgi import ASGIApp, Receive, Scope, Send, read_body, replay
from harken.server.headers import (
    PREFLIGHT,
    Headers,
    accepts_sse,
    check_body,
    check_names,
    check_present,
    cors,
    host_allowed,
    origin_allowed,
)
from harken.server.http_stream import serve_stream
from harken.server.methods import Request

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["Endpoint"]

_JSON = (b"content-type", b"application/json")
_OURS = (LISTEN, DISCOVER)

Accepted = tuple[RequestId, Filter, list[tuple[bytes, bytes]]]
"""A listen that was accepted: its id, what is honoured, and headers for the answer."""


class Endpoint:
    """The ASGI app of `Hub.asgi()`."""

    def __init__(
        self,
        hub: Hub,
        app: ASGIApp | None,
        *,
        path: str | None,
        allowed_origins: Collection[str] | None,
        allowed_hosts: Collection[str] | None,
    ) -> None:
        self._hub = hub
        self._inner = None if app is None else around.Inner(app)
        self._app = app
        self._path = None if path is None else "/" + path.strip("/")
        self._origins = check_names("allowed_origins", allowed_origins)
        self._hosts = check_names("allowed_hosts", allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await around.lifespan(self._hub, self._app, scope, receive, send)
        elif scope["type"] != "http" or not self._is_endpoint(scope):
            await self._elsewhere(scope, receive, send)
        elif self._app is not None and scope["method"] != "POST":  # H1
            await self._app(scope, receive, send)
        else:
            accepted = await self._post(scope, receive, send)
            if accepted is not None:  # nothing of the request but this is kept as long as the stream lives
                id, honored, headers = accepted
                await serve_stream(self._hub, id, honored, scope, receive, send, headers)

    def _is_endpoint(self, scope: Scope) -> bool:
        if self._path is None:
            return True
        path = scope["path"].rstrip("/")
        below_mount = path.removeprefix(scope.get("root_path", "").rstrip("/"))
        return self._path.rstrip("/") in {path, below_mount}

    async def _elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _respond(send, 404, b"there is only %b here\n" % (self._path or "/").encode(), [])
        else:
            await send({"type": "websocket.close", "code": 1000})

    # -- One request

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> Accepted | None:
        """Answer a request; an accepted listen is the caller's to serve, before anything is awaited."""
        headers = Headers(scope["headers"])
        origin = headers.get("origin")
        if self._app is None and (refusal := self._refusal(scope["method"], headers)) is not None:
            await _respond(send, refusal[0], b"", [*refusal[1], *self._cors(origin)])
            return None
        chunks, complete = await read_body(receive, self._hub.limits.max_body)
        if chunks is None:
            return None  # the client left before its request was whole
        body = b"".join(chunks)
        readable = complete and len(body) <= self._hub.limits.max_body
        if self._app is not None and not self._is_ours(headers, body, readable):
            await self._app(scope, replay(chunks, complete, receive), send)
            return None
        if self._app is not None and (refusal := self._refusal("POST", headers)) is not None:
            await _respond(send, refusal[0], b"", [*refusal[1], *self._cors(origin)])
            return None
        answer_headers = cors(origin)
        if not readable:
            error = RPCError(INVALID_REQUEST, f"a request may have {self._hub.limits.max_body} bytes")
            await _respond_error(send, None, error, answer_headers, status=413)
            return None
        await self._hub.start_lazily()
        inbound = None
        try:
            inbound = decode(body)
            meta = self._check(headers, inbound)
            if meta is None:
                await _respond(send, 202, b"", answer_headers)  # H9
            elif inbound.method == LISTEN:
                return await self._accept(scope, send, headers, inbound)
            else:
                await self._answer(scope, send, inbound, meta, body, answer_headers)
        except InvalidMessage as error:
            await _respond_error(send, error.id, error, answer_headers)
        except RPCError as error:
            await _respond_error(send, None if inbound is None else inbound.id, error, answer_headers)
        return None

    def _refusal(self, method: str, headers: Headers) -> tuple[int, list[tuple[bytes, bytes]]] | None:
        """The status with which a request is refused before its body is read, None where it isn't."""
        origin = headers.get("origin")
        if origin is not None and not origin_allowed(origin, self._origins):
            return 403, []  # H8
        if not host_allowed(headers.get("host"), self._hosts):
            return 403, []
        if method == "OPTIONS" and headers.get("access-control-request-method") is not None:
            return 204, list(PREFLIGHT.items())  # H14: before any authentication
        if method != "POST":
            return 405, [(b"allow", b"POST")]  # H1
        content_type = headers.get("content-type")
        if content_type is not None and content_type.partition(";")[0].strip().lower() != "application/json":
            return 415, []
        return None

    def _cors(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """The CORS headers for a page at `origin`, which may be a foreign one (clause H14)."""
        return cors(origin if origin is not None and origin_allowed(origin, self._origins) else None)

    def _is_ours(self, headers: Headers, body: bytes, readable: bool) -> bool:
        """Whether the hub answers this instead of the app: its header says so, or its body (clause A10)."""
        return headers.get("mcp-method") in _OURS or (readable and peek_method(body) in _OURS)

    def _check(self, headers: Headers, inbound: Inbound) -> Meta | None:
        """What the request says of its client; None for a notification, which is accepted and does nothing.

        The order of the checks is clause H4's.
        """
        if inbound.is_notification:
            if inbound.method in _OURS:
                raise RPCError(INVALID_REQUEST, f"{inbound.method} needs an id")  # D16
            return None
        if inbound.method in {"initialize", "ping"}:
            self._hub.methods.check(inbound)  # A7: what an older client sends has none of the headers
        check_present(headers, inbound)
        meta = read_meta(inbound.params)
        check_body(headers, inbound, meta.version)
        check_version(meta.version)
        if inbound.method == LISTEN:
            if not self._hub.subscriptions:  # D3
                raise RPCError(METHOD_NOT_FOUND, f"{LISTEN} is switched off here")
        else:
            self._hub.methods.check(inbound)
        return meta

    async def _answer(
        self,
        scope: Scope,
        send: Send,
        inbound: Inbound,
        meta: Meta,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        assert inbound.id is not None
        if self._inner is not None:
            answered = await self._inner.discover(self._hub, scope, body)
            if answered is not None:
                await around.pass_on(answered, inbound.id, send, headers)
                return
        answer = await self._hub.methods.answer(
            Request(inbound.id, inbound.method, inbound.params or {}, meta)
        )
        if isinstance(answer, RPCError):
            raise answer
        await _respond(send, 200, answer, [_JSON, *headers])

    async def _accept(self, scope: Scope, send: Send, headers: Headers, inbound: Inbound) -> Accepted | None:
        assert inbound.id is not None
        params = inbound.params or {}
        extra = cors(headers.get("origin"))
        if not accepts_sse(headers.get("accept")):
            error = RPCError(INVALID_REQUEST, f"{LISTEN} answers with text/event-stream; accept it")
            await _respond_error(send, inbound.id, error, extra, status=406)  # H3
            return None
        try:
            requested = Filter.parse(params.get("notifications"))
        except InvalidFilter as error:
            raise RPCError(INVALID_PARAMS, str(error)) from error  # R13
        within = ALL_KINDS
        if self._inner is not None:
            asked = await self._inner.kinds(self._hub, scope, params["_meta"])
            if isinstance(asked, around.Answer):
                await around.pass_on(asked, inbound.id, send, extra)
                return None
            within = asked
        # Nothing is awaited from here until the stream has joined: no second one slips in, no drain begins.
        self._hub.admit(requested)
        return inbound.id, requested.narrow(self._hub.kinds(within)), extra


async def _respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


async def _respond_error(
    send: Send,
    id: RequestId | None,
    error: RPCError,
    headers: list[tuple[bytes, bytes]],
    status: int | None = None,
) -> None:
    extra: list[tuple[bytes, bytes]] = [_JSON, *headers]
    data: Any = error.data
    if isinstance(data, dict) and "retryAfter" in data:
        extra.append((b"retry-after", str(data["retryAfter"]).encode()))  # D9
    await _respond(send, status or _status(error), encode_error(id, error), extra)


def _status(error: RPCError) -> int:
    """The HTTP status that goes with an error (clauses H4 to H7, decision D9)."""
    if error.code == METHOD_NOT_FOUND:
        return 404
    if error.code != INTERNAL_ERROR:
        return 400
    reason = error.data.get("reason") if isinstance(error.data, dict) else None
    if reason is None:
        return 500
    return 429 if reason == "quota" else 503
