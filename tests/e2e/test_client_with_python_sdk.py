"""Our client and a server made with the official Python SDK, on both transports."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from harken import (
    Connection,
    Ending,
    Filter,
    ResourceUpdated,
    RPCError,
    ToolsListChanged,
    connect,
)
from harken.client.stdio import StdioConnection

pytestmark = pytest.mark.anyio

LIMIT = 30  # seconds, a bound on a machine with much else to do
SERVER = [sys.executable, "-m", "tests.e2e.python_sdk_server"]
WANTED = Filter(True, resource_subscriptions=("note://today",))


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Our client runs under both."""
    return str(request.param)


@dataclass
class Peer:
    """Our client's connection to the SDK's server, and that server's process."""

    connection: Connection

    async def call(self, tool: str, **arguments: str) -> None:
        """Call a tool of the server's."""
        result = await self.connection.request("tools/call", {"name": tool, "arguments": arguments})
        assert not result["isError"], result

    async def tools(self) -> set[str]:
        """The names of the server's tools."""
        tools = (await self.connection.request("tools/list"))["tools"]
        assert isinstance(tools, list)
        return {tool["name"] for tool in tools}


@contextmanager
def started(project: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The SDK's server over HTTP: its URL and its process."""
    with subprocess.Popen([*SERVER, "http"], cwd=project, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url(project: Path) -> Iterator[str]:
    """The SDK's server over HTTP, which the tests share."""
    with started(project) as (url, _):
        yield url


@pytest.fixture(params=["http", "stdio"])
async def peer(request: pytest.FixtureRequest, project: Path) -> AsyncIterator[Peer]:
    """The SDK's server, and our client connected to it."""
    over_http = request.param == "http"
    target = request.getfixturevalue("url") if over_http else [*SERVER, "stdio"]
    async with connect(target, cwd=project) as connection:
        yield Peer(connection)


@pytest.mark.clause("R11")
async def test_the_ack(peer: Peer) -> None:
    with anyio.fail_after(LIMIT):
        found = await peer.connection.discover()
        assert found["supportedVersions"] == ["2026-07-28"]
        async with peer.connection.listen(WANTED) as subscription:
            assert subscription.honored == WANTED
            assert not subscription.unsupported
    assert subscription.ending is Ending.CLOSED


@pytest.mark.clause("R5", "R6", "T6")
async def test_changes_reach_whoever_asked_for_them(peer: Peer) -> None:
    with anyio.fail_after(LIMIT):
        async with (
            peer.connection.listen(WANTED) as both,
            peer.connection.listen(tools_list_changed=True) as tools,
        ):
            name = f"new-{both.subscription_id}"  # the server over HTTP is one for all tests
            assert name not in await peer.tools()
            await peer.call("grow", name=name)
            assert await anext(both) == ToolsListChanged()
            assert await anext(tools) == ToolsListChanged()
            assert name in await peer.tools()
            await peer.call("touch", uri="note://tomorrow")
            await peer.call("touch", uri="note://today")
            assert await anext(both) == ResourceUpdated("note://today")
    assert not peer.connection.ignored


@pytest.mark.clause("R16")
async def test_leaving_one_leaves_the_other(peer: Peer) -> None:
    with anyio.fail_after(LIMIT):
        async with peer.connection.listen(WANTED) as stays:
            async with peer.connection.listen(WANTED):
                pass
            await peer.call("touch", uri="note://today")
            assert await anext(stays) == ResourceUpdated("note://today")
            async with peer.connection.listen(WANTED) as again:
                await peer.call("touch", uri="note://today")
                assert await anext(again) == ResourceUpdated("note://today")


@pytest.mark.clause("R25")
async def test_a_graceful_end(peer: Peer) -> None:
    with anyio.fail_after(LIMIT):
        async with (
            peer.connection.listen(WANTED) as first,
            peer.connection.listen(WANTED) as second,
        ):
            await peer.call("touch", uri="note://today")
            await peer.call("end")
            assert [event async for event in first] == [ResourceUpdated("note://today")]
            assert [event async for event in second] == [ResourceUpdated("note://today")]
            assert (first.ending, second.ending) == (Ending.COMPLETED, Ending.COMPLETED)
        assert "touch" in await peer.tools()


@pytest.mark.clause("R18", "T4")
async def test_an_abrupt_end_over_http(project: Path) -> None:
    with started(project) as (url, process), anyio.fail_after(LIMIT):
        async with connect(url) as connection:
            await lose(connection, process.pid)


@pytest.mark.clause("R18", "T4")
async def test_an_abrupt_end_over_stdio(project: Path) -> None:
    with anyio.fail_after(LIMIT):
        async with connect([*SERVER, "stdio"], cwd=project) as connection:
            assert isinstance(connection, StdioConnection)
            await lose(connection, connection.pid)


async def lose(connection: Connection, pid: int) -> None:
    """Kill the server: every subscription ends, and says how."""
    async with connection.listen(WANTED) as first, connection.listen(WANTED) as second:
        os.kill(pid, signal.SIGKILL)
        assert [event async for event in first] == []
        assert [event async for event in second] == []
        assert (first.ending, second.ending) == (Ending.LOST, Ending.LOST)


@pytest.mark.clause("H12")
async def test_errors_are_understood(peer: Peer) -> None:
    with anyio.fail_after(LIMIT):
        with pytest.raises(RPCError) as caught:
            await peer.connection.request("no/such/method")
        assert caught.value.code == -32601
