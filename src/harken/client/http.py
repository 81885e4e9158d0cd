"""Subscriptions over Streamable HTTP: a request is a POST, a subscription a response that stays open."""

from __future__ import annotations

import base64
import logging
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache

import anyio
import anyio.abc

from harken.client.connection import Connection, Options, Outgoing
from harken.client.subscription import Subscription
from harken.core.calls import NO_MESSAGE, Error, Malformed, Message, Result, decode_message, read_retry_after
from harken.core.demux import Demux, Ending, Stream
from harken.core.sse import Comment, Oversized, SSEDecoder
from harken.core.wire import PROTOCOL_VERSION
from harken.errors import ConnectionLost, HarkenError, PoolFull, ProtocolError, Refused, RPCError

try:
    import httpx2
except ImportError as _missing:
    raise ImportError(
        "listening over HTTP needs httpx2: install it with pip install 'harken[http]'"
    ) from _missing

__all__ = ["HTTPConnection", "Token"]

logger: logging.Logger = logging.getLogger("harken.client")

Token = str | Callable[[], Awaitable[str]]
"""A bearer token, or what brings a fresh one for each request."""

# How long to wait for a place in the pool of the user's own client, in seconds.
_POOL_WAIT = 5.0
_MAX_REDIRECTS = 5
# How much of an answer that is no message an error repeats, in characters.
_SHOWN = 200

# H3: the parameter that `Mcp-Name` repeats.
_NAMED = {"resources/read": "uri", "tools/call": "name", "prompts/get": "name"}
_PLAIN = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_SENTINEL = re.compile(r"=\?base64\?.*\?=")
_TOKEN = re.compile(r"[!-~]+")
# What OpenSSL calls an answer that is no TLS, in the words of its versions.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})


