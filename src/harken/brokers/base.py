"""The interface between a hub and what carries its events.

A broker does *not* promise that an event arrives, arrives once, or arrives in order. It must never make
`publish()` wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harken.core.events import Event

__all__ = ["Broker", "Deliver"]

Deliver = Callable[[Sequence[Event]], None]
"""Takes events that arrived; called on the hub's event loop, never raises."""


class Broker(Protocol):
    """Carries events to every hub on the same broker, the publishing one included."""

    async def start(self, deliver: Deliver) -> None:
        """Join the flow: from the return on, what any hub publishes reaches `deliver`."""

    def publish(self, events: Sequence[Event]) -> None:
        """Take `events` for delivery; called on the hub's event loop, returns at once."""

    async def close(self) -> None:
        """Leave the flow and free what is held; harmless when repeated."""
