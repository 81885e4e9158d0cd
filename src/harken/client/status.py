"""What a watch is doing, to be read, to be told of, and to be waited for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harken.core.demux import Ending

__all__ = ["WatchState", "WatchStatus"]


class WatchState(StrEnum):
    """What a watch is doing."""

    CONNECTING = "connecting"
    """It is making the connection, or waits for the acknowledgment."""
    LIVE = "live"
    """The server has acknowledged: what it honours is told as it changes."""
    BACKING_OFF = "backing_off"
    """The stream has ended, and there is a delay before the next attempt."""
    REFUSED = "refused"
    """There is no stream and no further attempt: the error says why. `Watch.update()` makes another one."""
    CLOSED = "closed"
    """Its user has left it."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """One state, and what led to it.

    `reason` is how the last stream or attempt ended, with its `error` where there is more to say; both are
    None for the first attempt, and where the watch is live. `delay` is the time before the next attempt, in
    seconds, where the state is `backing_off`; else None.
    """

    state: WatchState
    reason: Ending | None = None
    delay: float | None = None
    error: Exception | None = None
