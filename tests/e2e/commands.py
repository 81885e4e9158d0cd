"""Real commands in tests: started, read line by line, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any

LIMIT = 30  # seconds, a bound on a machine with much else to do


class Command:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.stdout = process.stdout
        self.stderr = process.stderr

    async def line(self) -> str:
        """The next line of stdout; fails with what stderr says where there is none."""
        line = await self.stdout.readline()
        assert line, f"stdout has ended; stderr: {(await self.stderr.read()).decode()}"
        return line.decode().rstrip("\n")

    async def message(self) -> Any:
        """The next line of stdout, as JSON."""
        return json.loads(await self.line())

    async def messages(self) -> list[Any]:
        """What is left of stdout, as JSON lines."""
        return [json.loads(line) for line in (await self.stdout.read()).decode().splitlines()]

    async def url(self) -> str:
        """The first line on stderr."""
        line = (await self.stderr.readline()).decode().strip()
        assert line.startswith("http"), line + (await self.stderr.read()).decode()
        return line

    async def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    async def end(self) -> tuple[int, str, str]:
        """The exit code, and what was left to read of stdout and stderr."""
        stdout, stderr = await asyncio.gather(self.stdout.read(), self.stderr.read())
        return await self.process.wait(), stdout.decode(), stderr.decode()


@contextlib.asynccontextmanager
async def command(
    *words: str, env: Mapping[str, str] | None = None, limit: float = LIMIT
) -> AsyncIterator[Command]:
    """Runs `words`, bounded in time, with `env` added to the environment."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        async with asyncio.timeout(limit):
            yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # its pipes are closed, too


async def run(*words: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Runs `words` to the end: the exit code, stdout, stderr."""
    async with command(*words, env=env) as running:
        return await running.end()
