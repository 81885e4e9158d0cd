"""`min_interval`: at most one event an item in each interval, and never the last one lost.

The first event of an item passes at once (leading edge). What comes within the interval is held, one an item,
and passes when the interval ends (trailing edge), which begins the next. So sustained churn keeps frames
coming, and a change in the last microsecond of an interval is told after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from harken.core.events import Event

__all__ = ["Throttle"]

MAX_ITEMS = 100_000  # that may be within their interval at once; beyond, events pass at once


class Throttle:
    """Passes events on to `deliver`, each item once an `interval` (in seconds)."""

    def __init__(self, interval: float, deliver: Callable[[Sequence[Event]], None]) -> None:
        self._interval = interval
        self._deliver = deliver
        self._held: dict[Event, bool] = {}  # item → whether an event is held back for it
        self._ends: deque[tuple[float, Event]] = deque()  # the interval is one, so the order is by time
        self._handle: asyncio.TimerHandle | None = None

    def __call__(self, events: Sequence[Event]) -> None:
        """Pass on what may pass now and hold the rest."""
        passing = []
        for event in events:
            if event in self._held:
                self._held[event] = True
                continue
            passing.append(event)
            if len(self._held) < MAX_ITEMS:
                self._open(event, asyncio.get_running_loop().time())
        if passing:
            self._deliver(passing)

    def release(self) -> None:
        """Pass on all that is held, now."""
        held = [event for event, waiting in self._held.items() if waiting]
        self._held.clear()
        self._ends.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if held:
            self._deliver(held)

    def _open(self, event: Event, now: float) -> None:
        self._held[event] = False
        self._ends.append((now + self._interval, event))
        if self._handle is None:
            self._arm()

    def _arm(self) -> None:
        self._handle = asyncio.get_running_loop().call_at(self._ends[0][0], self._turn)

    def _turn(self) -> None:
        self._handle = None
        now = asyncio.get_running_loop().time()
        passing = []
        while self._ends and self._ends[0][0] <= now:
            event = self._ends.popleft()[1]
            if self._held.pop(event):
                passing.append(event)
        for event in passing:
            self._open(event, now)
        if passing:
            self._deliver(passing)
        if self._ends and self._handle is None:
            self._arm()
