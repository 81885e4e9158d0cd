"""A hub alone on uvicorn. Arguments: PORT SIDE_PORT."""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from side_door import open_side_door

from harken import Hub, ResourceUpdated, ToolsListChanged


async def main(port: int, side_port: int) -> None:
    hub = Hub()
    server = uvicorn.Server(
        uvicorn.Config(hub.asgi(), port=port, http="httptools", log_level="error", access_log=False)
    )
    door = await open_side_door(
        side_port, lambda uri: hub.publish(ResourceUpdated(uri)), lambda: hub.publish(ToolsListChanged())
    )
    async with door:
        await server.serve()


with asyncio.Runner(loop_factory=uvicorn.Config(None, loop="uvloop").get_loop_factory()) as runner:
    runner.run(main(int(sys.argv[1]), int(sys.argv[2])))
