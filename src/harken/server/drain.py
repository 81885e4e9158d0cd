"""How a hub learns that the process is to end, whoever runs it.

A server that waits for its connections before it tells the app would wait for ever for streams that only the
app can end. So a running hub hears of the end from the first of:

- `await hub.drain()`, and the lifespan of its app;
- SIGTERM, SIGINT or SIGQUIT: handlers that call whatever handler was there before. They are looked at again
  when a stream opens, since some servers install their own late;
- uvicorn's `Server.shutdown`, wrapped while a hub runs: a server in a thread gets no signals, and one that
  has reached its `limit_max_requests` neither.

What tells it, by server (tests/e2e/test_shutdown.py runs each, docs/shutdown.md says what operators see):

- uvicorn, alone, by `uvicorn.run()`, under its reloader or with workers, and gunicorn's `UvicornWorker`: the
  signal, or else the wrapped method. `lifespan.shutdown` comes only after the connections have closed.
- gunicorn's own `asgi` worker: the signal. On SIGINT gunicorn sends its workers SIGQUIT, which means "at
  once": every stream gets its result without a window.
- granian: the signal.
- hypercorn, in one process (`--workers 0`, or `hypercorn.asyncio.serve()`): the signal. The workers that its
  command starts otherwise get none: there the event that ends their connections is followed, as far as a
  stream's own `send` leads to it. Behind middleware it does not; a `shutdown_trigger` that awaits
  `hub.drain()` works everywhere.

A supervisor often passes on a signal that the whole process group has had already (Ctrl-C in a terminal,
systemd): within ECHO of the first such a repetition is no second wish.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["ECHO", "GRACE", "follow", "forget", "is_set_by", "look_again", "watch", "window"]

GRACE = 1.0  # seconds after the window before a reader that has not taken its end is left
ECHO = 1.0  # seconds; uvicorn's parent looks for signals twice a second, gunicorn's ten times
_NAMES = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGBREAK")  # not each platform has all
_SIGNALS = [number for number in signal.Signals if number.name in _NAMES]
_AT_ONCE = [number for number in _SIGNALS if number.name == "SIGQUIT"]

_lock = threading.Lock()  # hubs may run on event loops in several threads
_watches: tuple[_Watch, ...] = ()  # replaced whole: a signal may come at any moment
_passing: set[int] = set()  # the signals that a handler of ours is passing on right now
_wrap: _Wrap | None = None


def window(streams: int) -> float:
    """Seconds over which so many streams end, so that the clients don't all come back at once."""
    return min(10.0, max(1.0, streams / 1000))


async def is_set_by(event: asyncio.Event, when: float) -> bool:
    """Wait for `event`, but not longer than until `when`, in the loop's seconds; whether it is set."""
    try:
        async with asyncio.timeout_at(when):
            await event.wait()
    except TimeoutError:
        return False
    return True


def watch(hub: Hub) -> None:
    """Drain `hub`, which runs on this event loop, when the process is to end."""
    global _watches
    with _lock:
        _watches = (*_others(hub), _Watch(hub, asyncio.get_running_loop()))
    look_again()


def forget(hub: Hub) -> None:
    """Stop watching for `hub`; after the last one, everything is as it was before."""
    global _watches
    for watch in _watches:
        if watch.hub() is hub:
            watch.close()
    with _lock:
        _watches = _others(hub)
        if not _watches:
            _restore_signals()
            _unwrap_uvicorn()


def look_again() -> None:
    """Put our handlers where a server has put its own since."""
    with _lock:
        _wrap_uvicorn()
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                # Without a handler of Python's nobody serves here: such a process is to end at once, as ever.
                if callable(before) and not isinstance(before, _Handler):
                    signal.signal(number, _Handler(before))


def follow(hub: Hub, send: object) -> None:
    """Drain `hub` when the hypercorn worker is to end to which `send`, a stream's own, belongs."""
    server = getattr(send, "__self__", None)
    if type(server).__module__ == "hypercorn.protocol.http_stream":
        terminated = getattr(getattr(server, "context", None), "terminated", None)
        for watch in _watches:
            if watch.hub() is hub and terminated is not None:
                watch.follow(terminated.wait)


def _others(hub: Hub) -> tuple[_Watch, ...]:
    return tuple(watch for watch in _watches if watch.hub() not in {None, hub})


class _Watch:
    """A running hub, and what it has been told so far."""

    __slots__ = ("_first", "_follower", "_interrupted", "hub", "loop")

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        self.hub = ref(hub)
        self.loop = loop
        self._first: float | None = None
        self._interrupted = False
        self._follower: asyncio.Task[None] | None = None

    def follow(self, end: Callable[[], Awaitable[object]]) -> None:
        """Drain when `end()` returns."""
        if self._follower is None:
            self._follower = self.loop.create_task(self._drain_after(end))

    def close(self) -> None:
        """Follow nothing any more; called on the hub's event loop."""
        if self._follower is not None:
            self._follower.cancel()

    async def _drain_after(self, end: Callable[[], Awaitable[object]]) -> None:
        await end()
        if (hub := self.hub()) is not None:
            hub.begin_drain()

    def tell(self, number: int) -> None:
        """A signal has come; called by its handler, on any event loop or none."""
        try:
            self.loop.call_soon_threadsafe(self._told, number, time.monotonic())
        except RuntimeError:
            pass  # the loop has closed without a word to the hub

    def _told(self, number: int, when: float) -> None:
        hub = self.hub()
        if hub is None:
            return
        again = self._first is not None and (
            when > self._first + ECHO or (number == signal.SIGINT and self._interrupted)
        )
        if self._first is None:
            self._first = when
            hub.begin_drain()
        self._interrupted |= number == signal.SIGINT
        if again or number in _AT_ONCE:
            hub.hurry()


class _Handler:
    """Tells every hub, then does what was done before."""

    def __init__(self, before: Callable[[int, FrameType | None], Any]) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number in _passing:  # whom we call has called an older one of ours
            self.before(number, frame)
            return
        _passing.add(number)
        try:
            for watch in _watches:
                watch.tell(number)
            self.before(number, frame)
        finally:
            _passing.discard(number)


def _restore_signals() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if isinstance(handler, _Handler):
                signal.signal(number, handler.before)


class _Wrap:
    """Our function in the place of `uvicorn.Server.shutdown`."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._before: Callable[..., Awaitable[None]] = server.shutdown
        before = self._before

        async def drain_and_shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
            here = asyncio.get_running_loop()
            for watch in _watches:
                if watch.loop is here and (hub := watch.hub()) is not None:
                    hub.begin_drain()
            await before(self, *args, **kwargs)

        self._ours = server.shutdown = drain_and_shutdown

    def undo(self) -> bool:
        """Whether the old function is back; not where somebody has wrapped ours meanwhile."""
        if self._server.shutdown is not self._ours:
            return False
        self._server.shutdown = self._before
        return True


def _wrap_uvicorn() -> None:
    global _wrap
    server = getattr(sys.modules.get("uvicorn.server"), "Server", None)
    if server is not None and _wrap is None:
        _wrap = _Wrap(server)


def _unwrap_uvicorn() -> None:
    global _wrap
    if _wrap is not None and _wrap.undo():
        _wrap = None
