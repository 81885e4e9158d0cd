"""A subscription with a transport under it: what the hub asks of one, and no more."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from harken.core.filters import Filter
from harken.core.subscription import Ending, EndSignal, Framing, Subscription
from harken.core.wire import RequestId

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["Stream"]


class Stream(Subscription):
    """One open stream; its transport's module says how bytes leave.

    All times are the event loop's, in seconds.
    """

    __slots__ = ("__weakref__", "blocked_since", "expires", "hub", "last_write", "slot")

    def __init__(
        self, hub: Hub, id: RequestId, honored: Filter, framing: Framing, end_signal: EndSignal = "result"
    ) -> None:
        super().__init__(id, honored, framing, hub.server_info, end_signal)
        self.hub: Hub = hub
        self.slot: int | None = None
        self.expires: float = float("inf")
        self.last_write: float = 0.0
        self.blocked_since: float | None = None

    @abstractmethod
    def flush(self, now: float) -> None:
        """Write what is to be written, unless the transport would wait; then it is written later."""

    @abstractmethod
    def beat(self, now: float) -> None:
        """Write a keep-alive, where the transport has one (clause H11)."""

    def progressed(self) -> bool:
        """Whether a blocked reader has taken anything since this was last asked; False if nobody can tell."""
        return False

    @abstractmethod
    def abort(self) -> None:
        """Give the transport up without another byte."""

    def unblocked(self) -> None:
        """The transport takes bytes again."""
        self.blocked_since = None

    def stuck(self, ending: Ending) -> None:
        """Leave a reader that takes nothing any more (decision D13)."""
        self.cancel(ending)
        self.abort()
