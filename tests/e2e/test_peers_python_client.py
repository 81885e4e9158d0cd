"""The official Python SDK's client listens to our server, over HTTP and stdio.

Whatever a test is about, every message of ours is checked against the schema as `mcp_types` has it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    Subscription,
    ToolsListChanged,
)
from mcp_types import SubscriptionFilter, TextContent

from tests.e2e.commands import command
from tests.peers import tap

pytestmark = pytest.mark.anyio

LIMIT = 20  # seconds, a bound on a machine with much else to do
URI = "note://today"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
GROWN = 20  # tools, one after the other, from before the listen to after the ack
OURS = [sys.executable, "-m", "tests.peers.ours"]
ALL: dict[str, Any] = {
    "tools_list_changed": True,
    "prompts_list_changed": True,
    "resources_list_changed": True,
    "resource_subscriptions": [URI],
}


class Peer:
    """The SDK's client on our server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: str) -> str:
        """Call a tool of our server's; the text of its answer."""
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result.content[0], TextContent)
        return result.content[0].text

    async def publish(self, event: str, uri: str | None = None) -> None:
        """Publish on the server."""
        await self.call("publish", event=event, **({} if uri is None else {"uri": uri}))

    async def until_streams(self, count: int) -> None:
        """Ask until the server holds `count` streams."""
        while await self.call("streams") != str(count):
            pass

    def received(self) -> list[tap.Frame]:
        """All that our server has sent so far."""
        raise NotImplementedError

    def sent(self) -> list[tap.Frame]:
        """All that the client has sent so far."""
        raise NotImplementedError


class HTTPPeer(Peer):
    """Over HTTP."""

    def __init__(self, client: Client, tapped: tap.HTTPTap) -> None:
        super().__init__(client)
        self.exchanges = tapped.exchanges

    def received(self) -> list[tap.Frame]:
        return [frame for exchange in self.exchanges for frame in exchange.received]

    def sent(self) -> list[tap.Frame]:
        return [frame for exchange in self.exchanges for frame in exchange.sent]


class StdioPeer(Peer):
    """Over stdio."""

    def __init__(self, client: Client, folder: Path) -> None:
        super().__init__(client)
        self.folder = folder

    def received(self) -> list[tap.Frame]:
        return tap.frames((self.folder / "received").read_bytes())

    def sent(self) -> list[tap.Frame]:
        return tap.frames((self.folder / "sent").read_bytes())


