"""Subscriptions and notifications for MCP servers and clients.

`subscriptions/listen` of MCP revision 2026-07-28 on both transports (Streamable HTTP and stdio) and both
sides (server and client). The promise: never silently stale.
"""

from harken.client.connection import Connection
from harken.client.listen import connect, listen
from harken.client.status import WatchState, WatchStatus
from harken.client.subscription import Subscription
from harken.client.watch import Resync, Watch, watch
from harken.core.demux import Ending
from harken.core.events import (
    Event,
    Kind,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.core.retry import RetryPolicy
from harken.errors import (
    ConnectionLost,
    HarkenError,
    HubClosed,
    InvalidFilter,
    InvalidMessage,
    InvalidURI,
    ListenTimeout,
    NeverAcknowledged,
    NothingHonored,
    PoolFull,
    ProtocolError,
    Refused,
    RPCError,
)
from harken.server.hub import Hub
from harken.server.limits import Limits
from harken.server.methods import Handler, Request
from harken.version import __version__

__all__ = [
    "Connection",
    "ConnectionLost",
    "Ending",
    "Event",
    "Filter",
    "Handler",
    "HarkenError",
    "Hub",
    "HubClosed",
    "InvalidFilter",
    "InvalidMessage",
    "InvalidURI",
    "Kind",
    "Limits",
    "ListenTimeout",
    "NeverAcknowledged",
    "NothingHonored",
    "PoolFull",
    "PromptsListChanged",
    "ProtocolError",
    "RPCError",
    "Refused",
    "Request",
    "ResourceUpdated",
    "ResourcesListChanged",
    "Resync",
    "RetryPolicy",
    "Subscription",
    "ToolsListChanged",
    "Watch",
    "WatchState",
    "WatchStatus",
    "__version__",
    "connect",
    "listen",
    "watch",
]
