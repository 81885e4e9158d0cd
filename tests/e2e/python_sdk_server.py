"""A server made with the official Python SDK: `python -m tests.e2e.python_sdk_server http|stdio`.

Over HTTP it prints its URL as its first line. Its tools publish, and end, what its clients listen to.
"""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.subscriptions import ListenHandler

server = MCPServer("peer", log_level="ERROR")


@server.tool()
async def touch(uri: str, ctx: Context) -> str:
    """Say that a resource has changed."""
    await ctx.notify_resource_updated(uri)
    return "touched"


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Add a tool, and say so."""
    server.add_tool(lambda: name, name=name, description="grown")
    await ctx.notify_tools_changed()
    return "grown"


@server.tool()
async def end() -> str:
    """End every subscription gracefully."""
    entry = server._lowlevel_server.get_request_handler("subscriptions/listen")
    assert entry is not None
    assert isinstance(entry.handler, ListenHandler)
    entry.handler.close()
    return "ended"


def main(transport: str) -> None:
    """Serve until the end of input, or until killed."""
    if transport == "stdio":
        server.run("stdio")
        return
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
