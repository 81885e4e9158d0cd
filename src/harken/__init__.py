"""Subscriptions and notifications for MCP servers and clients.

`subscriptions/listen` of MCP revision 2026-07-28 on both transports (Streamable HTTP and stdio) and both
sides (server and client). The promise: never silently stale.
"""

from harken.client.connection import Connection
from harken.client.listen import connect, listen
from harken.client.subscription import Subscription
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
from harken.errors import (
    ConnectionLost,
    HarkenError,
    HubClosed,
    InvalidFilter,
    InvalidMessage,
    InvalidURI,
    ListenTimeout,
    NeverAcknowledged,
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
    "PoolFull",
    "PromptsListChanged",
    "ProtocolError",
    "RPCError",
    "Refused",
    "Request",
    "ResourceUpdated",
    "ResourcesListChanged",
    "Subscription",
    "ToolsListChanged",
    "__version__",
    "connect",
    "listen",
]
