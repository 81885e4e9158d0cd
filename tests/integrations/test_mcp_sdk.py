"""The official SDK's server with a hub around it: its own way of notifying reaches the hub's streams."""

from __future__ import annotations

import pytest
from mcp.server import subscriptions as sdk
from mcp.server.mcpserver import Context, MCPServer

import harken
from harken import Event, Hub, InvalidURI
from harken.integrations.mcp_sdk import HubBus
from tests.serving import serving

pytestmark = pytest.mark.anyio

EVENTS = [
    (sdk.ToolsListChanged(), harken.ToolsListChanged()),
    (sdk.PromptsListChanged(), harken.PromptsListChanged()),
    (sdk.ResourcesListChanged(), harken.ResourcesListChanged()),
    (sdk.ResourceUpdated(uri="note://a"), harken.ResourceUpdated("note://a")),
]
EVERYTHING = harken.Filter(True, True, True, ("note://a",))


@pytest.mark.field("F8")
async def test_what_a_handler_notifies_reaches_the_hubs_streams() -> None:
    hub = Hub(drain_window=0)
    mcp = MCPServer("notes", subscriptions=HubBus(hub), log_level="ERROR")

    @mcp.tool()
    async def edit(ctx: Context) -> str:
        await ctx.notify_resource_updated("note://a")
        return "edited"

    async with (
        serving(hub.asgi(mcp.streamable_http_app())) as port,
        harken.connect(f"http://127.0.0.1:{port}/mcp") as connection,
        connection.listen(resource_subscriptions=["note://a"]) as stream,
    ):
        await connection.request("tools/call", {"name": "edit", "arguments": {}})
        assert await anext(stream) == harken.ResourceUpdated("note://a")


@pytest.mark.parametrize(("theirs", "ours"), EVENTS, ids=[type(ours).__name__ for _, ours in EVENTS])
async def test_each_event_reaches_both_sides(theirs: sdk.ServerEvent, ours: Event) -> None:
    async with Hub(drain_window=0) as hub:
        bus = HubBus(hub)
        heard: list[sdk.ServerEvent] = []
        leave = bus.subscribe(heard.append)
        async with (
            serving(hub.asgi()) as port,
            harken.listen(f"http://127.0.0.1:{port}/mcp", EVERYTHING) as stream,
        ):
            await bus.publish(theirs)
            assert await anext(stream) == ours
        leave()
        assert heard == [theirs]


async def test_what_is_no_uri_is_an_error_of_the_handler() -> None:
    async with Hub() as hub:
        with pytest.raises(InvalidURI):
            await HubBus(hub).publish(sdk.ResourceUpdated(uri="no uri"))
