"""The official SDK's `MCPServer`: what its handlers tell by `ctx.notify_…()` reaches the hub's streams.

The SDK serves `subscriptions/listen` itself, from a bus of its own. A hub around its app takes those streams
over; without this bus, what is published to the SDK's own would reach nobody.
"""

from __future__ import annotations

try:
    from mcp.server import subscriptions as sdk
except ImportError as _missing:
    raise ImportError("this needs the official SDK, version 2: pip install 'harken[mcp]'") from _missing

from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.server.hub import Hub

__all__ = ["HubBus"]

_LISTS: dict[type[sdk.ServerEvent], Event] = {
    sdk.ToolsListChanged: ToolsListChanged(),
    sdk.PromptsListChanged: PromptsListChanged(),
    sdk.ResourcesListChanged: ResourcesListChanged(),
}


class HubBus(sdk.InMemorySubscriptionBus):
    """A bus for `MCPServer(subscriptions=HubBus(hub))`.

    What is published to it reaches the streams of `hub`, and those that the SDK serves by itself, on stdio.
    """

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub

    async def publish(self, event: sdk.ServerEvent) -> None:
        """See the SDK's `SubscriptionBus.publish`. Raises InvalidURI, and HubClosed after the close."""
        if isinstance(event, sdk.ResourceUpdated):
            await self._hub.publish(ResourceUpdated(event.uri))
        else:
            await self._hub.publish(_LISTS[type(event)])
        await super().publish(event)
