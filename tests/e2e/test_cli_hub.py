"""`harken hub` over a long day: nothing leaks."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.commands import command, run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a RST
CLOSE_WAIT = "08"
LISTEN = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "subscriptions/listen",
        "params": {
            "notifications": {"toolsListChanged": True, "resourceSubscriptions": ["file:///a", "file:///b"]},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
)
REQUEST = (
    "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
    f"mcp-method: subscriptions/listen\r\ncontent-length: {len(LISTEN)}\r\n\r\n{LISTEN}"
).encode()


async def listen_and_reset(port: int) -> None:
    """One listen that is acknowledged, and whose client then vanishes with a RST."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    while b"acknowledged" not in await reader.readline():
        pass
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


def files_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_of(pid: int) -> int:
    """Resident, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


def close_waits(port: int) -> int:
    """The connections at `port` that their peer has closed and the server has not."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == CLOSE_WAIT for row in rows)


@pytest.mark.field("F35")
async def test_a_thousand_reset_listens_leave_nothing_behind(harken_command: str) -> None:
    async with command(harken_command, "hub", "--port", "0", limit=55) as hub:
        url = await hub.url()
        port, pid = urlsplit(url).port or 0, hub.process.pid
        await run(harken_command, "publish", "tools_list_changed", "--hub", url)  # now it is up
        before = files_of(pid)

        async def reset(count: int) -> int:
            """Resets so many, waits until their sockets are gone, and returns the memory in use."""
            for _ in range(count // 50):
                await asyncio.gather(*(listen_and_reset(port) for _ in range(50)))
            while files_of(pid) > before:
                await run(harken_command, "publish", "tools_list_changed", "--hub", url)
            return memory_of(pid)

        warm = await reset(300)
        assert await reset(1000) < warm + 4 * 1024
        assert close_waits(port) == 0
        hub.process.terminate()
        code, _, stderr = await hub.end()
        assert (code, stderr) == (0, "Ctrl-C ends the hub\n")