@dataclass(slots=True)
class _Reader:
    """The task that follows one response."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)


class HTTPConnection(Connection):
    """A connection to one MCP endpoint. Nothing is sent until the first request."""

    shared = False

    def __init__(
        self,
        url: str,
        options: Options,
        *,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        super().__init__(options)
        try:
            self._url = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise ValueError(f"not a URL: {error}") from error
        if not self._url.host or not 0 < (self._url.port or 80) < 65536:
            raise ValueError(f"not a URL with a host and a port that can be: {_shown(self._url)!r}")
        self._token = token
        self.renewable: bool = callable(token)
        self._headers = dict(headers or {})
        self._given_client = http_client
        self._client: httpx2.AsyncClient
        self._readers: dict[object, _Reader] = {}

    async def _connect(self) -> None:
        if self._given_client is not None:
            self._client = self._given_client
            return
        # One stream holds one connection, so the pool has no limit; the ack timeout bounds the rest.
        self._client = httpx2.AsyncClient(
            verify=_ssl_context(),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            timeout=None,
        )

    def _launch(self, tasks: anyio.abc.TaskGroup) -> None:
        pass  # each response has its own task

    async def _disconnect(self) -> None:
        readers = list(self._readers.values())
        for reader in readers:
            reader.scope.cancel()
        for reader in readers:
            await reader.done.wait()
        if self._given_client is None:
            await self._client.aclose()

    def _demux(self) -> Demux:
        return Demux(self.ignored)  # each response is a channel of its own

    async def _call(self, request: Outgoing) -> Result | Error:
        try:
            async with self._post(await self._request_headers(request), request.body) as response:
                async with aclosing(self._messages(response)) as messages:
                    async for message in messages:
                        if isinstance(message, Error) and message.id in (None, request.id):  # D14
                            return message
                        if isinstance(message, Result) and message.id == request.id:
                            return message
                        logger.debug("ignored in the answer to %s: %.200r", request.method, message)
                raise _no_answer(response)
        except httpx2.HTTPError as error:
            raise self._broken(error) from error

    async def _notify(self, method: str, body: bytes) -> None:
        headers = await self._request_headers(Outgoing(0, method, {}))
        try:
            async with self._post(headers, body) as response:
                if response.status_code >= 400:
                    logger.warning("%s was answered with HTTP %d", method, response.status_code)
        except (httpx2.HTTPError, ConnectionLost, Refused) as error:
            logger.warning("%s was not sent: %s", method, error)  # H12: never fatal

    async def _start(
        self, subscription: Subscription, stream: Stream, request: Outgoing, demux: Demux
    ) -> None:
        assert self._tasks is not None
        headers = await self._request_headers(request)
        reader = self._readers[stream.id] = _Reader()
        self._tasks.start_soon(self._run, reader, subscription, stream, demux, headers, request.body)

    async def _stop(self, subscription: Subscription, stream: Stream) -> None:
        """R16: closing the response is the cancellation."""
        reader = self._readers.pop(stream.id, None)
        if reader is not None:
            reader.scope.cancel()
            await reader.done.wait()

    async def _run(
        self,
        reader: _Reader,
        subscription: Subscription,
        stream: Stream,
        demux: Demux,
        headers: Mapping[str, str],
        body: bytes,
    ) -> None:
        try:
            with reader.scope:
                await self._follow(subscription, stream, demux, headers, body)
                demux.end(stream, Ending.LOST, ConnectionLost("the stream closed without a result"))  # R18
        except httpx2.HTTPError as error:
            demux.end(stream, Ending.LOST, self._broken(error))
        except Refused as error:
            stream.fail(error)
        except (ConnectionLost, PoolFull) as error:
            demux.end(stream, Ending.LOST, error)
        except ProtocolError as error:
            demux.end(stream, Ending.PROTOCOL_ERROR, error)
        finally:
            subscription.wake()
            reader.done.set()

    async def _follow(
        self,
        subscription: Subscription,
        stream: Stream,
        demux: Demux,
        headers: Mapping[str, str],
        body: bytes,
    ) -> None:
        async with self._post(headers, body) as response:
            async with aclosing(self._messages(response, subscription)) as messages:
                async for message in messages:
                    self._receive(response, subscription, stream, demux, message)
                    if stream.ending is not None:
                        return
            if response.status_code >= 400 or not _is_stream(response):
                raise _no_answer(response)

    def _receive(
        self,
        response: httpx2.Response,
        subscription: Subscription,
        stream: Stream,
        demux: Demux,
        message: Message,
    ) -> None:
        if isinstance(message, Error) and message.id is None:
            message = Error(stream.id, message.error)  # D14
        if isinstance(message, Error) and message.id == stream.id and stream.honored is None:
            message = Error(message.id, _refusal(response, message.error))
        outcome = demux.receive(message)
        if isinstance(outcome, Stream):
            subscription.wake()
        else:
            self._note(outcome, message)

    async def _messages(
        self, response: httpx2.Response, subscription: Subscription | None = None
    ) -> AsyncGenerator[Message, None]:
        """What a response says, whichever of the two forms it has (clause H12)."""
        if not _is_stream(response):
            yield await self._message(response)
            return
        decoder = SSEDecoder(self._options.max_event_bytes)
        async with _reading(response) as body:
            async for data in body:
                for item in decoder.feed(data):
                    if isinstance(item, Oversized):
                        # F24: it may have been the one notification
                        raise ConnectionLost(f"the server sent an event of more than {item.cap} bytes")
                    if isinstance(item, Comment):
                        if subscription is not None:
                            subscription.kept_alive()  # H11
                    elif item.type == "message" and item.data:
                        yield _decode_event(item.data)

    async def _message(self, response: httpx2.Response) -> Message:
        """The one message that is a response's body."""
        body = bytearray()
        async with _reading(response) as chunks:
            async for data in chunks:
                body += data
                if len(body) > self._options.max_event_bytes:
                    raise ConnectionLost(
                        f"the server's answer has more than {self._options.max_event_bytes} bytes"
                    )
        try:
            message = decode_message(bytes(body))
        except ProtocolError:
            message = Malformed("no JSON")
        failed = response.status_code >= 400
        if isinstance(message, Error) and not (failed and message.foreign):
            return message
        if isinstance(message, Result) and not failed:
            return message
        raise _no_answer(response, _text(bytes(body), message))

    async def _request_headers(self, request: Outgoing) -> dict[str, str]:
        """H3, besides what the client's own headers say. Raises what the token's source raises."""
        headers = {
            **self._headers,
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",  # a compressed stream is one that somebody buffers
            "Content-Type": "application/json",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
            "Mcp-Method": request.method,
        }
        name = request.params.get(_NAMED.get(request.method, ""))
        if isinstance(name, str):
            headers["Mcp-Name"] = encode_header(name)
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else await self._token()
            if not _TOKEN.fullmatch(token):
                raise ValueError("the token holds characters that no header can carry")
            headers["Authorization"] = f"Bearer {token}"  # A9: never in the URL
        return headers

    @asynccontextmanager
    async def _post(self, headers: Mapping[str, str], body: bytes) -> AsyncIterator[httpx2.Response]:
        """The response to one POST, its body still to be read; redirects stay within the origin."""
        if self._client.is_closed:
            raise ConnectionLost("the http_client has been closed")
        url = self._url
        for _ in range(_MAX_REDIRECTS):
            response = await self._send(url, headers, body)
            try:
                if not response.has_redirect_location:
                    yield response
                    return
                url = _redirected(url, response)
            finally:
                await response.aclose()
        raise Refused(response.status_code, "the server redirects too often", status=response.status_code)

    async def _send(self, url: httpx2.URL, headers: Mapping[str, str], body: bytes) -> httpx2.Response:
        pool = None if self._given_client is None else _POOL_WAIT
        request = self._client.build_request(
            "POST",
            url,
            content=body,
            headers=headers,
            # A quiet stream is no dead one; what bounds the rest are the callers' own timeouts.
            timeout=httpx2.Timeout(None, pool=pool),
        )
        request.headers.pop("Connection", None)  # F57: illegal on HTTP/2, needless on HTTP/1.1
        auth = None if self._token is not None else httpx2.USE_CLIENT_DEFAULT
        try:
            return await self._client.send(request, stream=True, auth=auth, follow_redirects=False)
        except httpx2.PoolTimeout as error:
            raise PoolFull(
                "the http_client has no free connection, and each subscription holds one while it lives: "
                "give it limits=httpx2.Limits(max_connections=None)"
            ) from error

    def _broken(self, error: httpx2.HTTPError) -> ConnectionLost:
        url = _shown(self._url)
        if isinstance(error, httpx2.ConnectError):
            return ConnectionLost(f"cannot reach {url}: {_unreachable(error, url)}")
        return ConnectionLost(f"the connection to {url} failed: {str(error) or type(error).__name__}")


