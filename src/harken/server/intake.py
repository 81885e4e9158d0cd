"""Events from other threads, and from before the hub runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from harken.core.events import Event, ResourceUpdated
from harken.core.filters import KIND_OF
from harken.core.uris import normalize
from harken.errors import HarkenError, HubClosed

__all__ = ["Intake", "checked"]

MAX_KEPT = 100_000  # distinct events that wait for the hub to start


class Intake:
    """Hands events to `accept` on the hub's event loop, from whichever thread they come."""

    def __init__(self, accept: Callable[[Sequence[Event]], None]) -> None:
        self._accept = accept
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._kept: dict[Event, None] = {}

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over what was kept, and from now on at once."""
        with self._lock:
            self._loop, self._closed = loop, False
            kept, self._kept = self._kept, {}
        if kept:
            self._accept(list(kept))

    def close(self) -> None:
        """Take nothing any more."""
        with self._lock:
            self._loop, self._closed = None, True

    def from_thread(self, events: Sequence[Event], timeout: float) -> None:
        """See `Hub.publish_from_thread`."""
        with self._lock:
            if self._closed:
                raise HubClosed("the hub has ended; it takes no more events")
            if self._loop is None:
                self._keep(events)
                return
            loop = self._loop
        if _running() is loop:
            self._accept(events)
            return
        accepted: Future[None] = Future()
        try:
            loop.call_soon_threadsafe(self._settle, accepted, events)
        except RuntimeError as error:
            raise HubClosed("the hub's event loop is closed") from error
        accepted.result(timeout)

    def _keep(self, events: Iterable[Event]) -> None:
        new = dict.fromkeys(event for event in events if event not in self._kept)
        if len(self._kept) + len(new) > MAX_KEPT:  # all are taken, or none
            raise HarkenError(
                f"no more than {MAX_KEPT} events may wait for this hub to start, and {len(self._kept)} do: "
                "start it first"
            )
        self._kept |= new

    def _settle(self, accepted: Future[None], events: Sequence[Event]) -> None:
        if not accepted.set_running_or_notify_cancel():
            return
        try:
            self._accept(events)
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits for it
            accepted.set_exception(error)
        else:
            accepted.set_result(None)


def checked(events: Iterable[Event]) -> list[Event]:
    """The same events with their URIs in normal form; all are good, or none is taken.

    Raises TypeError for what is no event and InvalidURI for what is no URI.
    """
    good: list[Event] = []
    for event in events:
        if type(event) is ResourceUpdated:
            uri = normalize(event.uri)
            good.append(event if uri is event.uri else ResourceUpdated(uri))
        elif type(event) in KIND_OF:
            good.append(event)
        else:
            raise TypeError(f"not an event: {event!r} (see harken.ToolsListChanged and its siblings)")
    return good


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
