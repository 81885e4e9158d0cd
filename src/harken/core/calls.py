"""The client's half of the wire: requests and notifications to bytes, what a server sends from bytes.

Reading is liberal where nothing can go wrong by it (`jsonrpc` is not looked at, an error may lack its
parts) and strict where it could: ids count by type and value (clause R5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from harken.core.wire import INTERNAL_ERROR, PROTOCOL_VERSION, RequestId, valid_id
from harken.errors import ProtocolError, RPCError

__all__ = [
    "NO_MESSAGE",
    "Error",
    "Malformed",
    "Message",
    "Notification",
    "Result",
    "ServerRequest",
    "decode_message",
    "encode_notification",
    "encode_request",
    "read_retry_after",
    "request_meta",
]


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification; `params` is whatever stood there, None where nothing did."""

    method: str
    params: object


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a request; `id` is None where the server gave none."""

    id: RequestId | None
    result: object


@dataclass(frozen=True, slots=True)
class Error:
    """The failure of a request; `id` is None where the server gave none (decision D14).

    `foreign` is whether the error is no JSON-RPC error, which has a code.
    """

    id: RequestId | None
    error: RPCError
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request from the server, which it must not send and which is never answered (clause R22)."""

    method: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A JSON object that is no message."""

    problem: str


Message = Notification | Result | Error | ServerRequest | Malformed
"""Anything that a server sends."""

NO_MESSAGE = "the server gave no message"
_LONGEST_DELAY = 10**9  # seconds; beyond it a number is no delay but a mistake

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.encode


def request_meta(client_info: Mapping[str, object]) -> dict[str, object]:
    """The `_meta` that goes with each request (clauses R24, H7 and T8)."""
    return {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": dict(client_info),
        "io.modelcontextprotocol/clientCapabilities": {},
    }


def encode_request(id: RequestId, method: str, params: Mapping[str, object]) -> bytes:
    """A request, without a newline in it (clause T1)."""
    return _encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def encode_notification(method: str, params: Mapping[str, object]) -> bytes:
    """A notification: no id (clause R23), without a newline in it (clause T1)."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params})


def decode_message(body: bytes) -> Message:
    """The one message in `body`.

    Raises ProtocolError where nobody can say what it was: not UTF-8, not JSON, or no object.
    """
    try:
        body.decode()  # msgspec lets bad UTF-8 pass where it skips
        value = _decode(body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the server sent what is no JSON in UTF-8 ({error})") from error
    if not isinstance(value, dict):
        raise ProtocolError("the server sent JSON that is no object")
    return _requested(value) if "method" in value else _answered(value)


def _requested(value: dict[str, object]) -> Message:
    method = value["method"]
    if not isinstance(method, str):
        return Malformed("method is no string")
    if "id" in value:
        return ServerRequest(method)
    return Notification(method, value.get("params"))


def _answered(value: dict[str, object]) -> Message:
    id = value.get("id")
    if id is not None and not valid_id(id):
        return Malformed("id is neither an integer nor a string")
    if "error" in value:
        error, foreign = _error(value["error"])
        return Error(id, error, foreign)  # type: ignore[arg-type]  # valid_id() has just said so
    if "result" in value:
        return Result(id, value["result"])  # type: ignore[arg-type]  # as above
    return Malformed("neither method, result nor error")


def _error(value: object) -> tuple[RPCError, bool]:
    fields = value if isinstance(value, dict) else {"message": value}
    code, message = fields.get("code"), fields.get("message")
    if foreign := not isinstance(code, int) or isinstance(code, bool):
        code = INTERNAL_ERROR
    if not isinstance(message, str):
        message = NO_MESSAGE
    return RPCError(code, message, fields.get("data")), foreign


def read_retry_after(data: object) -> float | None:
    """The delay in seconds that an error's data asks for (decision D9), None where it asks for none."""
    delay = data.get("retryAfter") if isinstance(data, dict) else None
    if isinstance(delay, int | float) and not isinstance(delay, bool) and 0 <= delay <= _LONGEST_DELAY:
        return float(delay)
    return None
