"""ASGI apps served for tests by uvicorn, on this event loop and a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import uvicorn

from harken.server.hub import Hub

Protocol = Literal["h11", "httptools"]
PROTOCOLS: list[Protocol] = ["h11", "httptools"]


class Problems(logging.Handler):
    """Gathers what is logged as an error, by whom it may be: servers, event loop, hub."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record."""
        self.records.append(self.format(record))


@contextlib.contextmanager
def no_problems(expected: str | None = None) -> Iterator[Problems]:
    """Fails at the end where anything was logged as an error meanwhile that has not `expected` in it."""
    problems = Problems()
    logging.getLogger().addHandler(problems)
    try:
        yield problems
    finally:
        logging.getLogger().removeHandler(problems)
    assert [record for record in problems.records if expected is None or expected not in record] == []


def new_hub(**options: Any) -> Hub:
    """A hub whose shutdown does not spread the ends of its streams."""
    return Hub(**{"drain_window": 0.0, **options})


@contextlib.asynccontextmanager
async def serving(
    app: Any,
    http: Protocol = "httptools",
    lifespan: Literal["auto", "on", "off"] = "auto",
    expected: str | None = None,
    **options: Any,
) -> AsyncIterator[int]:
    """Serves `app` on a free port of 127.0.0.1, and yields the port.

    Nothing may be logged as an error but what has `expected` in it.
    """
    with no_problems(expected), socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, http=http, lifespan=lifespan, log_config=None, access_log=False, ws="none", **options
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                assert not task.done(), "the server did not start"
                await asyncio.sleep(0.001)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


class Switch:
    """An ASGI app that hands everything on to another, which may change: one server for many tests."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hands on a request; a lifespan is refused."""
        assert scope["type"] == "http"
        await self.app(scope, receive, send)


async def until(condition: Callable[[], object], limit: float = 20.0) -> None:
    """Waits until `condition` holds; fails after `limit` seconds."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110 - whatever it asks has no event to wait for
            await asyncio.sleep(0.005)
