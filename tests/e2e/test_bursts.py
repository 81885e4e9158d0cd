"""Bursts for many readers, one of whom has stopped (field case F40), scaled to two busy cores.

The full case, a million updates, is 100 turns of 10,000. Here are 8 turns: what is to be told apart, a set
from a queue, shows in the first few, since a queue would hold 1.6 MB more for each.
"""

import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.wire_client import headers_for, listen

URIS, READERS = 10_000, 100
WARM_UP, TURNS = 2, 6
LIMIT = 50.0  # seconds, a bound


def connect(port: int, uris: list[str]) -> socket.socket:
    """A listener on a socket of its own."""
    body = json.dumps(listen({"resourceSubscriptions": uris})).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers_for("subscriptions/listen"))
    connection = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
    connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def read_until_last(readers: list[socket.socket], times: int, kept: bytearray) -> int:
    """Reads all, without a look inside, until each has heard the last word once more; keeps what one hears.

    Returns how many bytes came.
    """
    tails = dict.fromkeys(readers, b"")
    heard = dict.fromkeys(readers, 0)
    total, end = 0, time.monotonic() + LIMIT
    with selectors.DefaultSelector() as selector:
        for each in readers:
            selector.register(each, selectors.EVENT_READ, each)
        while selector.get_map():
            assert time.monotonic() < end, f"{len(selector.get_map())} readers did not hear the last word"
            for key, _ in selector.select(1):
                reader: socket.socket = key.data
                data = reader.recv(1 << 20)
                assert data, "the server closed a stream"
                total += len(data)
                if reader is readers[0]:
                    kept += data
                heard[reader] += (tails[reader] + data).count(b'"x://last",')
                tails[reader] = data[-10:]
                if heard[reader] >= times:
                    selector.unregister(reader)
    return total


@pytest.mark.timeout(120)
@pytest.mark.clause("D13")
@pytest.mark.field("F40")
def test_one_of_a_hundred_readers_stops() -> None:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("burst_server.py")), str(URIS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    readers: list[socket.socket] = []
    try:
        port = int(process.stdout.readline())
        uris = [*(f"x://h/{number}" for number in range(URIS)), "x://last"]
        readers = [connect(port, uris) for _ in range(READERS)]
        for reader in readers:
            assert reader.recv(1).startswith(b"H"), "the response has begun, so the stream stands in the hub"
        told: list[dict[str, float]] = []
        for turns in (WARM_UP, TURNS):
            process.stdin.write(f"{turns}\n")
            kept = bytearray()
            read_until_last(readers[1:], 1, kept)
            told.append(json.loads(process.stdout.readline()))
            named = {uri.decode() for uri in re.findall(rb'"uri":"([^"]+)"', kept)}
            assert named == set(uris), "who reads is told of everything"
        warm, done = told
        assert done["streams"] == READERS, "nobody is dropped for a burst"
        assert done["pending"] <= URIS + 1
        assert done["buffered"] < 4_000_000, "what a reader did not take must collapse"
        assert done["peak"] < 1.5 * warm["peak"]
    finally:
        for reader in readers:
            reader.close()
        process.stdin.close()
        try:
            process.wait(10)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
