"""The broker of one process."""

import asyncio
from collections.abc import Sequence

import pytest

from harken.brokers.memory import MemoryBroker
from harken.core.events import Event, ResourceUpdated, ToolsListChanged

pytestmark = pytest.mark.anyio
TOOLS, A = ToolsListChanged(), ResourceUpdated("x://a")


async def test_what_is_published_is_delivered_in_the_same_call() -> None:
    heard: list[Event] = []
    broker = MemoryBroker()
    await broker.start(heard.extend)
    broker.publish([TOOLS, A])
    broker.publish([A])
    assert heard == [TOOLS, A, A]


async def test_before_the_start_and_after_the_close_nobody_hears() -> None:
    heard: list[Event] = []
    broker = MemoryBroker()
    broker.publish([TOOLS])
    await broker.start(heard.extend)
    await broker.close()
    await broker.close()
    broker.publish([TOOLS])
    assert heard == []
    await broker.start(heard.extend)
    broker.publish([A])
    assert heard == [A]


async def test_two_brokers_do_not_meet() -> None:
    heard: list[Event] = []

    def wrong(events: Sequence[Event]) -> None:
        raise AssertionError(events)

    one, other = MemoryBroker(), MemoryBroker()
    await asyncio.gather(one.start(heard.extend), other.start(wrong))
    one.publish([TOOLS])
    assert heard == [TOOLS]
