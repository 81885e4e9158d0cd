"""How our own commands run a server: real processes, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from harken.gateway import runner
from harken.gateway.runner import CannotBind, bind, url_of
from tests.e2e.commands import Command, command, run
from tests.gateway.conftest import META, mcp_headers

pytestmark = pytest.mark.anyio

SIGNALS = [signal.SIGINT, signal.SIGTERM]
EVERYTHING = {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}


@contextlib.asynccontextmanager
async def hub(harken_command: str, *options: str) -> AsyncIterator[tuple[Command, str]]:
    """A running `harken hub`, and its URL."""
    async with command(harken_command, "hub", "--port", "0", *options) as running:
        yield running, await running.url()


@contextlib.asynccontextmanager
async def listeners(url: str, count: int) -> AsyncIterator[list[httpx2.Response]]:
    """Open streams; each has had its ack."""
    limits = httpx2.Limits(max_connections=None)
    params = {"notifications": EVERYTHING, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    async with (
        httpx2.AsyncClient(timeout=20, limits=limits, trust_env=False) as http,
        contextlib.AsyncExitStack() as stack,
    ):
        headers = mcp_headers("subscriptions/listen")
        yield [
            await stack.enter_async_context(http.stream("POST", url, json=body, headers=headers))
            for _ in range(count)
        ]


async def last_message(response: httpx2.Response) -> dict[str, object]:
    """Reads the stream to its clean end."""
    data = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    message = json.loads(data[-1].removeprefix("data: "))
    assert isinstance(message, dict)
    return message


@pytest.mark.field("F37")
@pytest.mark.clause("R14")
@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_gives_every_stream_its_result(harken_command: str, number: signal.Signals) -> None:
    async with hub(harken_command) as (server, url), listeners(url, 50) as streams:
        server.process.send_signal(number)
        for message in await asyncio.gather(*map(last_message, streams)):
            assert message["result"]["resultType"] == "complete"  # type: ignore[index]  # JSON
        assert await asyncio.wait_for(server.end(), 10) == (0, "", "Ctrl-C ends the hub\n")


@pytest.mark.field("F37")
async def test_a_reader_that_stopped_does_not_keep_it(harken_command: str) -> None:
    uris = [f"file:///{'x' * 200}/{number}" for number in range(4000)]
    entries = [{"event": "resource_updated", "uri": uri} for uri in uris]
    params = {"notifications": {"resourceSubscriptions": uris}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = mcp_headers("subscriptions/listen")
    async with (
        hub(harken_command) as (server, url),
        httpx2.AsyncClient(timeout=20, trust_env=False) as http,
        http.stream("POST", url, json=body, headers=headers),  # nobody reads this
        listeners(url, 3) as streams,
    ):
        for _ in range(20):
            await http.post(url.replace("/mcp", "/publish"), json=entries)
        server.process.send_signal(signal.SIGTERM)
        for message in await asyncio.gather(*map(last_message, streams)):
            assert "result" in message
        assert await asyncio.wait_for(server.end(), 10) == (0, "", "Ctrl-C ends the hub\n")


@pytest.mark.parametrize("number", SIGNALS)
async def test_half_a_request_does_not_keep_it(harken_command: str, number: signal.Signals) -> None:
    async with hub(harken_command) as (server, url):
        port = httpx2.URL(url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        await writer.drain()
        async with httpx2.AsyncClient(trust_env=False) as http:
            await http.get(url)  # the first request has been read by now
        server.process.send_signal(number)
        assert await asyncio.wait_for(server.end(), 10) == (0, "", "Ctrl-C ends the hub\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_second_signal_ends_at_once(harken_command: str, number: signal.Signals, code: int) -> None:
    async with hub(harken_command) as (server, url), listeners(url, 3) as streams:
        server.process.send_signal(number)
        await last_message(streams[0])  # the drain has begun; its window lasts a second
        server.process.send_signal(number)
        assert await server.process.wait() == code


async def test_publishes_before_the_signal_still_go_out(harken_command: str) -> None:
    async with hub(harken_command) as (server, url), listeners(url, 20) as streams:
        async with httpx2.AsyncClient(trust_env=False) as http:
            await http.post(url.replace("/mcp", "/publish"), json={"event": "tools_list_changed"})
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            lines = [line async for line in stream.aiter_lines() if line.startswith("data: ")]
            assert "acknowledged" in lines[0]
            assert "tools/list_changed" in lines[1]
            assert "result" in lines[2]
            assert len(lines) == 3


@pytest.mark.parametrize("as_json", [False, True])
async def test_the_url_comes_first_and_answers_at_once(harken_command: str, as_json: bool) -> None:
    async with command(harken_command, "hub", "--port", "0", *(["--json"] if as_json else [])) as server:
        if as_json:
            ready = await server.message()
            assert ready["type"] == "ready"
            url = ready["url"]
        else:
            url = await server.url()
        assert url.startswith("http://127.0.0.1:")
        async with httpx2.AsyncClient(trust_env=False) as http:
            assert (await http.get(url)).status_code == 405
        server.process.send_signal(signal.SIGTERM)
        code, stdout, stderr = await server.end()
        assert (code, stdout) == (0, "")
        assert not as_json or stderr == ""


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_port_in_use_says_what_to_do(harken_command: str, as_json: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, stdout, stderr = await run(
            harken_command, "hub", "--port", port, *(["--json"] if as_json else [])
        )
    assert code == 2
    if as_json:
        error = json.loads(stdout)
        assert error["type"] == "error"
        message = error["message"]
    else:
        message = stderr
    assert port in message
    assert "--port 0" in message


@pytest.mark.parametrize(
    ("host", "problem"), [("192.0.2.77", "not an address of this machine"), ("no.such.invalid", "known name")]
)
def test_an_address_that_is_not_ours_says_what_to_do(host: str, problem: str) -> None:
    with pytest.raises(CannotBind, match=problem):
        bind(host, 0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as bound:
        yield bound


@pytest.mark.field("F36")
def test_accepted_sockets_find_vanished_peers(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                bound = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert bound == runner.USER_TIMEOUT


def test_a_restart_finds_its_port_free(listener: socket.socket) -> None:
    """A closed connection stays in TIME-WAIT on the server's side; that must not hold the port."""
    address = listener.getsockname()
    with socket.create_connection(address) as client:
        listener.setblocking(True)
        accepted, _ = listener.accept()
        accepted.close()
        assert client.recv(1) == b""
    listener.close()
    bind("127.0.0.1", address[1]).close()


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1"), ("0.0.0.0", "http://127.0.0.1"), ("hub.local", "http://hub.local")],
)
def test_the_url_is_one_that_this_machine_can_reach(listener: socket.socket, host: str, url: str) -> None:
    assert url_of(host, listener) == f"{url}:{listener.getsockname()[1]}/mcp"


