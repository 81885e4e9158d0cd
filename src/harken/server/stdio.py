"""stdio: newline-delimited JSON over this process's stdin and stdout, or over a Unix socket (clause T7)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, cast

from harken.server.channel import Channel, Writer

if TYPE_CHECKING:
    from harken.server.hub import Hub

__all__ = ["serve_stdio", "serve_unix"]

_CLOSE_TIMEOUT = 1.0  # seconds for the last bytes to leave
_CHUNK = 65_536


class ChannelProtocol(asyncio.Protocol):
    """Ties a `Channel` to asyncio's transports; for stdio one protocol serves both pipes."""

    def __init__(self, hub: Hub) -> None:
        self.channel: Channel = Channel(hub)
        self.closed: asyncio.Event = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A socket is there, which is both. (uvloop's transports are of none of asyncio's classes.)"""
        self.channel.reader = self.channel.writer = cast("asyncio.Transport", transport)

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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The pipe is there."""
        self._channel.reader = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Input came."""
        self._channel.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """The input has ended, or broken, which is the same to us."""
        self._channel.reader = None
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

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._lost()

    def abort(self) -> None:
        self._lost()


class _FileReader:
    """A stdin that no event loop can wait for: a file, a terminal. A thread reads it, a chunk at a time.

    (Waited for like a pipe, a terminal would lose its echo and its lines.) The thread may sit in a read for
    ever, so it has a descriptor of its own and is left alone at the end.
    """

    def __init__(self, channel: Channel, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._fd = os.dup(fd)
        self._wanted = threading.Event()
        self._paused = self._asked = self._closed = False
        threading.Thread(target=self._run, name="harken-stdin", daemon=True).start()
        self._ask()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._ask()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _ask(self) -> None:
        if not self._paused and not self._asked:
            self._asked = True
            self._wanted.set()

    def _take(self, data: bytes) -> None:
        self._asked = False
        if self._closed:
            return
        if data:
            self._channel.received(data)
            self._ask()
        else:
            self._channel.input_ended()

    def _run(self) -> None:
        data = b"?"
        with contextlib.suppress(RuntimeError):  # the loop has closed
            while data:
                self._wanted.wait()
                self._wanted.clear()
                if self._closed:
                    break
                try:
                    data = os.read(self._fd, _CHUNK)
                except OSError:  # such as a terminal that hung up
                    data = b""
                self._loop.call_soon_threadsafe(self._take, data)
        os.close(self._fd)


async def serve_stdio(hub: Hub) -> None:
    """See `Hub.serve_stdio`."""
    if sys.__stdin__ is None or sys.__stdout__ is None:  # and by now the number may be something else's
        raise OSError(errno.EBADF, "stdin or stdout is closed, and serve_stdio() needs both")
    await hub.start_lazily()
    with _taken_over(0, os.O_RDONLY) as stdin, _taken_over(1, os.O_WRONLY, instead=2) as stdout:
        protocol = ChannelProtocol(hub)
        channel = protocol.channel
        with _ended_by_signals(channel):
            try:
                channel.writer = await _writer(protocol, stdout)
                await _attach_reader(protocol, stdin)
            except BaseException:
                _leave(channel)
                raise
            await _until_over(protocol)
    await hub.aclose()


async def _until_over(protocol: ChannelProtocol) -> None:
    """Wait for the end of the input, and for the last bytes to leave."""
    channel = protocol.channel
    try:
        await channel.finished.wait()
        if channel.writer is not None:
            channel.writer.close()
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await protocol.closed.wait()
    except TimeoutError:
        pass  # who does not read his last bytes is left
    finally:
        _leave(channel)


def _leave(channel: Channel) -> None:
    channel.abort()
    channel.lost()


async def _writer(protocol: ChannelProtocol, fd: int) -> Writer:
    if _can_wait_for(fd):
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(
            lambda: _OutputProtocol(protocol), os.fdopen(os.dup(fd), "wb", buffering=0)
        )
        return transport
    return _FileWriter(fd, lambda: protocol.connection_lost(None))


async def _attach_reader(protocol: ChannelProtocol, fd: int) -> None:
    if _can_wait_for(fd):
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: _InputProtocol(protocol), os.fdopen(os.dup(fd), "rb", buffering=0)
        )
    else:
        protocol.channel.reader = _FileReader(protocol.channel, fd)


def _can_wait_for(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextlib.contextmanager
def _taken_over(fd: int, flags: int, instead: int | None = None) -> Iterator[int]:
    """A private copy of `fd`, in whose place stands something harmless meanwhile (clause T1).

    For stdout that is stderr, so that a stray print() is seen and breaks nothing, one from before that still
    sits in the buffer included (clause T5); for stdin the null device.
    """
    private = os.dup(fd)
    blocking = os.get_blocking(private)
    replacement = _open_instead(instead, flags)
    os.dup2(replacement, fd)
    os.close(replacement)
    if fd == 1:
        _flush_stdout()
    try:
        yield private
    finally:
        if fd == 1:
            _flush_stdout()
        os.set_blocking(private, blocking)  # others may have this pipe open, too
        os.dup2(private, fd)
        os.close(private)


def _open_instead(fd: int | None, flags: int) -> int:
    try:
        if fd is not None:
            return os.dup(fd)
    except OSError:
        pass  # stderr is closed
    return os.open(os.devnull, flags)


def _flush_stdout() -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # broken, closed, or none
        sys.stdout.flush()


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
    channels: dict[asyncio.Task[None], ChannelProtocol] = {}

    def accept() -> ChannelProtocol:
        protocol = ChannelProtocol(hub)
        task = asyncio.get_running_loop().create_task(_until_over(protocol))
        channels[task] = protocol
        task.add_done_callback(channels.pop)
        return protocol

    with _bound(path) as listening:
        server = await asyncio.get_running_loop().create_unix_server(accept, sock=listening)
        try:
            yield
        finally:
            server.close()
            for protocol in channels.values():
                protocol.channel.input_ended()
            if channels:
                await asyncio.wait(list(channels))


@contextlib.contextmanager
def _bound(path: str | PathLike[str]) -> Iterator[socket.socket]:
    """A socket at `path` that this user alone may open; what stands there is removed at the end.

    It is bound here, since the event loop's own way would take the place of a server that is still alive.
    """
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        os.chmod(path, 0o600)  # before anybody can connect
        ours = os.stat(path)
        try:
            yield listening
        finally:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(ours, os.stat(path)):  # else it is another server's by now
                    os.unlink(path)


def _remove_stale(path: str | PathLike[str]) -> None:
    """Remove the socket that a process which died has left; on one that is served, bind() raises OSError."""
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
