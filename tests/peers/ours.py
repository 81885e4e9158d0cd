"""Our server as the peers' clients meet it: `python -m tests.peers.ours http|stdio [--supports KIND]…`

Its tools say what is to happen, on the same connection as everything else: `publish` (an event by its name,
and its `uri`), `end` (end every stream gracefully), `streams` (how many are open), `grow` (one more tool).
Over HTTP the first line on stderr is the URL.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from harken.core.events import ToolsListChanged
from harken.gateway.entries import EVENT_NAMES, make_event
from harken.gateway.runner import run_app
from harken.server.hub import Hub
from harken.server.methods import Request

FRESH = {"ttlMs": 0, "cacheScope": "private"}
TOOLS: dict[str, dict[str, Any]] = {
    "publish": {"event": {"enum": list(EVENT_NAMES)}, "uri": {"type": "string"}},
    "end": {},
    "streams": {},
    "grow": {},
}


class Server:
    """The hub and its tools."""

    def __init__(self, supports: list[str] | None) -> None:
        self.tools = dict(TOOLS)
        self.hub = Hub(
            name="ours",
            version="1.0.0",
            supports=supports,
            drain_window=0.0,
            methods={
                "tools/list": self.list_tools,
                "tools/call": self.call_tool,
                "prompts/list": self.list_prompts,
                "resources/list": self.list_resources,
            },
        )

    async def list_tools(self, _: Request) -> Mapping[str, object]:
        tools = [
            {"name": name, "inputSchema": {"type": "object", "properties": properties}}
            for name, properties in self.tools.items()
        ]
        return {"tools": tools, **FRESH}

    async def list_prompts(self, _: Request) -> Mapping[str, object]:
        return {"prompts": [], **FRESH}

    async def list_resources(self, _: Request) -> Mapping[str, object]:
        return {"resources": [], **FRESH}

    async def call_tool(self, request: Request) -> Mapping[str, object]:
        name, arguments = request.params["name"], request.params.get("arguments")
        text = "done"
        if name == "publish":
            assert isinstance(arguments, dict)
            await self.hub.publish(make_event(arguments["event"], arguments.get("uri")))
        elif name == "end":
            await self.hub.drain()
        elif name == "grow":
            self.tools[f"grown-{len(self.tools)}"] = {}
            await self.hub.publish(ToolsListChanged())
        else:
            text = str(len(self.hub.streams))
        return {"content": [{"type": "text", "text": text}]}


def main() -> int:
    """Serve until SIGINT, or over stdio until the end of the input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("http", "stdio"))
    parser.add_argument("--supports", action="append")
    arguments = parser.parse_args()
    server = Server(arguments.supports)
    if arguments.transport == "http":
        return run_app(server.hub.asgi(), server.hub, "127.0.0.1", 0)
    asyncio.run(server.hub.serve_stdio())
    return 0


if __name__ == "__main__":
    sys.exit(main())
