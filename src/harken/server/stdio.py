"""stdio: newline-delimited JSON over this process's stdin and stdout, or over a Unix socket (clause T7)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from os import PathLike
from typing import TYPE_CHECKING

from harken.server.channel import Channel, Writer

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["serve_stdio", "serve_unix"]

_CLOSE_TIMEOUT = 1.0  # seconds for the last bytes to leave
_CHUNK = 65_536


class ChannelProtocol(asyncio.Protocol):
    """Ties a `Channel` to asyncio's transports; for stdio one protocol serves both pipes."""

    def __init__(self, hub: Hub) -> None:
        self.channel = Channel(hub)
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A pipe or socket is there."""
        if isinstance(transport, asyncio.ReadTransport):
            self.channel.reader = transport
        if isinstance(transport, asyncio.WriteTransport):
            self.channel.writer = transport

    def data_received(self, data: bytes) -> None:
        """Input came."""
        self.channel.received(data)

    def eof_received(self) -> bool:
        """The input has ended; what is open is told so before the output closes (clause T3)."""
        self.channel.input_ended()
        return True

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self.channel.pause()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.channel.resume()

    def connection_lost(self, error: Exception | None) -> None:
        """The channel is gone."""
        self.channel.lost()
        self.closed.set()


class _OutputProtocol(asyncio.BaseProtocol):
    """The writing end of stdio: only its flow control and its loss matter."""

    def __init__(self, protocol: ChannelProtocol) -> None:
        self._protocol = protocol

    def pause_writing(self) -> None:
        """See `ChannelProtocol.pause_writing`."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """See `ChannelProtocol.resume_writing`."""
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """See `ChannelProtocol.connection_lost`."""
        self._protocol.connection_lost(error)


class _InputProtocol(asyncio.Protocol):
    """The reading end of stdio: its loss is the end of the input, not of the channel."""

    def __init__(self, protocol: ChannelProtocol) -> None:
        self._channel = protocol.channel

    def data_received(self, data: bytes) -> None:
        """Input came."""
        self._channel.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """The input has ended, or broken, which is the same to us."""
        self._channel.input_ended()


class _FileWriter:
    """A stdout that no event loop can wait for: a file, a terminal. Writes block, briefly."""

    def __init__(self, fd: int, lost: Callable[[], None]) -> None:
        self._fd = fd
        self._lost = lost

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._lost()

    def close(self) -> None:
        self._lost()

    def abort(self) -> None:
        self._lost()


async def serve_stdio(hub: Hub) -> None:
    """See `Hub.serve_stdio`."""
    await hub.start_lazily()
    with _taken_over(0, os.O_RDONLY, 0) as stdin, _taken_over(1, os.O_WRONLY, 2) as stdout:
        protocol = ChannelProtocol(hub)
        with _ended_by_signals(protocol.channel):
            protocol.channel.writer = await _writer(protocol, stdout)
            await _attach_reader(protocol, stdin)
            await _until_over(protocol)
    await hub.aclose()


async def _until_over(protocol: ChannelProtocol) -> None:
    """Wait for the end of the input, and for the last bytes to leave."""
    await protocol.channel.finished.wait()
    writer = protocol.channel.writer
    if writer is not None and not protocol.closed.is_set():
        writer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await protocol.closed.wait()
        except TimeoutError:
            writer.abort()


async def _writer(protocol: ChannelProtocol, fd: int) -> Writer:
    if _can_wait_for(fd):
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(
            lambda: _OutputProtocol(protocol), os.fdopen(os.dup(fd), "wb", buffering=0)
        )
        return transport
    return _FileWriter(fd, lambda: protocol.connection_lost(None))


async def _attach_reader(protocol: ChannelProtocol, fd: int) -> None:
    if _can_wait_for(fd):
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _InputProtocol(protocol), os.fdopen(os.dup(fd), "rb", buffering=0)
        )
        protocol.channel.reader = transport
    else:
        loop = asyncio.get_running_loop()
        threading.Thread(target=_read_file, args=(loop, protocol.channel, fd), daemon=True).start()


def _read_file(loop: asyncio.AbstractEventLoop, channel: Channel, fd: int) -> None:
    """Read a stdin that no event loop can wait for; a terminal would lose its echo and lines otherwise."""
    with contextlib.suppress(RuntimeError, OSError):  # the loop has closed, or the descriptor
        while data := os.read(fd, _CHUNK):
            loop.call_soon_threadsafe(channel.received, data)
        loop.call_soon_threadsafe(channel.input_ended)


def _can_wait_for(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextlib.contextmanager
def _taken_over(fd: int, flags: int, instead: int) -> Iterator[int]:
    """A private copy of `fd`, in whose place stands something harmless meanwhile (clause T1).

    For stdout that is stderr, so that a stray print() is seen and breaks nothing; for stdin the null device.
    """
    sys.stdout.flush()
    private = os.dup(fd)
    replacement = os.open(os.devnull, flags) if instead == fd else os.dup(instead)
    os.dup2(replacement, fd)
    os.close(replacement)
    try:
        yield private
    finally:
        sys.stdout.flush()
        os.dup2(private, fd)
        os.close(private)


@contextlib.contextmanager
def _ended_by_signals(channel: Channel) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the channel as the end of the input does."""
    loop = asyncio.get_running_loop()
    added = []
    if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, channel.input_ended)
            added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def serve_unix(hub: Hub, path: str | PathLike[str]) -> AsyncIterator[None]:
    """See `Hub.serve_unix`."""
    await hub.start_lazily()
    _remove_stale(path)
    channels: set[ChannelProtocol] = set()

    def accept() -> ChannelProtocol:
        protocol = ChannelProtocol(hub)
        channels.add(protocol)
        task = asyncio.get_running_loop().create_task(_serve_one(protocol))
        task.add_done_callback(lambda _: channels.discard(protocol))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return protocol

    tasks: set[asyncio.Task[None]] = set()
    server = await asyncio.get_running_loop().create_unix_server(accept, os.fspath(path))
    os.chmod(path, 0o600)
    try:
        yield
    finally:
        server.close()
        for protocol in list(channels):
            protocol.channel.input_ended()
        if tasks:
            await asyncio.wait(list(tasks))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


async def _serve_one(protocol: ChannelProtocol) -> None:
    await _until_over(protocol)


def _remove_stale(path: str | PathLike[str]) -> None:
    """Remove the socket that a process which died has left; one that is served raises OSError later."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            os.unlink(path)
