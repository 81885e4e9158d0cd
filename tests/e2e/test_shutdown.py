"""Shutdown in each way of running a server: real processes, real signals, every byte looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.listening import Raw, get

pytestmark = pytest.mark.anyio

STREAMS = 50
WINDOW = 0.2  # seconds, where the window is not the point
BOUND = 2.0  # seconds after the window until a server is gone
SLACK = 2.0  # seconds that a busy machine may add
LIMIT = 40  # seconds for a whole test
PORT = re.compile(rb"http://127\.0\.0\.1:(\d+)")
PROBLEMS = re.compile(r"Traceback|Task was destroyed|without completing|never awaited|Exception|CRITICAL")

IN_A_THREAD = """
import sys, threading, uvicorn
from tests.e2e.served import app
server = uvicorn.Server(uvicorn.Config(app, port=0))
thread = threading.Thread(target=server.run)
thread.start()
sys.stdin.readline()
server.should_exit = True
thread.join()
"""

HYPERCORN_DRAINED = """
import asyncio, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
from tests.e2e.served import app, hub

async def main():
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(0, asked.set)

    async def end():
        await asked.wait()
        await hub.drain()

    config = Config()
    config.bind = ["127.0.0.1:0"]
    await serve(app, config, shutdown_trigger=end)

asyncio.run(main())
"""


def module(name: str, *words: str) -> list[str]:
    """`python -m name …`."""
    return [sys.executable, "-m", name, *words]


def code(text: str) -> list[str]:
    """`python -c …`."""
    return [sys.executable, "-c", text]


def uvicorn(app: str = "app", *options: str) -> list[str]:
    """uvicorn's command."""
    return module("uvicorn", f"tests.e2e.served:{app}", "--port", "0", *options)


def gunicorn(worker: str) -> list[str]:
    """gunicorn's command; its control socket would be shared by all that run here."""
    return module(
        "gunicorn", "tests.e2e.served:app", "-k", worker, "-b", "127.0.0.1:0", "--no-control-socket"
    )


HYPERCORN = module("hypercorn", "tests.e2e.served:app", "-b", "127.0.0.1:0")

SINGLE = {
    "uvicorn": uvicorn(),
    "uvicorn, h11 and asyncio": uvicorn("app", "--http", "h11", "--loop", "asyncio"),
    "uvicorn.run": code("import uvicorn; from tests.e2e.served import app; uvicorn.run(app, port=0)"),
    "uvicorn, lifespan off": uvicorn("app", "--lifespan", "off"),
    "hypercorn, no workers": [*HYPERCORN, "--workers", "0"],
    "hypercorn": HYPERCORN,  # it has a worker, which handles no signals: a SIGTERM of its own is its death
}
INNER = {
    "pass-through middleware": uvicorn("pass_through"),
    "BaseHTTPMiddleware": uvicorn("base_middleware"),
    "mounted in Starlette": uvicorn("mounted"),
}
SUPERVISED = {
    "uvicorn --reload": uvicorn("app", "--reload", "--reload-dir", "EMPTY"),
    "uvicorn --workers 2": uvicorn("app", "--workers", "2"),
    "gunicorn, UvicornWorker": gunicorn("uvicorn_worker.UvicornWorker"),
    "gunicorn, asgi": gunicorn("asgi"),
    "granian": module("granian", "tests.e2e.served:app", "--interface", "asgi", "--port", "PORT"),
}
ASKED = {"uvicorn in a thread": code(IN_A_THREAD), "hypercorn, hub.drain()": code(HYPERCORN_DRAINED)}


