"""Cutting connections that only their server holds: ASGI has no way to abort one.

Returning from the app is not enough where a reader has stopped: servers then wait for it to take what is
buffered, and a shutdown waits with them. So the connection is found among the process's own sockets, by both
its ends, and shut down; its server notices as if the client had left. Where nothing is found (behind a proxy
whose headers replace the client's address, on a Unix socket, without /dev/fd) nothing happens, and the
server's own settings bound the rest.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Iterator

from harken.server.asgi import Scope

__all__ = ["Connection", "Cuts", "connection_of"]

Connection = tuple[str, int, int]
"""The client's address and port, and our own port."""


def connection_of(scope: Scope) -> Connection | None:
    """The connection that a request has for itself, as far as its server tells; None for HTTP/2 and 3."""
    client, server = scope.get("client"), scope.get("server")
    if scope.get("http_version") not in {"1.0", "1.1"}:
        return None
    try:
        return str(client[0]), int(client[1]), int(server[1])  # type: ignore[index]  # None: a TypeError
    except (TypeError, ValueError, LookupError):  # some servers give neither, some give text
        return None


class Cuts:
    """The connections to be cut; all of one turn of the event loop in one search.

    A thread does it: among a hundred thousand sockets a search takes a second.
    """

    def __init__(self) -> None:
        self._due: set[Connection] = set()

    def add(self, connection: Connection) -> None:
        """Cut `connection` soon."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._start)
        self._due.add(connection)

    def _start(self) -> None:
        due, self._due = self._due, set()
        threading.Thread(target=_cut, args=(due,), name="harken-cuts", daemon=True).start()


def _cut(due: set[Connection]) -> None:
    for found in _sockets():
        try:
            peer, here = found.getpeername(), found.getsockname()
            if isinstance(peer, tuple) and (peer[0], peer[1], here[1]) in due:
                found.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # a listener, or one that has gone meanwhile


def _sockets() -> Iterator[socket.socket]:
    """The process's own sockets, each through a descriptor of ours."""
    try:
        descriptors = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return
    for fd in descriptors:
        if (found := _socket(fd)) is not None:
            with found:
                yield found


def _socket(fd: int) -> socket.socket | None:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        copy = os.dup(fd)
    except OSError:
        return None  # closed since it was listed
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
