"""A line protocol on TCP through which the load generator publishes, the same for every server measured.

`PUB r START COUNT MOD STEP` publishes an update of `bench://r/{(START + j*STEP) % MOD}` for each j below
COUNT; `PUB t COUNT` publishes as many changes of the list of tools. The answer comes when all calls have
returned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

Publish = Callable[[str], Awaitable[None]]


async def open_side_door(
    port: int, publish_resource: Publish, publish_tools: Callable[[], Awaitable[None]]
) -> asyncio.Server:
    """Listen on loopback."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while words := (await reader.readline()).split():
                begun = time.monotonic_ns()
                if words[1] == b"r":
                    start, count, mod, step = map(int, words[2:6])
                    for j in range(count):
                        await publish_resource(f"bench://r/{(start + j * step) % mod}")
                else:
                    for _ in range(int(words[2])):
                        await publish_tools()
                writer.write(b"OK %d\n" % (time.monotonic_ns() - begun))
        except ConnectionError:
            pass  # the load generator resets its connections when it is done
        finally:
            writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", port)
