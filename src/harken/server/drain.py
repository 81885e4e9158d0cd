"""How a hub learns that the process is to end, whoever runs it.

A server that waits for its connections before it tells the app (uvicorn does) would wait for ever for streams
that only the app can end. So a running hub hears of the end from the first of:

- `await hub.drain()`;
- SIGTERM or SIGINT: handlers that call whatever handler was there before. They are looked at again when a
  stream opens, since some servers install their own late;
- uvicorn's `Server.shutdown`, wrapped while a hub runs: a server in a thread gets no signals.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["GRACE", "forget", "look_again", "watch", "window"]

GRACE = 1.0  # seconds after the window before a reader that has not taken its end is left
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_hubs: WeakKeyDictionary[Hub, asyncio.AbstractEventLoop] = WeakKeyDictionary()
_before: dict[int, Callable[[int, FrameType | None], Any]] = {}


def window(streams: int) -> float:
    """Seconds over which so many streams end, so that the clients don't all come back at once."""
    return min(10.0, max(1.0, streams / 1000))


def watch(hub: Hub) -> None:
    """Drain `hub`, which runs on this event loop, when the process is to end."""
    _hubs[hub] = asyncio.get_running_loop()
    look_again()


def forget(hub: Hub) -> None:
    """Stop watching for `hub`; after the last one, everything is as it was before."""
    _hubs.pop(hub, None)
    if not _hubs:
        _restore_signals()
        _unwrap_uvicorn()


def look_again() -> None:
    """Put our handlers where a server has put its own since."""
    _wrap_uvicorn()
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            current = signal.getsignal(number)
            # Without a handler of Python's nobody serves here: such a process is to end at once, as ever.
            if callable(current) and current is not _on_signal:
                _before[number] = current
                signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    for hub, loop in list(_hubs.items()):
        if not loop.is_closed():
            loop.call_soon_threadsafe(_signalled, hub)
    if (before := _before.get(number)) is not None:
        before(number, frame)


def _signalled(hub: Hub) -> None:
    if hub.draining:
        hub.abort()  # a second signal ends at once
    else:
        hub.begin_drain()


def _restore_signals() -> None:
    if threading.current_thread() is threading.main_thread():
        for number, before in _before.items():
            if signal.getsignal(number) is _on_signal:
                signal.signal(number, before)
        _before.clear()


def _wrap_uvicorn() -> None:
    server = getattr(sys.modules.get("uvicorn.server"), "Server", None)
    if server is None or hasattr(server.shutdown, "__wrapped_by_harken__"):
        return
    shutdown = server.shutdown

    async def drain_and_shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        here = asyncio.get_running_loop()
        for hub, loop in list(_hubs.items()):
            if loop is here:
                hub.begin_drain()
        await shutdown(self, *args, **kwargs)

    drain_and_shutdown.__wrapped_by_harken__ = shutdown  # type: ignore[attr-defined]  # a function takes any
    server.shutdown = drain_and_shutdown


def _unwrap_uvicorn() -> None:
    server = getattr(sys.modules.get("uvicorn.server"), "Server", None)
    if server is not None and hasattr(server.shutdown, "__wrapped_by_harken__"):
        server.shutdown = server.shutdown.__wrapped_by_harken__
