"""The interface of brokers: a hub takes anything that has its three methods, and needs no more."""

import asyncio
from collections.abc import Sequence

import pytest

from harken.brokers.base import Broker, Deliver
from harken.brokers.memory import MemoryBroker
from harken.core.events import Event, ToolsListChanged
from harken.errors import HubClosed
from harken.server.hub import Hub

pytestmark = pytest.mark.anyio


class Recording:
    """A broker that delivers late, as real ones do."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.deliver: Deliver | None = None

    async def start(self, deliver: Deliver) -> None:
        """See `Broker.start`."""
        self.calls.append("start")
        await asyncio.sleep(0)
        self.deliver = deliver

    def publish(self, events: Sequence[Event]) -> None:
        """See `Broker.publish`."""
        self.calls.append("publish")
        assert self.deliver is not None, "published before the start was over"
        asyncio.get_running_loop().call_soon(self.deliver, events)

    async def close(self) -> None:
        """See `Broker.close`."""
        self.calls.append("close")
        await asyncio.sleep(0)


async def test_a_hub_starts_its_broker_once_and_closes_it() -> None:
    broker = Recording()
    hub = Hub(broker=broker)
    await asyncio.gather(hub.publish(ToolsListChanged()), hub.publish(), hub.start(), hub.start_lazily())
    await hub.aclose()
    assert broker.calls[0] == "start"
    assert broker.calls[1:] == ["publish", "publish", "close"]
    with pytest.raises(HubClosed):
        await hub.publish(ToolsListChanged())
    assert broker.calls[-1] == "close"


async def test_a_hub_is_closed_to_publishers_before_its_broker_leaves() -> None:
    """Else an event would be accepted that nobody carries."""

    class Closing(Recording):
        async def close(self) -> None:
            """Somebody publishes in this very moment."""
            with pytest.raises(HubClosed):
                await hub.publish(ToolsListChanged())
            await super().close()

    hub = Hub(broker=Closing())
    await hub.start()
    await hub.aclose()


async def test_a_broker_that_does_not_start_leaves_the_hub_to_be_started_again() -> None:
    class Down(Recording):
        async def start(self, deliver: Deliver) -> None:
            """Fails the first time."""
            await super().start(deliver)
            if self.calls == ["start"]:
                raise ConnectionRefusedError("no broker there")

    hub = Hub(broker=Down())
    with pytest.raises(ConnectionRefusedError):
        await hub.publish(ToolsListChanged())
    await hub.publish(ToolsListChanged())
    assert hub.running
    await hub.aclose()


def test_the_memory_broker_is_one() -> None:
    broker: Broker = MemoryBroker()
    assert {"start", "publish", "close"} <= set(dir(broker))
