"""Serving a Unix socket, and taking stdin and stdout over; tests/e2e has the processes."""

import asyncio
import os
import signal
import socket
import stat
import sys
import threading
from pathlib import Path

import pytest

from harken.core.events import ToolsListChanged
from harken.core.subscription import Ending
from harken.server.hub import Hub
from harken.server.stdio import _FileReader, _FileWriter, _taken_over
from tests.core.frames import name
from tests.lines_client import TOOLS, connect, over_unix, until

pytestmark = pytest.mark.anyio


@pytest.mark.clause("T7", "R14")
@pytest.mark.field("F9")
async def test_clients_on_one_socket_each_have_a_channel(tmp_path: Path) -> None:
    hub = Hub(drain_window=0)
    async with over_unix(hub, tmp_path / "socket", 3) as clients:
        for client in clients:
            await client.listen(TOOLS, 1)
        await hub.publish(ToolsListChanged())
        for client in clients:
            assert await client.names(1) == ["tools/list_changed"]
        clients[0].end_input()
        assert [name(message) for message in await clients[0].rest()] == ["result"]
        await hub.publish(ToolsListChanged())
        for client in clients[1:]:
            assert await client.names(1) == ["tools/list_changed"]
    assert hub.endings == {Ending.SHUTDOWN: 3}


@pytest.mark.clause("T7", "T3")
async def test_leaving_the_context_ends_every_stream(tmp_path: Path) -> None:
    hub = Hub(drain_window=0)
    async with hub.serve_unix(tmp_path / "socket"):
        client = await connect(tmp_path / "socket")
        await client.listen(TOOLS, 1)
    assert [name(message) for message in await client.rest()] == ["result"]
    assert not (tmp_path / "socket").exists()
    client.writer.close()
    await hub.aclose()


async def test_the_socket_is_its_owners_alone(tmp_path: Path) -> None:
    hub = Hub()
    async with hub.serve_unix(tmp_path / "socket"):
        assert stat.S_IMODE(os.stat(tmp_path / "socket").st_mode) == 0o600
    await hub.aclose()


async def test_a_dead_servers_socket_is_replaced_and_a_live_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    hub, other = Hub(), Hub()
    async with hub.serve_unix(path):
        with pytest.raises(OSError, match="in use"):
            async with other.serve_unix(path):
                pass
        client = await connect(path)
        await client.call("server/discover")
        client.writer.close()
    await hub.aclose()
    await other.aclose()


async def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    hub = Hub()
    with pytest.raises(OSError, match="in use"):
        async with hub.serve_unix(tmp_path / "file"):
            pass
    assert (tmp_path / "file").read_text() == "precious"
    await hub.aclose()


async def test_a_successors_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old, new = Hub(), Hub()
    async with old.serve_unix(path):
        path.unlink()
        serving = new.serve_unix(path)
        await serving.__aenter__()
    client = await connect(path)
    await client.call("server/discover")
    client.writer.close()
    await serving.__aexit__(None, None, None)
    await old.aclose()
    await new.aclose()


@pytest.mark.clause("T1")
async def test_a_descriptor_is_taken_over_and_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    with _taken_over(1, os.O_WRONLY, instead=2) as stdout:
        os.write(1, b"stray\n")
        os.write(stdout, b"message\n")
        os.set_blocking(stdout, False)
    os.write(1, b"after\n")
    assert os.get_blocking(1)
    out, err = capfd.readouterr()
    assert out.endswith("message\nafter\n")
    assert "stray\n" in err


async def test_stdin_is_empty_for_everybody_else() -> None:
    with _taken_over(0, os.O_RDONLY):
        assert os.read(0, 10) == b""


class FakeChannel:
    """What a reader talks to."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.over = asyncio.Event()
        self.reader: _FileReader | None = None

    def received(self, data: bytes) -> None:
        """Input came."""
        assert not self.over.is_set()
        self.data.append(data)

    def input_ended(self) -> None:
        """The input is over."""
        self.over.set()


@pytest.mark.clause("D13")
async def test_the_thread_reads_no_faster_than_the_loop_takes(tmp_path: Path) -> None:
    """Else a file of any size would be in memory while the reader of stdout is slow."""
    (tmp_path / "big").write_bytes(b"x" * 5_000_000)
    channel = FakeChannel()
    with (tmp_path / "big").open("rb") as file:
        reader = _FileReader(channel, file.fileno())  # type: ignore[arg-type]  # as much of one as it needs
        reader.pause_reading()
        await until(lambda: channel.data)
        await asyncio.sleep(0.02)
        assert len(channel.data) == 1
        reader.resume_reading()
        reader.resume_reading()
        async with asyncio.timeout(20):
            await channel.over.wait()
    assert sum(map(len, channel.data)) == 5_000_000
    reader.close()
    await until(lambda: all(thread.name != "harken-stdin" for thread in threading.enumerate()))


async def test_a_thread_that_is_left_in_a_read_touches_nothing_any_more() -> None:
    reading, writing = os.pipe()
    channel = FakeChannel()
    reader = _FileReader(channel, reading)  # type: ignore[arg-type]  # as above
    os.close(reading)
    reader.close()
    os.write(writing, b"typed later\n")
    await until(lambda: all(thread.name != "harken-stdin" for thread in threading.enumerate()))
    await asyncio.sleep(0)
    assert channel.data == []
    assert not channel.over.is_set()
    os.close(writing)


async def test_a_full_disk_is_the_end_of_the_channel() -> None:
    lost: list[bool] = []
    full = os.open("/dev/full", os.O_WRONLY)
    writer = _FileWriter(full, lambda: lost.append(True))
    writer.write(b"message\n")
    assert lost == [True]
    assert writer.get_write_buffer_size() == 0
    os.close(full)


async def test_serving_stdio_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is as it was: descriptors, signals, threads, tasks."""
    monkeypatch.setattr(sys, "__stdin__", sys.stdin or sys.stdout)
    reading, writing = os.pipe()
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        hub = Hub(drain_window=0)
        before = len(asyncio.all_tasks())
        terminate = signal.getsignal(signal.SIGTERM)
        serving = asyncio.create_task(hub.serve_stdio())
        await until(lambda: signal.getsignal(signal.SIGTERM) is not terminate)
        await asyncio.sleep(0.02)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert signal.getsignal(signal.SIGTERM) is terminate
        await until(lambda: len(asyncio.all_tasks()) == before)
        assert os.path.samestat(os.fstat(0), os.fstat(reading))
        os.write(writing, b"still ours")
        assert os.read(0, 100) == b"still ours"
        await hub.aclose()
    finally:
        os.dup2(saved, 0)
        for fd in (saved, reading, writing):
            os.close(fd)
