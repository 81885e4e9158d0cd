"""The npm packages in this folder, and the official TypeScript SDK's client (`client.mjs`) for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent
LIMIT = 20  # seconds, a bound on a machine with much else to do
Line = dict[str, Any]


def installed() -> Path:
    """This folder, where the npm packages are installed in it."""
    assert (PEERS / "node_modules").is_dir(), "the npm packages of the peers are missing: run `make peers`"
    return PEERS


class TypeScriptClient:
    """The client's process: orders go in, and what happens comes out, a JSON line each."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._unread: list[Line] = []
        self.capabilities: dict[str, Any] = {}

    def do(self, verb: str, **order: Any) -> None:
        """Tell the client to do something."""
        self._stdin.write(json.dumps({"do": verb, **order}).encode() + b"\n")

    async def see(self, **fields: Any) -> Line:
        """The first line with these fields that nobody has seen yet; what else comes is kept."""
        while True:
            for line in self._unread:
                if fields.items() <= line.items():
                    self._unread.remove(line)
                    return line
            text = await self._stdout.readline()
            assert text, f"ended without {fields}; unread: {self._unread}"
            self._unread.append(json.loads(text))

    async def listen(self, name: str, **wanted: Any) -> Line:
        """Open a subscription; what the server honours."""
        self.do("listen", **{"as": name, "filter": wanted})
        honored: Line = (await self.see(**{"type": "listening", "as": name}))["honored"]
        return honored

    async def close(self, name: str) -> None:
        """Leave a subscription."""
        self.do("close", **{"as": name})
        await self.see(**{"type": "closed", "as": name, "how": "local"})

    async def call(self, tool: str, **arguments: str) -> str:
        """Call a tool of the server's; the text of its answer."""
        self.do("call", tool=tool, arguments=arguments)
        text: str = (await self.see(type="answer"))["text"]
        return text

    async def rest(self) -> list[Line]:
        """End the client; all lines that nobody has seen."""
        self._stdin.close()
        return [*self._unread, *map(json.loads, (await self._stdout.read()).splitlines())]


@contextlib.asynccontextmanager
async def typescript_client(node: str, *target: str) -> AsyncIterator[TypeScriptClient]:
    """The client, connected to a URL or to a command that it starts; it must end well, without complaint."""
    process = await asyncio.create_subprocess_exec(
        *(node, str(installed() / "client.mjs"), *target),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT):
            client = TypeScriptClient(process)
            client.capabilities = (await client.see(type="connected"))["capabilities"]
            yield client
            _, stderr = await process.communicate()
        assert (process.returncode, stderr.decode()) == (0, "")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
