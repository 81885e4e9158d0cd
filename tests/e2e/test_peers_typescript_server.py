"""Our client listens to the official TypeScript SDK's server, over HTTP and stdio, under asyncio and trio."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from harken.client.connection import Connection
from harken.client.listen import connect
from harken.core.demux import Ending
from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.gateway.entries import entry_of
from tests.peers.typescript import installed

pytestmark = pytest.mark.anyio

LIMIT = 20  # seconds, a bound on a machine with much else to do
URI = "note://today"
ALL = Filter(True, True, True, (URI,))
EVENTS: list[Event] = [
    ToolsListChanged(),
    PromptsListChanged(),
    ResourcesListChanged(),
    ResourceUpdated(URI),
]


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The client runs under both."""
    return str(request.param)


@contextlib.asynccontextmanager
async def over_http(words: list[str], kinds: tuple[str, ...]) -> AsyncIterator[Connection]:
    """Our client on the SDK's server over HTTP."""
    process = await anyio.open_process([*words, "http", *kinds], stdout=None, stderr=subprocess.PIPE)
    async with process:
        try:
            assert process.stderr is not None
            url = (await process.stderr.receive()).decode().strip()
            async with connect(url) as connection:
                yield connection
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def over_stdio(words: list[str], kinds: tuple[str, ...]) -> AsyncIterator[Connection]:
    """Our client on the SDK's server over stdio."""
    async with connect([*words, "stdio", *kinds]) as connection:
        yield connection


Meet = Callable[..., AbstractAsyncContextManager[Connection]]


@pytest.fixture(params=["http", "stdio"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each test runs on both."""
    return str(request.param)


@pytest.fixture
def meet(transport: str, node: str) -> Meet:
    """Connects our client to the SDK's server, which has these kinds; without any, all."""
    over = {"http": over_http, "stdio": over_stdio}[transport]

    @contextlib.asynccontextmanager
    async def meeting(*kinds: str) -> AsyncIterator[Connection]:
        with anyio.fail_after(LIMIT):
            async with over([node, str(installed() / "server.mjs")], kinds) as connection:
                yield connection

    return meeting


async def publish(connection: Connection, event: Event) -> None:
    """Let the server publish."""
    await call(connection, "publish", **entry_of(event))


async def call(connection: Connection, tool: str, **arguments: str) -> None:
    """Call a tool of the server's."""
    result = await connection.request("tools/call", {"name": tool, "arguments": arguments})
    assert result["content"] == [{"type": "text", "text": "done"}], result


@pytest.mark.clause("R11", "R19")
async def test_the_ack_and_each_change_are_read(meet: Meet) -> None:
    async with meet() as connection, connection.listen(ALL) as subscription:
        assert (subscription.honored, subscription.unsupported) == (ALL, Filter())
        for event in EVENTS:
            await publish(connection, event)
            assert await anext(subscription) == event


@pytest.mark.clause("R11")
async def test_what_the_server_lacks_is_shown(meet: Meet) -> None:
    async with meet("toolsListChanged") as connection, connection.listen(ALL) as subscription:
        assert subscription.honored == Filter(tools_list_changed=True)
        assert subscription.unsupported == Filter(False, True, True, (URI,))


@pytest.mark.clause("R11")
async def test_a_subscription_of_which_nothing_is_honored_is_told_as_such(meet: Meet, transport: str) -> None:
    """The SDK ends it at once over HTTP, and keeps it open over stdio; the specification asks for neither."""
    async with (
        meet("toolsListChanged") as connection,
        connection.listen(prompts_list_changed=True) as subscription,
    ):
        assert subscription.honored == Filter()
        if transport == "http":
            assert [event async for event in subscription] == []
            assert subscription.ending is Ending.NOTHING_HONORED
        else:
            await publish(connection, PromptsListChanged())
            assert subscription.ending is None
    assert subscription.ending in {Ending.NOTHING_HONORED, Ending.CLOSED}


@pytest.mark.clause("R25")
async def test_the_servers_end_is_told_as_completed(meet: Meet) -> None:
    async with meet() as connection, connection.listen(ALL) as subscription:
        await publish(connection, ToolsListChanged())
        await call(connection, "end")
        assert [event async for event in subscription] == [ToolsListChanged()]
        assert subscription.ending is Ending.COMPLETED


@pytest.mark.clause("R5", "R6", "R16")
async def test_two_subscriptions_overlap_and_one_outlives_the_other(meet: Meet) -> None:
    async with meet() as connection:
        async with connection.listen(tools_list_changed=True, prompts_list_changed=True) as longer:
            async with connection.listen(tools_list_changed=True) as shorter:
                await publish(connection, ToolsListChanged())
                assert await anext(longer) == await anext(shorter) == ToolsListChanged()
                await publish(connection, PromptsListChanged())
                assert await anext(longer) == PromptsListChanged()
            assert shorter.ending is Ending.CLOSED
            await publish(connection, ToolsListChanged())
            assert await anext(longer) == ToolsListChanged()
        assert not connection.ignored


async def test_the_server_is_discovered(meet: Meet) -> None:
    async with meet() as connection:
        discovered = await connection.discover()
        assert "2026-07-28" in discovered["supportedVersions"]  # type: ignore[operator]  # an object, to mypy
