"""How our own commands run a server: bind, say where, serve, and end in order.

The socket is bound before anything else, so the URL that is printed answers from then on. The first SIGINT or
SIGTERM ends gracefully (every stream gets its result), the second at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import uvicorn

from harken.server import drain
from harken.server.asgi import ASGIApp
from harken.server.hub import Hub

__all__ = ["CannotBind", "bind", "run_app", "url_of"]

EXIT_ENDED = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2

BACKLOG = 4096  # a fleet of clients that returns at once
KEEP_ALIVE_TIMEOUT = 75  # seconds; longer than what HTTP clients keep an idle connection for
LAST_ANSWERS = 0.5  # seconds that answers in flight have once the streams have ended
LAST_RESORT = 5.0  # seconds from the end of the drain window until the process is ended by force

# F36: a peer that vanished without a word is found within half a minute, data in flight or not.
USER_TIMEOUT = 30_000  # milliseconds that sent data may go unacknowledged
PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds; a count

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
PUT_RIGHT = {
    errno.EADDRINUSE: "port {port} on {host} is in use: end what listens there, or pass another --port "
    "(--port 0 picks a free one)",
    errno.EACCES: "port {port} needs privileges that this process lacks: pass a --port above 1023",
    errno.EADDRNOTAVAIL: "{host} is not an address of this machine: pass --host 127.0.0.1 for this machine "
    "alone, or --host 0.0.0.0 for all its addresses",
}


class CannotBind(Exception):
    """The address can't be listened at; the message says what to do."""


def run_app(app: ASGIApp, hub: Hub, host: str, port: int, *, as_json: bool = False, label: str = "") -> int:
    """Serves `app` at `host` and `port` until a signal, drains `hub`, and returns the exit code.

    The first line on stderr is the URL, with `label` on the next one; as JSON it is on stdout instead. Call
    it from the main thread. Port 0 picks a free port.
    """
    try:
        listener = bind(host, port)
    except CannotBind as error:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        _say({"type": "error", "message": str(error), "time": now}, f"error: {error}", as_json)
        return EXIT_USAGE
    _allow_many_files()
    config = uvicorn.Config(
        app,
        ws="none",
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        proxy_headers=False,  # who the peer is decides who may publish
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT,
    )
    with _Signals(hub) as signals, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        url = url_of(host, listener)
        _say({"type": "ready", "url": url}, f"{url}\n{label}".rstrip(), as_json)
        return runner.run(_serve(_Server(config), hub, listener, signals))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotBind."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise CannotBind(f"--host {host!r} is neither an address nor a known name ({error})") from error
    listener = socket.socket(family, kind, protocol)
    try:
        _set_options(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        message = PUT_RIGHT.get(error.errno or 0, "cannot listen at port {port} on {host}: {error}")
        raise CannotBind(message.format(host=host, port=port, error=error.strerror)) from error
    listener.setblocking(False)
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """Where a client on this machine finds the endpoint."""
    name = WILDCARDS.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}/mcp"


def _set_options(listener: socket.socket) -> None:
    """Accepted sockets inherit these from the listening one."""
    if os.name == "posix":  # elsewhere the option would let two servers share a port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**PROBES, "TCP_USER_TIMEOUT": USER_TIMEOUT}.items():
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):  # a platform that names an option and lacks it
                listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _allow_many_files() -> None:
    """Lifts the soft limit of open files to the hard one: each stream is one."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems name a hard limit that they don't grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say(message: dict[str, str], text: str, as_json: bool) -> None:
    """One object on stdout for machines, or text on stderr for people."""
    with contextlib.suppress(BrokenPipeError):  # a server goes on where nobody reads its greeting
        if as_json:
            print(json.dumps(message), flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


class _Signals:
    """SIGINT and SIGTERM: the first asks for the graceful end, the second ends the process at once."""

    def __init__(self, hub: Hub) -> None:
        self.asked = asyncio.Event()
        self._hub = hub
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def attach(self) -> None:
        """Has the running loop woken by a signal; one that came before counts."""
        self._loop = asyncio.get_running_loop()
        if self._seen:
            self.asked.set()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._seen:
            os._exit(128 + number)
        self._seen = True
        # Bounds the shutdown even where the loop or a thread hangs, and shows where.
        streams = len(self._hub.streams)
        window = drain.window(streams) if self._hub.drain_window is None else self._hub.drain_window
        faulthandler.dump_traceback_later(window + LAST_RESORT, exit=True)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.asked.set)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process by raising the signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(server: _Server, hub: Hub, listener: socket.socket, signals: _Signals) -> int:
    signals.attach()
    ending = asyncio.create_task(_end(server, hub, signals.asked))
    try:
        await server.serve(sockets=[listener])
    except SystemExit:  # uvicorn's way to say that the app did not start; it has logged why
        return EXIT_INTERNAL
    finally:
        ending.cancel()
    return EXIT_ENDED


async def _end(server: _Server, hub: Hub, asked: asyncio.Event) -> None:
    """At the signal: no new connections, every stream its result, then whoever still hangs is cut off."""
    await asked.wait()
    server.should_exit = True
    await hub.drain()
    await asyncio.sleep(LAST_ANSWERS)  # cancelled as soon as the last connection has closed
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what follows is meant, and no error
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    if tasks := list(server.server_state.tasks):
        await asyncio.wait(tasks, timeout=LAST_ANSWERS)  # most see that their client is gone
    for task in tasks:
        task.cancel()
