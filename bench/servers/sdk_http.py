"""The official SDK's server on uvicorn. Arguments: PORT SIDE_PORT.

Its cap of 1,024 subscriptions has no public setting, so the handler is registered anew with a larger one.
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp_types import SubscriptionsListenRequestParams
from side_door import open_side_door


async def main(port: int, side_port: int) -> None:
    bus = InMemorySubscriptionBus()
    mcp = MCPServer("bench", subscriptions=bus, log_level="ERROR")
    mcp._lowlevel_server.add_request_handler(
        "subscriptions/listen",
        SubscriptionsListenRequestParams,
        ListenHandler(bus, max_subscriptions=100_000),
    )
    server = uvicorn.Server(
        uvicorn.Config(
            mcp.streamable_http_app(), port=port, http="httptools", log_level="error", access_log=False
        )
    )
    door = await open_side_door(
        side_port, lambda uri: bus.publish(ResourceUpdated(uri=uri)), lambda: bus.publish(ToolsListChanged())
    )
    async with door:
        await server.serve()


with asyncio.Runner(loop_factory=uvicorn.Config(None, loop="uvloop").get_loop_factory()) as runner:
    runner.run(main(int(sys.argv[1]), int(sys.argv[2])))