@cache
def _ssl_context() -> ssl.SSLContext:
    """One for all connections: each of its own would cost 30 ms and nearly a megabyte."""
    return httpx2.create_ssl_context()


@asynccontextmanager
async def _reading(response: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """A response's body, piece by piece.

    Where it is left early, the read is cancelled: closing the outermost of httpx2's generators would leave
    the inner ones to the garbage collector, of which trio complains.
    """
    body = response.aiter_bytes()
    try:
        yield body
    finally:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                async for _ in body:
                    pass
            except httpx2.HTTPError:
                pass  # nobody is interested any more


def encode_header(value: str) -> str:
    """`value` as a header can carry it: itself, or in the Base64 form (clause H3)."""
    if _PLAIN.fullmatch(value) and not _SENTINEL.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def parse_retry_after(value: str | None) -> float | None:
    """The delay in seconds of a `Retry-After` header, a number or a date; None where there is none."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return read_retry_after({"retryAfter": int(value)})
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _decode_event(data: bytes) -> Message:
    try:
        return decode_message(data)
    except ProtocolError as error:
        raise ConnectionLost(str(error)) from error  # F24: as one over the cap


def _is_stream(response: httpx2.Response) -> bool:
    content_type: str = response.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower() == "text/event-stream"


def _redirected(url: httpx2.URL, response: httpx2.Response) -> httpx2.URL:
    """Where a redirect leads, within the origin: elsewhere the token must not go (clause A9)."""
    location: str = response.headers["location"]
    try:
        target = url.join(location)
        within = target.origin == url.origin
    except (httpx2.InvalidURL, ValueError):
        within = False
    if within and response.status_code in (307, 308):
        return target
    message = f"the server redirects to {location.partition('?')[0][:_SHOWN]}: use that URL if you trust it"
    raise Refused(response.status_code, message, status=response.status_code)


def _refusal(response: httpx2.Response, error: RPCError) -> Refused:
    retry_after = parse_retry_after(response.headers.get("retry-after"))
    if retry_after is None:
        retry_after = read_retry_after(error.data)
    return Refused(
        error.code, error.message, error.data, status=response.status_code, retry_after=retry_after
    )


def _text(body: bytes, message: Message) -> str:
    """What a body that is no message says: its `error` where that is a text, such as a gateway's, or all."""
    if isinstance(message, Error) and message.error.message != NO_MESSAGE:
        return message.error.message
    return body.decode(errors="replace")


def _no_answer(response: httpx2.Response, text: str = "") -> HarkenError:
    """What to raise for a response that holds no message: its status and `text` are then all there is."""
    status = response.status_code
    if status < 400:
        if _is_stream(response):
            return ConnectionLost("the server closed the stream before it answered")
        content_type = response.headers.get("content-type", "no content type")
        return ProtocolError(f"the server answered with HTTP {status} and {content_type}, and no message")
    line = f"HTTP {status} {response.reason_phrase}".rstrip()
    text = " ".join(text.split())[:_SHOWN]
    if line.casefold().endswith(text.casefold()):
        text = ""  # it says the same again
    challenge = response.headers.get("www-authenticate", "")[:_SHOWN]
    return _refusal(response, RPCError(status, ": ".join(part for part in (line, challenge, text) if part)))


def _unreachable(error: httpx2.ConnectError, url: str) -> str:
    """Why there is no connection, and what may help; httpx2 itself says no more than that attempts failed."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused; is the server running?"
        if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
            return f"its port does not speak TLS; try http{url.removeprefix('https')}"
    told = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    return told[-1] if told else str(error) or type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that led to it, the innermost last."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__


def _shown(url: httpx2.URL) -> str:
    """A URL without what may be secret in it."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))
