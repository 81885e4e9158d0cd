"""Subscriptions and notifications for MCP servers and clients.

`subscriptions/listen` of MCP revision 2026-07-28 on both transports (Streamable HTTP and stdio) and both
sides (server and client). The promise: never silently stale.
"""

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