@contextlib.asynccontextmanager
async def over_http(_: Path, options: list[str]) -> AsyncIterator[Peer]:
    """The client on a server of ours over HTTP; it ends as it should."""
    async with command(*OURS, "http", *options) as server:
        tapped = tap.HTTPTap()
        url = await server.url()
        async with (
            httpx2.AsyncClient(transport=tapped, timeout=httpx2.Timeout(LIMIT, read=None)) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield HTTPPeer(client, tapped)
        await server.interrupt()
        code, _stdout, stderr = await server.end()
        assert (code, "Traceback" in stderr) == (0, False), stderr


@contextlib.asynccontextmanager
async def over_stdio(folder: Path, options: list[str]) -> AsyncIterator[Peer]:
    """The client on a server of ours over stdio."""
    program, *words = tap.stdio_words(folder, [*OURS, "stdio", *options])
    parameters = StdioServerParameters(command=program, args=words)
    async with Client(parameters) as client:
        yield StdioPeer(client, folder)


Meet = Callable[..., AbstractAsyncContextManager[Peer]]


@pytest.fixture(params=[over_http, over_stdio], ids=["http", "stdio"])
def meet(request: pytest.FixtureRequest, tmp_path: Path) -> Meet:
    """Connects the SDK's client to a server of ours, which supports the given kinds; without any, all."""

    @contextlib.asynccontextmanager
    async def connect(*kinds: str) -> AsyncIterator[Peer]:
        options = [word for kind in kinds for word in ("--supports", kind)]
        async with request.param(tmp_path, options) as peer:
            with anyio.fail_after(LIMIT):
                yield peer
        tap.check(peer.sent(), peer.received())

    return connect


async def rest(subscription: Subscription) -> list[ServerEvent]:
    """What still comes; fails with SubscriptionLost unless the end is graceful."""
    return [event async for event in subscription]


def about(frames: list[tap.Frame], id: object) -> list[str]:
    """What came with one subscription's id, in order; a result as the word `result`."""

    def id_of(frame: tap.Frame) -> object:
        body = frame.get("params") or frame.get("result") or {}
        return body.get("_meta", {}).get(SUBSCRIPTION_ID)

    return [frame.get("method", "result") for frame in frames if id_of(frame) == id]


ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS_CHANGED = "notifications/tools/list_changed"

EVENTS = [
    ("tools_list_changed", None, ToolsListChanged()),
    ("prompts_list_changed", None, PromptsListChanged()),
    ("resources_list_changed", None, ResourcesListChanged()),
    ("resource_updated", URI, ResourceUpdated(uri=URI)),
]


@pytest.mark.clause("R2", "R4", "R6", "D5")
async def test_the_ack_names_what_is_honored(meet: Meet) -> None:
    async with meet() as peer, peer.client.listen(**ALL | {"resource_subscriptions": [URI, URI]}) as first:
        assert first.honored == SubscriptionFilter(
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=[URI],
        )
        async with peer.client.listen(prompts_list_changed=True) as second:
            assert second.honored == SubscriptionFilter(prompts_list_changed=True)
            assert about(peer.received(), first.subscription_id) == [ACKNOWLEDGED]
            assert about(peer.received(), second.subscription_id) == [ACKNOWLEDGED]


@pytest.mark.clause("R7", "R8", "R9", "R10")
@pytest.mark.parametrize(("name", "uri", "event"), EVENTS, ids=[name for name, _, _ in EVENTS])
async def test_a_change_is_heard(meet: Meet, name: str, uri: str | None, event: ServerEvent) -> None:
    async with meet() as peer, peer.client.listen(**ALL) as subscription:
        await peer.publish(name, uri)
        assert await anext(subscription) == event


@pytest.mark.clause("R1", "R21")
@pytest.mark.field("F8")
async def test_nothing_else_is_heard_and_no_answer_carries_a_change(meet: Meet) -> None:
    async with meet() as peer:
        async with peer.client.listen(resource_subscriptions=[URI]) as subscription:
            for name, uri, _ in EVENTS[:3]:
                await peer.publish(name, uri)
            await peer.publish("resource_updated", "note://yesterday")
            await peer.publish("resource_updated", URI)
            assert await anext(subscription) == ResourceUpdated(uri=URI)
        changes = [frame for frame in peer.received() if frame.get("method") not in {None, ACKNOWLEDGED}]
        assert [frame["params"]["uri"] for frame in changes] == [URI]
        if isinstance(peer, HTTPPeer):
            calls = [exchange for exchange in peer.exchanges if exchange.sent[0]["method"] == "tools/call"]
            assert [len(exchange.received) for exchange in calls] == [1] * 5


@pytest.mark.clause("R3", "R20")
async def test_an_unsupported_kind_is_left_out_and_not_advertised(meet: Meet) -> None:
    async with meet("toolsListChanged", "resourceSubscriptions") as peer:
        capabilities = peer.client.server_capabilities
        assert capabilities.tools is not None
        assert capabilities.tools.list_changed
        assert capabilities.prompts is not None
        assert not capabilities.prompts.list_changed
        assert capabilities.resources is not None
        assert (capabilities.resources.list_changed, capabilities.resources.subscribe) == (None, True)
        async with peer.client.listen(**ALL) as subscription:
            assert subscription.honored == SubscriptionFilter(
                tools_list_changed=True, resource_subscriptions=[URI]
            )
            await peer.publish("prompts_list_changed")
            await peer.publish("tools_list_changed")
            assert await anext(subscription) == ToolsListChanged()


@pytest.mark.clause("D2")
@pytest.mark.field("F1")
async def test_a_stream_of_which_nothing_is_honored_ends_at_once(meet: Meet) -> None:
    async with meet("toolsListChanged") as peer:
        async with peer.client.listen(prompts_list_changed=True) as subscription:
            assert subscription.honored == SubscriptionFilter()
            assert await rest(subscription) == []
            assert about(peer.received(), subscription.subscription_id) == [ACKNOWLEDGED, "result"]
        await peer.until_streams(0)


@pytest.mark.clause("R14", "R27", "D1")
async def test_the_servers_end_is_graceful_and_comes_last(meet: Meet) -> None:
    async with meet() as peer, peer.client.listen(tools_list_changed=True) as subscription:
        await peer.publish("tools_list_changed")
        await peer.call("end")
        assert await rest(subscription) == [ToolsListChanged()]
        expected = [ACKNOWLEDGED, TOOLS_CHANGED, "result"]
        assert about(peer.received(), subscription.subscription_id) == expected
        assert "notifications/cancelled" not in {frame.get("method") for frame in peer.received()}


@pytest.mark.clause("R15")
async def test_the_clients_cancel_ends_it_without_another_word(meet: Meet) -> None:
    async with meet() as peer:
        async with peer.client.listen(tools_list_changed=True) as subscription:
            await peer.until_streams(1)
        await peer.until_streams(0)
        await peer.publish("tools_list_changed")
        assert about(peer.received(), subscription.subscription_id) == [ACKNOWLEDGED]


@pytest.mark.clause("R6", "R12", "T2")
@pytest.mark.field("F43", "F44")
async def test_two_subscriptions_overlap_and_one_outlives_the_other(meet: Meet) -> None:
    async with meet() as peer:
        async with peer.client.listen(tools_list_changed=True, prompts_list_changed=True) as longer:
            async with peer.client.listen(tools_list_changed=True) as shorter:
                await peer.publish("tools_list_changed")
                assert await anext(longer) == ToolsListChanged()
                assert await anext(shorter) == ToolsListChanged()
                await peer.publish("prompts_list_changed")
                assert await anext(longer) == PromptsListChanged()
            await peer.until_streams(1)
            await peer.publish("tools_list_changed")
            assert await anext(longer) == ToolsListChanged()
        assert about(peer.received(), shorter.subscription_id) == [ACKNOWLEDGED, TOOLS_CHANGED]


@pytest.mark.clause("R17")
async def test_listening_again_is_a_subscription_of_its_own(meet: Meet) -> None:
    async with meet() as peer:
        async with peer.client.listen(tools_list_changed=True) as before:
            await peer.publish("tools_list_changed")
            assert await anext(before) == ToolsListChanged()
        async with peer.client.listen(prompts_list_changed=True) as after:
            await peer.publish("tools_list_changed")
            await peer.publish("prompts_list_changed")
            assert await anext(after) == PromptsListChanged()
        assert before.subscription_id != after.subscription_id


@pytest.mark.field("F11")
async def test_whenever_the_list_changes_the_client_ends_with_the_new_one(meet: Meet) -> None:
    """It lists, listens, lists again after the ack, and after each event; the list changes all the while."""
    async with meet() as peer:

        async def names() -> set[str]:
            return {tool.name for tool in (await peer.client.list_tools()).tools}

        async def grow() -> None:
            for _ in range(GROWN):
                await peer.call("grow")

        before = await names()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grow)
            async with peer.client.listen(tools_list_changed=True) as subscription:
                now = await names()
                while len(now) < len(before) + GROWN:
                    await anext(subscription)
                    now = await names()
