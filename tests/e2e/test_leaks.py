"""Nothing leaks: after thousands of clients that left without a word, a server is as it was before."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.listening import Raw, get
from tests.e2e.test_shutdown import Server, serving, stopped_reader, uvicorn

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

CLIENTS = 1000
AT_ONCE = 100
ROUNDS = 3  # after the first, which fills caches and pools
KILOBYTE = 1024
CLOSE_WAIT = "08"


async def leave(port: int, number: int) -> None:
    """A client that goes away: at once or after the acknowledgment, with a FIN or an RST."""
    uris = [f"test://{number}/{other}" for other in range(number % 3)]
    raw = await Raw.open(port, number, uris, acknowledged=number % 4 != 0)
    if number % 2:
        raw.close()
    else:
        raw.reset()


async def come_and_go(server: Server) -> None:
    """All the clients, some of them within a burst of events that one of them never reads."""
    for first in range(0, CLIENTS, AT_ONCE):
        if first == CLIENTS // 2:
            stopped = await stopped_reader(server)
            stopped.reset()
        await asyncio.gather(*(leave(server.port, number) for number in range(first, first + AT_ONCE)))


async def settled(server: Server, baseline: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the server holds once all have left; fails where it does not let go."""
    async with asyncio.timeout(20):
        while True:
            state: dict[str, Any] = await get(server.port, "/state")
            if not state["streams"] and (baseline is None or state["tasks"] <= baseline["tasks"]):
                return state


def close_waits(port: int) -> int:
    """Connections of the server whose client has closed them, and which it has not."""
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        count += int(local.rpartition(":")[2], 16) == port and state == CLOSE_WAIT
    return count


@pytest.mark.field("F35")
@pytest.mark.clause("R15")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("app", ["app", "pass_through", "base_middleware"])
async def test_clients_that_leave_leave_nothing_behind(app: str, tmp_path: Path, project: Path) -> None:
    async with serving(uvicorn(app, "--no-access-log"), tmp_path, project) as server:
        await come_and_go(server)
        before = await settled(server)
        for _ in range(ROUNDS):
            await come_and_go(server)
        after = await settled(server, before)
        counts = {"tasks", "streams", "index", "wheel", "dirty", "descriptors"}
        assert {name: after[name] for name in counts} == {name: before[name] for name in counts}
        clients = after["ended"] - before["ended"]
        assert clients > ROUNDS * CLIENTS / 2  # those that left at once may never have become streams
        assert after["objects"] - before["objects"] < clients / 20
        assert after["resident"] - before["resident"] < clients * KILOBYTE / 2
        assert close_waits(server.port) == 0