@dataclass
class Server:
    """A server in a process (group) of its own."""

    process: asyncio.subprocess.Process
    port: int
    output: list[bytes]
    _pump: asyncio.Task[None]

    def terminate(self) -> None:
        """SIGTERM to the one process that was started, as Docker and Kubernetes do."""
        self.process.send_signal(signal.SIGTERM)

    def terminate_all(self) -> None:
        """SIGTERM to every process, as systemd does by default."""
        os.killpg(self.process.pid, signal.SIGTERM)

    def interrupt_all(self) -> None:
        """SIGINT to every process, as Ctrl-C in a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ask(self) -> None:
        """A line on stdin, for programs that end on that."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    async def end(self) -> tuple[int, str]:
        """The exit status, and all the output."""
        status = await self.process.wait()
        await self._pump
        return status, b"".join(self.output).decode()


End = Callable[[Server], None]


@contextlib.asynccontextmanager
async def serving(
    words: Sequence[str], empty: Path, project: Path, window: float | None = WINDOW
) -> AsyncIterator[Server]:
    """Runs a server until it answers; whatever is left of it at the end is killed."""
    with socket.socket() as held:
        if "PORT" in words:  # of a server that does not say which one it got; held, so nobody else gets it
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
        instead = {"PORT": str(held.getsockname()[1]), "EMPTY": str(empty)}
        process = await asyncio.create_subprocess_exec(
            *[instead.get(word, word) for word in words],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=project,
            env={**os.environ, **({} if window is None else {"DRAIN_WINDOW": str(window)})},
            start_new_session=True,
        )
        output: list[bytes] = []
        known: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        pump = asyncio.create_task(_read(process, output, known))
        if "PORT" in words:
            known.set_result(held.getsockname()[1])
        try:
            async with asyncio.timeout(LIMIT):
                port = await known
                await _until_it_answers(port)
                yield Server(process, port, output, pump)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await pump
            await process.communicate()


async def _read(process: asyncio.subprocess.Process, output: list[bytes], port: asyncio.Future[int]) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        output.append(line)
        if not port.done() and (found := PORT.search(line)):
            port.set_result(int(found[1]))
    if not port.done():
        port.set_exception(AssertionError(b"".join(output).decode()))


async def _until_it_answers(port: int) -> None:
    while True:
        try:
            await get(port, "/state")
        except OSError:
            await asyncio.sleep(0.02)
        else:
            return


async def listeners(server: Server, count: int = STREAMS) -> list[Raw]:
    """Open streams, opened at once."""
    return await asyncio.gather(*(Raw.open(server.port, id) for id in range(count)))


async def stopped_reader(server: Server) -> Raw:
    """A stream with much to say whose client reads nothing any more."""
    uris = [f"test://{'x' * 200}/{number}" for number in range(2000)]
    stopped = await Raw.open(server.port, 99, uris, buffer=4096)
    await get(server.port, "/burst")
    return stopped


def is_result(message: Any, id: int) -> bool:
    """Whether this is the graceful end of a stream."""
    return bool(message["id"] == id and message["result"]["resultType"] == "complete")


async def ends_well(streams: list[Raw]) -> None:
    """Each stream has had its result, and its HTTP body a clean end."""
    for id, messages in enumerate(await asyncio.gather(*(stream.messages() for stream in streams))):
        assert is_result(messages[-1], id)


async def status_without_streams(words: Sequence[str], end: End, empty: Path, project: Path) -> int:
    """How the same server exits when it has nothing to do."""
    async with serving(words, empty, project) as server:
        end(server)
        return (await server.end())[0]


async def graceful(words: Sequence[str], end: End, empty: Path, project: Path, window: float | None) -> int:
    """Fifty idle streams, and the end: the exit status of a server that did all well."""
    async with serving(words, empty, project, window) as server:
        streams = await listeners(server)
        end(server)
        async with asyncio.timeout((1.0 if window is None else window) + BOUND + SLACK):
            await ends_well(streams)
            status, output = await server.end()
    assert not PROBLEMS.search(output), output
    return status


