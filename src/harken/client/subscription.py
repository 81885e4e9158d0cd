"""One open subscription, as its user sees it."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.lowlevel

from harken.core.demux import Ending, State, Stream
from harken.core.events import Event
from harken.core.filters import Filter
from harken.core.wire import RequestId
from harken.errors import HarkenError

__all__ = ["Subscription"]


class Subscription:
    """An async iterator of typed events.

    Iteration ends with the stream, whatever ended it, after the events that had come before; `ending` then
    says why. What has not been read collapses into one event for each item, so a slow reader costs constant
    memory, and a fast server loses nothing.
    """

    def __init__(
        self,
        stream: Stream,
        on_keep_alive: Callable[[], object] | None = None,
        on_change: Callable[[], object] | None = None,
    ) -> None:
        self._stream = stream
        self._on_keep_alive = on_keep_alive
        self._on_change = on_change
        self._changed = anyio.Event()
        self.last_keep_alive: float | None = None
        """When the last keep-alive came, on the clock of `time.monotonic()`; None before the first one.

        Some servers send none, and over stdio there are none (clause H11).
        """
        self.last_heard: float = time.monotonic()
        """When anything last came, a keep-alive too, on that same clock; before that, when it was begun."""

    def __repr__(self) -> str:
        where = self.ending or self._stream.state.name.lower()
        return f"<Subscription {self.subscription_id!r} {where}>"

    @property
    def subscription_id(self) -> RequestId:
        """The id of the listen request, which every message of this subscription carries."""
        return self._stream.id

    @property
    def requested(self) -> Filter:
        """What was asked for."""
        return self._stream.requested

    @property
    def honored(self) -> Filter:
        """What of it the server has agreed to (clause R11)."""
        return self._stream.honored or Filter()

    @property
    def unsupported(self) -> Filter:
        """What was asked for and not agreed to: of this the server sends nothing (clause R11)."""
        return self.requested.without(self.honored)

    @property
    def acknowledged(self) -> bool:
        """Whether the server has acknowledged it, ended or not."""
        return self._stream.honored is not None

    @property
    def ending(self) -> Ending | None:
        """Why the stream has ended, None while it has not (clause R25)."""
        return self._stream.ending

    @property
    def error(self) -> HarkenError | None:
        """More about the ending, where there is more to say."""
        return self._stream.error

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        await anyio.lowlevel.checkpoint()
        while True:
            event = self.take()
            if event is not None:
                return event
            if self._stream.ending is not None:
                raise StopAsyncIteration
            await self._changed.wait()

    def take(self) -> Event | None:
        """The next event without waiting; None where there is none yet, or none any more."""
        return self._stream.take()

    async def wait_settled(self) -> None:
        """Until the acknowledgment or the end, whichever comes first."""
        while self._stream.state is State.WAITING:
            await self._changed.wait()

    def end(self, ending: Ending, error: HarkenError | None = None) -> None:
        """The transport, or the user, has ended it; the first ending counts."""
        self._stream.end(ending, error)
        self.wake()

    def wake(self) -> None:
        """The transport has changed something: let whoever waits look again."""
        self.last_heard = time.monotonic()
        self._changed.set()
        self._changed = anyio.Event()
        if self._on_change is not None:
            self._on_change()

    def kept_alive(self) -> None:
        """The transport has seen a keep-alive (clause H11)."""
        self.last_keep_alive = time.monotonic()
        self.wake()
        if self._on_keep_alive is not None:
            self._on_keep_alive()