@pytest.mark.parametrize(("host", "url"), [("::1", "http://[::1]"), ("::", "http://[::1]")])
def test_an_address_of_ip6_stands_in_brackets(listener: socket.socket, host: str, url: str) -> None:
    assert url_of(host, listener) == f"{url}:{listener.getsockname()[1]}/mcp"


APP = textwrap.dedent("""
    import asyncio, sys, threading
    from harken.gateway import runner
    from harken.server.hub import Hub

    async def never(request):
        print("asked", flush=True)
        await asyncio.Event().wait()

    async def hang(request):
        print("asked", flush=True)
        await asyncio.to_thread(threading.Event().wait)

    async def refuse(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "there is no disk"})

    runner.LAST_RESORT = 1
    hub = Hub(methods={"tools/list": never, "prompts/list": hang})
    app = refuse if sys.argv[1:] else hub.asgi()
    sys.exit(runner.run_app(app, hub, "127.0.0.1", 0, label="ready"))
""")


@contextlib.asynccontextmanager
async def asked(method: str) -> AsyncIterator[Command]:
    """A server in which a request for `method` is in flight, and will not be answered."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META}}
    async with (
        command(sys.executable, "-c", APP) as server,
        httpx2.AsyncClient(timeout=20, trust_env=False) as http,
    ):
        url = await server.url()
        request = asyncio.create_task(http.post(url, json=body, headers=mcp_headers(method)))
        assert await server.line() == "asked"
        yield server
        with pytest.raises(httpx2.TransportError):
            await request


async def test_an_answer_that_never_comes_does_not_keep_it() -> None:
    async with asked("tools/list") as server:
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == (0, "", "ready\n")


async def test_a_thread_that_hangs_is_shown_and_does_not_keep_it() -> None:
    async with asked("prompts/list") as server:
        server.process.send_signal(signal.SIGTERM)
        code, _, stderr = await server.end()
        assert code == 1
        assert "Timeout" in stderr


async def test_an_app_that_does_not_start_is_1() -> None:
    async with command(sys.executable, "-c", APP, "refuse") as server:
        await server.url()
        code, _, stderr = await server.end()
        assert code == 1
        assert "there is no disk" in stderr


VANISH = textwrap.dedent("""
    import ctypes, fcntl, os, socket, struct, sys

    CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x40000000, 0x8914, 0x1, 0x40
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
        sys.exit(77)

    def loopback(up):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            flags = IFF_UP | IFF_RUNNING if up else 0
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))

    loopback(True)
    import asyncio
    from harken.gateway import runner
    from harken.gateway.app import build

    runner.USER_TIMEOUT = 1000
    runner.PROBES = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 1}
    hub, app = build("127.0.0.1", None)
    body = sys.argv[1].encode()
    head = sys.argv[2].encode() % len(body)

    def left(stream, ending):
        os.write(1, ending.encode())
        os._exit(0)

    async def vanish():
        reader, writer = await asyncio.open_connection("127.0.0.1", 8766)
        writer.write(head + body)
        while b"acknowledged" not in await reader.readline():
            pass
        assert len(hub.streams) == 1
        hub.leave = left
        loopback(False)  # from here on no packet passes, neither data nor FIN nor RST
        await asyncio.Event().wait()

    async def with_vanish(scope, receive, send):
        if scope["type"] == "lifespan":
            globals()["task"] = asyncio.create_task(vanish())
        await app(scope, receive, send)

    runner.run_app(with_vanish, hub, "127.0.0.1", 8766, as_json=False, label="")
""")


@pytest.mark.field("F36")
async def test_a_peer_that_vanishes_is_reaped() -> None:
    params = {"notifications": EVERYTHING, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {"host": "x", "content-type": "application/json", "content-length": "%d"}
    lines = [f"{name}: {value}" for name, value in (headers | mcp_headers("subscriptions/listen")).items()]
    head = "\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""])
    code, stdout, stderr = await run(sys.executable, "-c", VANISH, json.dumps(body), head)
    if code == 77:
        pytest.skip("no network namespace can be made here")
    assert stdout == "client_gone", stderr


def test_a_greeting_that_nobody_reads_ends_nothing(harken_command: str) -> None:
    with subprocess.Popen([harken_command, "hub", "--port", "0", "--json"], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        server.stdout.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
