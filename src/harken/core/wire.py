"""JSON-RPC messages to and from bytes.

Rules of this file:

- What comes in is checked as UTF-8 whole, and its id is decoded as an integer or a string, never kept raw:
  what is echoed later was encoded here.
- What goes out on a subscription is a *head* and a tail. The tail is the subscription's id with the three
  braces that close the message, encoded once a subscription; the head ends where the id belongs, so one event
  is encoded once, whoever hears it. Acknowledgment, notifications and result all have this shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import msgspec

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.errors import InvalidMessage, RPCError

__all__ = [
    "ACKNOWLEDGED",
    "CANCELLED",
    "DISCOVER",
    "HEADER_MISMATCH",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "LISTEN",
    "LISTS",
    "LIST_CHANGED_HEADS",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "PROTOCOL_VERSION",
    "RESOURCE_UPDATED",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "SUPPORTED_VERSIONS",
    "UNSUPPORTED_VERSION",
    "Inbound",
    "Meta",
    "RequestId",
    "acknowledged_head",
    "cancelled_head",
    "check_version",
    "decode",
    "encode_error",
    "encode_id",
    "encode_result",
    "event_head",
    "peek_method",
    "read_meta",
    "resource_updated_head",
    "result_head",
    "valid_id",
]

T = TypeVar("T")

PROTOCOL_VERSION = "2026-07-28"
SUPPORTED_VERSIONS = (PROTOCOL_VERSION,)

LISTEN = "subscriptions/listen"
DISCOVER = "server/discover"
CANCELLED = "notifications/cancelled"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
RESOURCE_UPDATED = "notifications/resources/updated"
LISTS: dict[str, Event] = {
    "notifications/tools/list_changed": ToolsListChanged(),
    "notifications/prompts/list_changed": PromptsListChanged(),
    "notifications/resources/list_changed": ResourcesListChanged(),
}
"""The notifications without parameters, and what each says."""

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

# A5: the codes that the specification defines, and no others.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

MAX_ID_BYTES = 1024  # of a string id in UTF-8
MAX_ID_DIGITS = 4300  # where Python itself stops turning digits into integers, and msgspec with it
_ID_BOUND = 10**MAX_ID_DIGITS

RequestId = int | str
"""A JSON-RPC id as this protocol allows it: an integer or a string; `1` is not `"1"`."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """A request, or a notification where `id` is None."""

    id: RequestId | None
    method: str
    params: dict[str, object] | None

    @property
    def is_notification(self) -> bool:
        """Whether nobody waits for an answer (clause R23)."""
        return self.id is None


@dataclass(frozen=True, slots=True)
class Meta:
    """What each request says of its client (clause R24): nothing of it outlives the request."""

    version: str
    capabilities: Mapping[str, object]
    client_info: Mapping[str, object] | None = None


class _Envelope(msgspec.Struct):
    jsonrpc: object = msgspec.UNSET
    id: object = msgspec.UNSET
    method: object = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Method(msgspec.Struct):
    method: object = None


_method_decoder = msgspec.json.Decoder(_Method)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_value_decoder = msgspec.json.Decoder()
_encode = msgspec.json.encode


def decode(body: bytes) -> Inbound:
    """The one request or notification in `body`.

    Raises InvalidMessage for anything else (clauses H10 and T9): `-32700` where it is no JSON, `-32600` where
    it is no message, `-32602` where its parameters are no object.
    """
    envelope = _open(body)
    id = None if envelope.id is msgspec.UNSET else envelope.id
    if (id is not None and not valid_id(id)) or envelope.id is None:
        # D14: such an id can't be echoed, so the error has none.
        raise InvalidMessage(INVALID_REQUEST, "id must be an integer or a string of at most 1024 bytes")  # T6
    request_id: RequestId | None = id  # type: ignore[assignment]  # valid_id() has just said so
    if envelope.method is msgspec.UNSET:
        if envelope.result is not msgspec.UNSET or envelope.error is not msgspec.UNSET:
            raise InvalidMessage(INVALID_REQUEST, "a response was sent where only requests are taken")
        raise InvalidMessage(INVALID_REQUEST, "method is missing", id=request_id)
    answerable = request_id is not None
    if envelope.jsonrpc != "2.0" or not isinstance(envelope.method, str):
        problem = 'jsonrpc must be "2.0"' if envelope.jsonrpc != "2.0" else "method must be a string"
        raise InvalidMessage(INVALID_REQUEST, problem, id=request_id, answerable=answerable)
    if envelope.params is msgspec.UNSET:
        return Inbound(request_id, envelope.method, None)
    params = _value(envelope.params, request_id)
    if not isinstance(params, dict):
        raise InvalidMessage(INVALID_PARAMS, "params must be an object", id=request_id, answerable=answerable)
    return Inbound(request_id, envelope.method, params)


def _open(body: bytes) -> _Envelope:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(PARSE_ERROR, f"the message is not UTF-8 (at byte {error.start})") from error
    try:
        return _read(_envelope_decoder, body)
    except msgspec.ValidationError as error:
        first = body.lstrip()[:1]
        what = "batches are not supported" if first == b"[" else "a message must be an object"
        if first == b"{":
            what = f"the message can't be read ({error})"  # a number beyond the caps, such as the id
        raise InvalidMessage(INVALID_REQUEST, what) from error


def _value(raw: msgspec.Raw, id: RequestId | None) -> object:
    try:
        return _read(_value_decoder, raw)
    except msgspec.ValidationError as error:  # JSON, but a number beyond what can be read
        what = f"params can't be read ({error})"
        raise InvalidMessage(INVALID_PARAMS, what, id=id, answerable=id is not None) from error


def _read(decoder: msgspec.json.Decoder[T], text: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise  # well-formed, so what is wrong is the caller's to say
    except msgspec.DecodeError as error:
        raise InvalidMessage(PARSE_ERROR, f"the message is not JSON ({error})") from error
    except RecursionError as error:
        raise InvalidMessage(PARSE_ERROR, "the message is nested too deeply") from error


def peek_method(body: bytes) -> str | None:
    """The method that `body` names, None where it names none: for routing, without a look at the rest."""
    try:
        method = _method_decoder.decode(body).method
    except (msgspec.DecodeError, RecursionError):
        return None
    return method if isinstance(method, str) else None


def valid_id(id: object) -> bool:
    """Whether `id` may name a request (clause T6): an integer or a string, within the caps."""
    if isinstance(id, str):
        return len(id) <= MAX_ID_BYTES and len(id.encode()) <= MAX_ID_BYTES
    return isinstance(id, int) and not isinstance(id, bool) and -_ID_BOUND < id < _ID_BOUND


def read_meta(params: Mapping[str, object] | None) -> Meta:
    """The request's own `_meta` (clause R24).

    Raises RPCError `-32602` for what is missing (clauses H7 and T8).
    """
    meta = (params or {}).get("_meta")
    if not isinstance(meta, dict):
        raise RPCError(INVALID_PARAMS, "params._meta is missing")
    version, capabilities = meta.get(_VERSION_KEY), meta.get(_CAPABILITIES_KEY)
    if not isinstance(version, str):
        raise RPCError(INVALID_PARAMS, f"params._meta[{_VERSION_KEY!r}] must be a string")
    if not isinstance(capabilities, dict):
        raise RPCError(INVALID_PARAMS, f"params._meta[{_CAPABILITIES_KEY!r}] must be an object")
    client_info = meta.get(_CLIENT_INFO_KEY)
    if client_info is not None and not isinstance(client_info, dict):
        raise RPCError(INVALID_PARAMS, f"params._meta[{_CLIENT_INFO_KEY!r}] must be an object")
    return Meta(version, capabilities, client_info)


def check_version(version: str) -> None:
    """Raises RPCError `-32022` for a version that we don't speak (clauses H5 and T8)."""
    if version not in SUPPORTED_VERSIONS:
        raise RPCError(
            UNSUPPORTED_VERSION,
            f"protocol version {version[:64]!r} is not supported",
            {"supported": list(SUPPORTED_VERSIONS), "requested": version},
        )


