"""Subscriptions and notifications for MCP servers and clients.

`subscriptions/listen` of MCP revision 2026-07-28 on both transports (Streamable HTTP and stdio) and both
sides (server and client). The promise: never silently stale.
"""

from harken.version import __version__

__all__ = ["__version__"]
