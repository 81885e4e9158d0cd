"""Apps that tests have served by real servers: `tests.e2e.served:app` and its siblings around it.

Besides the endpoint they answer `/burst` (publish what was subscribed to until readers that stopped are
blocked), `/publish_and_end`, `/state` (what the process holds) and whatever the environment asks of the hub.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from harken.core.events import ResourceUpdated, ToolsListChanged
from harken.server.asgi import Message, Receive, Scope, Send
from harken.server.hub import Hub

WINDOW = os.environ.get("DRAIN_WINDOW")
BURSTS = 20  # rounds that fill every buffer between here and a reader that stopped

hub = Hub(drain_window=None if WINDOW is None else float(WINDOW))
endpoint = hub.asgi()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The bare endpoint, and the tests' own paths."""
    answers = {"/burst": burst, "/state": state, "/publish_and_end": publish_and_end}
    if scope["type"] == "http" and (answer := answers.get(scope["path"])) is not None:
        body = json.dumps(await answer()).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
    else:
        await endpoint(scope, receive, send)


async def pass_through(scope: Scope, receive: Receive, send: Send) -> None:
    """Middleware as most is: `send` is its own function."""

    async def send_on(message: Message) -> None:
        await send(message)

    await app(scope, receive, send_on)


async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Middleware that lets everything through."""
    return await call_next(request)


base_middleware = BaseHTTPMiddleware(app, dispatch)
mounted = Starlette(routes=[Mount("/", app=app)])  # a mounted app has no lifespan


async def burst() -> int:
    """Publish all that streams named, again and again."""
    events = [ResourceUpdated(uri) for stream in hub.streams for uri in stream.honored.spellings]
    for _ in range(BURSTS):
        await hub.publish(*events)
        await asyncio.sleep(0)
    return len(events)


async def publish_and_end() -> None:
    """Publish, and in the same breath be told to end."""
    await hub.publish(ToolsListChanged())
    signal.raise_signal(signal.SIGTERM)


async def state() -> dict[str, Any]:
    """What a leak would add to: all of it counts something, RSS in bytes."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1])  # noqa: ASYNC240 - no disk is behind it
    return {
        "tasks": len(asyncio.all_tasks()),
        "streams": len(hub.streams),
        "index": len(hub._index._uris) + sum(map(len, hub._index._lists.values())),
        "wheel": sum(map(len, hub._wheel._slots.values())),
        "dirty": len(hub._dirty),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "resident": resident * os.sysconf("SC_PAGE_SIZE"),
        "ended": sum(hub.endings.values()),
    }
