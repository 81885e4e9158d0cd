"""A hub around the official Python SDK's server: what the SDKs' clients find there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import PromptsListChanged, ToolsListChanged

from tests.e2e.commands import command
from tests.peers import tap
from tests.peers.typescript import typescript_client

pytestmark = pytest.mark.anyio

LIMIT = 20  # seconds, a bound on a machine with much else to do


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A hub around the SDK's server, whose tools publish through the hub."""
    async with command(sys.executable, "-m", "tests.conformance.everything", "around") as server:
        yield await server.url()


@contextlib.asynccontextmanager
async def python_client(url: str, mode: str, tapped: tap.HTTPTap) -> AsyncIterator[Client]:
    """The Python SDK's client, with a tap below it."""
    async with (
        httpx2.AsyncClient(transport=tapped, timeout=httpx2.Timeout(LIMIT, read=None)) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        with anyio.fail_after(LIMIT):
            yield client


@pytest.mark.clause("H1", "R20", "R21")
@pytest.mark.field("F8")
async def test_what_a_tool_publishes_is_heard_on_the_stream_alone(url: str) -> None:
    tapped = tap.HTTPTap()
    async with python_client(url, "auto", tapped) as client:
        for capability in (client.server_capabilities.tools, client.server_capabilities.prompts):
            assert capability is not None
            assert capability.list_changed
        async with client.listen(tools_list_changed=True, prompts_list_changed=True) as subscription:
            await client.call_tool("test_trigger_tool_change")
            assert await anext(subscription) == ToolsListChanged()
            await client.call_tool("test_trigger_prompt_change")
            assert await anext(subscription) == PromptsListChanged()
    for exchange in tapped.exchanges:
        tap.check(exchange.sent, exchange.received)
        if exchange.sent[0]["method"] == "tools/call":
            assert [frame.keys() & {"method"} for frame in exchange.received] == [set()]


@pytest.mark.clause("H1", "R20")
async def test_the_typescript_client_hears_it_too(url: str, node: str) -> None:
    async with typescript_client(node, url) as client:
        assert client.capabilities["tools"]["listChanged"] is True
        honored = await client.listen(
            "it", toolsListChanged=True, resourceSubscriptions=["test://static-text"]
        )
        assert honored == {"toolsListChanged": True, "resourceSubscriptions": ["test://static-text"]}
        await client.call("test_trigger_tool_change")
        await client.see(type="notification", method="notifications/tools/list_changed")
        await client.close("it")
        assert await client.rest() == []


@pytest.mark.clause("H1")
async def test_a_client_of_an_older_revision_finds_the_sdk_as_it_was(url: str) -> None:
    """`initialize`, its session header, the GET stream and the DELETE are the app's own affair."""
    tapped = tap.HTTPTap()
    async with python_client(url, "legacy", tapped) as client:
        assert client.protocol_version == "2025-11-25"
        assert "test_simple_text" in {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("test_simple_text")
        assert not result.is_error
    assert {exchange.method for exchange in tapped.exchanges} >= {"POST", "DELETE"}
    assert {exchange.status for exchange in tapped.exchanges} <= {200, 202}