def encode_id(id: RequestId) -> bytes:
    """The id as JSON: the type and value that came in go out (clause R4)."""
    return _encode(id) if isinstance(id, str) else str(id).encode()


def encode_result(id: RequestId, result: Mapping[str, object]) -> bytes:
    """A response with a result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode_id(id), _encode(result))


def encode_error(id: RequestId | None, error: RPCError) -> bytes:
    """A response with an error; without an id where the request's could not be read (decision D14)."""
    body: dict[str, object] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    if id is None:
        return b'{"jsonrpc":"2.0","error":%b}' % _encode(body)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (encode_id(id), _encode(body))


_TAGGED = b'"_meta":{"%b":' % SUBSCRIPTION_ID.encode()  # R4
_NOTIFICATION = b'{"jsonrpc":"2.0","method":"%b","params":{%b' + _TAGGED

LIST_CHANGED_HEADS: dict[type[Event], bytes] = {
    type(event): _NOTIFICATION % (method.encode(), b"") for method, event in LISTS.items()
}
"""The head of each notification without parameters; `params` is an object all the same (clause R23)."""


def resource_updated_head(uri: str) -> bytes:
    """The head of `notifications/resources/updated` for `uri`, spelled as given."""
    return _NOTIFICATION % (RESOURCE_UPDATED.encode(), b'"uri":%b,' % _encode(uri))


def event_head(event: Event) -> bytes:
    """The head of the notification that tells of `event`."""
    if isinstance(event, ResourceUpdated):
        return resource_updated_head(event.uri)
    return LIST_CHANGED_HEADS[type(event)]


def acknowledged_head(honored: Filter) -> bytes:
    """The head of `notifications/subscriptions/acknowledged` (clause R3)."""
    return _NOTIFICATION % (ACKNOWLEDGED.encode(), b'"notifications":%b,' % _encode(honored.to_wire()))


def cancelled_head(id: bytes) -> bytes:
    """The head of `notifications/cancelled` from a server, for decision D1's option alone (clause R27)."""
    return _NOTIFICATION % (CANCELLED.encode(), b'"requestId":%b,' % id)


def result_head(id: bytes, server_info: Mapping[str, str]) -> bytes:
    """The head of the listen request's result, the graceful end (clause R14)."""
    return b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete",%b' % (
        id,
        _result_meta(**server_info),
    )


@lru_cache(maxsize=64)
def _result_meta(**server_info: str) -> bytes:
    return b'"_meta":{"%b":%b,"%b":' % (
        SERVER_INFO.encode(),
        _encode(server_info),
        SUBSCRIPTION_ID.encode(),
    )
