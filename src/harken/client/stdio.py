"""Subscriptions over a child process's standard streams: its start, its end, and what it says on stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.abc

from harken.client.channel import ChannelConnection
from harken.client.connection import Options
from harken.core.lines import LineDecoder, Oversized
from harken.errors import ConnectionLost

__all__ = ["StdioConnection"]

# How long a server may take to end: once after its stdin has closed, once after SIGTERM; in seconds.
_GRACE = 3.0
# How long what a dead server has still written may take to be read, and how long one that has closed its
# stdout may take to die before it is called lost, in seconds.
_DRAIN = 0.5
# A longer line on stderr is skipped, in bytes.
_MAX_STDERR_LINE = 64 * 1024


class StdioConnection(ChannelConnection):
    """A connection to a server that it starts as a child process.

    `stderr` takes the server's lines there; without it they go to this process's own. They are no sign of
    failure (clause T4).
    """

    def __init__(
        self,
        command: Sequence[str],
        options: Options,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stderr: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(options)
        self._command = list(command)
        self._env = env
        self._cwd = cwd
        self._on_stderr = stderr
        self._process: anyio.abc.Process

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    async def _connect(self) -> None:
        try:
            self._process = await anyio.open_process(
                self._command,
                stderr=None if self._on_stderr is None else subprocess.PIPE,
                env=self._env,
                cwd=self._cwd,
                # Ctrl-C is for this process, which then lets the server end by closing its stdin.
                start_new_session=True,
            )
        except OSError as error:
            raise ConnectionLost(f"cannot start {self._command[0]!r}: {error.strerror or error}") from error

    def _launch(self, tasks: anyio.abc.TaskGroup) -> None:
        super()._launch(tasks)
        tasks.start_soon(self._watch)
        if self._on_stderr is not None:
            tasks.start_soon(self._read_stderr, self._on_stderr)

    async def _receive(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.receive()

    async def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(data)

    async def _close_write(self) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def _close(self) -> None:
        """T4: close stdin, wait, then terminate, then kill."""
        try:
            await self._close_write()
            for send_signal in (self._terminate, self._kill):
                with anyio.move_on_after(_GRACE):
                    await self._process.wait()
                    break
                send_signal()
            await self._process.aclose()
        except BaseException:  # such as a second Ctrl-C: no time is left to ask
            self._kill()
            with anyio.move_on_after(_GRACE, shield=True):
                await self._process.aclose()  # a killed child is gone at once; it only has to be noticed
            raise

    async def _last_words(self) -> str:
        with anyio.move_on_after(_DRAIN):
            return self._death(await self._process.wait())
        return f"{self._command[0]!r} has closed its stdout"

    async def _watch(self) -> None:
        """Notice that the server has died, also where a child of its own keeps its stdout open (T4)."""
        status = await self._process.wait()
        with anyio.move_on_after(_DRAIN):
            await self._read_out.wait()
        self._lose(ConnectionLost(self._death(status)))

    def _death(self, status: int) -> str:
        """The server's end, and what may be wrong with one that has never said anything."""
        ended = f"{self._command[0]!r} has ended with status {status}"
        if self._heard:
            return ended
        wrote = f" It wrote {self._garbled.decode(errors='replace')!r}." if self._garbled else ""
        return f"{ended} before it answered; does it speak MCP on its stdin and stdout?{wrote}"

    async def _read_stderr(self, report: Callable[[str], object]) -> None:
        assert self._process.stderr is not None
        decoder = LineDecoder(_MAX_STDERR_LINE)
        try:
            async for data in self._process.stderr:
                for line in decoder.feed(data):
                    if not isinstance(line, Oversized):
                        report(line.decode(errors="replace"))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # it is no sign of anything

    def _terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _kill(self) -> None:
        self._signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """To the server and its own children: a wrapper such as `npx` or `uv run` may not pass it on."""
        if self._process.returncode is not None:
            return  # its number may be somebody else's by now
        try:
            if sys.platform == "win32":
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass  # it has just ended
