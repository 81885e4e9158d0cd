"""Every exception that harken raises, as one tree.

::

    HarkenError
    ├── InvalidURI (ValueError)         a string that is no URI, from a caller or a peer
    ├── InvalidFilter (ValueError)      a filter that breaks the schema
    ├── HubClosed                       published to, or listened on, a hub that has ended
    ├── RPCError                        a JSON-RPC error: what we answer, or what we were answered
    │   ├── InvalidMessage              bytes that are no JSON-RPC request or notification
    │   └── Refused                     client: the server refused `subscriptions/listen`
    ├── NeverAcknowledged               client: the stream ended without an acknowledgment
    ├── NothingHonored                  client: the server honours nothing of what is watched
    ├── ListenTimeout (TimeoutError)    client: no acknowledgment in time
    ├── ProtocolError                   client: the peer broke the protocol
    ├── ConnectionLost                  client: the channel to the server is gone
    └── PoolFull                        client: the caller's own HTTP client has no connection to spare
"""

from __future__ import annotations

__all__ = [
    "ConnectionLost",
    "HarkenError",
    "HubClosed",
    "InvalidFilter",
    "InvalidMessage",
    "InvalidURI",
    "ListenTimeout",
    "NeverAcknowledged",
    "NothingHonored",
    "PoolFull",
    "ProtocolError",
    "RPCError",
    "Refused",
]


class HarkenError(Exception):
    """The root of the tree."""


class InvalidURI(HarkenError, ValueError):
    """A string that is not an RFC 3986 URI (decision D7)."""


class InvalidFilter(HarkenError, ValueError):
    """A subscription filter that breaks the schema (clause R13)."""


class HubClosed(HarkenError):
    """The hub has ended: it takes no more events and no more subscriptions."""


class RPCError(HarkenError):
    """A JSON-RPC error.

    `code` is one that the specification defines (clause A5) and `data` is any JSON value or None.
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class InvalidMessage(RPCError):
    """Bytes that are no JSON-RPC request or notification.

    `id` is the request's id where it could be read (decision D14); `answerable` is False for a broken
    notification, which is never answered (clause R23).
    """

    def __init__(
        self, code: int, message: str, *, id: int | str | None = None, answerable: bool = True
    ) -> None:
        super().__init__(code, message)
        self.id = id
        self.answerable = answerable


class Refused(RPCError):
    """The server refused `subscriptions/listen` before any acknowledgment (clause R2).

    `status` is the HTTP status, None on stdio; it is the `code` too where the answer is no JSON-RPC error.
    `retry_after` is in seconds, None where the server names none.
    """

    def __init__(
        self,
        code: int,
        message: str,
        data: object = None,
        *,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(code, message, data)
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message if self.code == self.status else super().__str__()


class NeverAcknowledged(HarkenError):
    """The stream ended before any acknowledgment came (decision D11): final, don't retry."""


class NothingHonored(HarkenError):
    """The server honours nothing of what is watched (decision D10): asking again would change nothing."""


class ListenTimeout(HarkenError, TimeoutError):
    """No acknowledgment came in time (clause R26)."""


class ProtocolError(HarkenError):
    """The peer sent what the protocol forbids."""


class ConnectionLost(HarkenError):
    """The channel to the server broke or was closed."""


class PoolFull(HarkenError):
    """The caller's own HTTP client has no connection to spare: each subscription holds one while it lives."""
