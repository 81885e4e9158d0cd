"""Cutting connections that only their server holds."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harken.server.cuts import Cuts, connection_of
from tests.serving import until

pytestmark = pytest.mark.anyio

Pair = tuple[socket.socket, socket.socket]


def connected() -> Pair:
    """A client, and the server's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    client, accepted = connected()
    with client, accepted:
        client.settimeout(10)
        yield client, accepted


def scope_of(pair: Pair, **changes: Any) -> dict[str, Any]:
    """What a server tells of the connection."""
    client, accepted = pair
    scope = {"http_version": "1.1", "client": client.getsockname(), "server": accepted.getsockname()}
    return {**scope, **changes}


async def searched() -> None:
    """Waits until the search is over."""
    await asyncio.sleep(0)
    await until(lambda: all(thread.name != "harken-cuts" for thread in threading.enumerate()))


async def test_the_connection_is_shut_down_and_no_other(pair: Pair) -> None:
    other, others_end = connected()
    with other, others_end, socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX):
        connection = connection_of(scope_of(pair))
        assert connection is not None
        cuts = Cuts()
        cuts.add(connection)
        cuts.add(connection)
        await searched()
        assert pair[0].recv(1) == b""
        with pytest.raises(BrokenPipeError):
            pair[1].send(b"x")
        others_end.send(b"x")
        assert other.recv(1) == b"x"


async def test_the_client_s_own_end_is_no_match(pair: Pair) -> None:
    """Both ends are in this process: only the one whose peer is the client goes."""
    connection = connection_of(scope_of(pair))
    assert connection is not None
    cuts = Cuts()
    cuts.add((connection[0], connection[2], connection[1]))
    await searched()
    assert pair[1].recv(1) == b""  # it was the client's end that has this for a peer


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/dev/fd").iterdir()))


async def test_no_descriptor_is_left_behind(pair: Pair) -> None:
    before = descriptors()
    cuts = Cuts()
    for _ in range(3):
        cuts.add(("127.0.0.1", 1, 1))
        await searched()
    assert descriptors() == before


async def test_what_is_gone_already_is_no_error(pair: Pair) -> None:
    connection = connection_of(scope_of(pair))
    assert connection is not None
    pair[0].close()
    pair[1].close()
    cuts = Cuts()
    cuts.add(connection)
    await searched()


def test_ports_may_be_text(pair: Pair) -> None:
    (host, port), (_, own) = pair[0].getsockname(), pair[1].getsockname()
    scope = scope_of(pair, client=(host, str(port)), server=("0.0.0.0", str(own)))
    assert connection_of(scope) == (host, port, own)


@pytest.mark.parametrize(
    "changes",
    [
        {"http_version": "2"},  # others share its connection
        {"client": None},
        {"server": None},
        {"client": ("127.0.0.1",)},
        {"server": ("/run/app.sock", None)},
        {"client": ("testclient", "no port")},
    ],
)
def test_a_connection_that_is_not_known_or_shared_is_none(pair: Pair, changes: dict[str, Any]) -> None:
    assert connection_of(scope_of(pair, **changes)) is None


def test_a_scope_that_says_nothing() -> None:
    assert connection_of({}) is None
    assert connection_of({"http_version": "1.1"}) is None
