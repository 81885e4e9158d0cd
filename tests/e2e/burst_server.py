"""Serves a hub over HTTP and publishes bursts when stdin says so: the URIs of a turn are its argument.

Prints its port, then a JSON object a command: seconds, the peak of its memory in bytes, what is unsent.
"""

import asyncio
import json
import resource
import socket
import sys
import time
from typing import Any

import uvicorn

from harken.core.events import ResourceUpdated
from harken.server.hub import Hub

hub = Hub(drain_window=0)


def buffered(stream: Any) -> int:
    """The bytes that wait in the transport under a stream."""
    size: int = stream._send.__self__.transport.get_write_buffer_size()
    return size


async def burst(turns: int, events: list[ResourceUpdated]) -> dict[str, object]:
    """Publishes all of it in each turn of the loop, and a last word at the end."""
    begun = time.monotonic()
    for _ in range(turns):
        await hub.publish(*events)
        await asyncio.sleep(0)
    await hub.publish(ResourceUpdated("x://last"))
    return {
        "seconds": time.monotonic() - begun,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "streams": len(hub.streams),
        "pending": max(len(stream.pending) for stream in hub.streams),
        "buffered": max(buffered(stream) for stream in hub.streams),
    }


async def main() -> None:
    """Serves until stdin ends."""
    events = [ResourceUpdated(f"x://h/{number}") for number in range(int(sys.argv[1]))]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(hub.asgi(), log_level="warning", access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        print(listener.getsockname()[1], flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await burst(int(line), events)), flush=True)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
