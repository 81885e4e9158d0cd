"""Many deadlines, one timer: a hub with a hundred thousand streams holds one timer handle."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["Wheel"]


class Due(Protocol):
    """Something with a deadline."""

    slot: int | None
    """The wheel's own note of where this stands; None where it doesn't."""


D = TypeVar("D", bound=Due)


class Wheel(Generic[D]):
    """Calls `due(item, now)` once for each item, at its deadline or up to `grain` seconds later.

    What `due` plans for a time that has passed already comes in a later turn, never in the same one.
    """

    def __init__(self, due: Callable[[D, float], None], grain: float) -> None:
        self._due = due
        self._grain = grain
        self._slots: dict[int, dict[D, None]] = {}
        self._order: list[int] = []
        self._handle: asyncio.TimerHandle | None = None
        self._next: int | None = None
        self._size = 0
        self._earliest = 0  # the first slot that is still to come

    def schedule(self, item: D, when: float) -> None:
        """Let `item` be due at `when`, in the loop's seconds, instead of what was planned before."""
        slot = max(int(when / self._grain) + 1, self._earliest)
        if item.slot == slot and item in self._slots.get(slot, ()):
            return
        self._take_out(item)
        item.slot = slot
        if slot not in self._slots:
            self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        self._slots[slot][item] = None
        self._size += 1
        if self._next is None or slot < self._next:
            self._arm(slot)

    def hasten(self, item: D, when: float) -> None:
        """Let `item` be due at `when` if it would be later otherwise."""
        if item.slot is None or when < item.slot * self._grain:
            self.schedule(item, when)

    def cancel(self, item: D) -> None:
        """Let `item` never be due; without any item there is no timer."""
        self._take_out(item)
        if not self._size:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._next = None
        self._slots.clear()
        self._order.clear()
        self._size = 0

    def _take_out(self, item: D) -> None:
        slot, item.slot = item.slot, None
        if slot is not None and (items := self._slots.get(slot)) is not None and item in items:
            del items[item]  # an empty slot stays until it comes up, so that its number stands in order once
            self._size -= 1

    def _arm(self, slot: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next = slot
        self._handle = asyncio.get_running_loop().call_at(slot * self._grain, self._turn)

    def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        # The timer may come a hair early, and a division may round down: what it was set for is due.
        current = max(int(now / self._grain), self._next or 0)
        self._handle = self._next = None
        self._earliest = current + 1
        try:
            while self._order and self._order[0] <= current:
                slot = self._order[0]
                items = self._slots[slot]
                while items:
                    item = next(iter(items))
                    self._take_out(item)
                    self._due(item, now)
                if slot in self._slots:  # nobody has cleared the wheel meanwhile
                    heapq.heappop(self._order)
                    del self._slots[slot]
        finally:  # whatever one item does, the others stay due
            if self._size:
                self._arm(self._order[0])
            else:
                self.clear()