CASES: list[tuple[str, list[str], End]] = [
    *((name, words, Server.terminate) for name, words in (SINGLE | INNER | SUPERVISED).items()),
    *((name, words, Server.interrupt_all) for name, words in (SINGLE | SUPERVISED).items()),
    *((name, words, Server.terminate_all) for name, words in SUPERVISED.items()),
    *((name, words, Server.ask) for name, words in ASKED.items()),
]


def named(cases: Sequence[tuple[str, list[str], End]]) -> pytest.MarkDecorator:
    """The cases as parameters."""
    return pytest.mark.parametrize(
        ("words", "end"),
        [pytest.param(words, end, id=f"{name}: {end.__name__}") for name, words, end in cases],
    )


@pytest.mark.field("F37")
@pytest.mark.clause("R14")
@named(CASES)
async def test_every_stream_gets_its_result(
    words: list[str], end: End, tmp_path: Path, project: Path
) -> None:
    status, expected = await asyncio.gather(
        graceful(words, end, tmp_path, project, WINDOW),
        status_without_streams(words, end, tmp_path, project),
    )
    assert status == expected


@pytest.mark.field("F37")
async def test_the_window_that_nobody_set(tmp_path: Path, project: Path) -> None:
    assert await graceful(SINGLE["uvicorn"], Server.terminate, tmp_path, project, None) == -signal.SIGTERM


@pytest.mark.field("F37")
@named([case for case in CASES if case[2] in {Server.terminate, Server.ask}])
async def test_a_reader_that_stopped_does_not_keep_it(
    words: list[str], end: End, tmp_path: Path, project: Path
) -> None:
    async with serving(words, tmp_path, project) as server:
        streams = await listeners(server, 3)
        stopped = await stopped_reader(server)
        end(server)
        async with asyncio.timeout(WINDOW + BOUND + SLACK):
            await ends_well(streams)
            _, output = await server.end()
    stopped.reset()
    assert not PROBLEMS.search(output), output


@pytest.mark.parametrize("name", ["uvicorn", "uvicorn --reload", "hypercorn, no workers"])
async def test_a_second_ctrl_c_ends_at_once(name: str, tmp_path: Path, project: Path) -> None:
    async with serving((SINGLE | SUPERVISED)[name], tmp_path, project, window=60) as server:
        streams = [asyncio.create_task(stream.messages()) for stream in await listeners(server, 20)]
        server.interrupt_all()
        await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        server.interrupt_all()  # the drain has begun, and would last a minute
        async with asyncio.timeout(BOUND + SLACK):
            for id, messages in enumerate(await asyncio.gather(*streams)):
                assert is_result(messages[-1], id)
            _, output = await server.end()
    assert not PROBLEMS.search(output), output


async def test_a_worker_that_has_served_enough_lets_its_streams_go(tmp_path: Path, project: Path) -> None:
    """No signal tells of this end."""
    async with serving(uvicorn("app", "--limit-max-requests", "10"), tmp_path, project) as server:
        streams = await listeners(server)
        with contextlib.suppress(OSError, ValueError):  # until it takes no more
            while True:
                await get(server.port, "/state")
        async with asyncio.timeout(WINDOW + BOUND + SLACK):
            await ends_well(streams)
            status, output = await server.end()
    assert status == 0
    assert not PROBLEMS.search(output), output


@pytest.mark.field("F38")
@pytest.mark.parametrize("name", ["uvicorn", "pass-through middleware", "gunicorn, asgi", "granian"])
async def test_what_was_published_before_still_goes_out(name: str, tmp_path: Path, project: Path) -> None:
    async with serving((SINGLE | INNER | SUPERVISED)[name], tmp_path, project) as server:
        streams = await listeners(server, 10)
        await get(server.port, "/publish_and_end")
        for id, stream in enumerate(streams):
            acknowledgment, event, result = await stream.messages()
            assert acknowledgment["method"] == "notifications/subscriptions/acknowledged"
            assert event["method"] == "notifications/tools/list_changed"
            assert is_result(result, id)
