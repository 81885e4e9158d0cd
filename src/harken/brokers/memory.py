"""The broker within one process: what is published is delivered in the same call.

Other processes hear nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from harken.brokers.base import Deliver
from harken.core.events import Event

__all__ = ["MemoryBroker"]


class MemoryBroker:
    """Carries events from a hub to itself."""

    def __init__(self) -> None:
        self._deliver: Deliver | None = None

    async def start(self, deliver: Deliver) -> None:
        """See `Broker.start`."""
        self._deliver = deliver

    def publish(self, events: Sequence[Event]) -> None:
        """See `Broker.publish`."""
        if self._deliver is not None:
            self._deliver(events)

    async def close(self) -> None:
        """See `Broker.close`."""
        self._deliver = None
