"""`harken listen --follow` over restarts: real processes, sockets and children."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any

import pytest

from harken.server.hub import Hub
from tests.e2e.commands import Command, command, run
from tests.e2e.test_cli_listen import SERVER, served

pytestmark = pytest.mark.anyio


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        found: int = probe.getsockname()[1]
        return found


async def until(listener: Command, kind: str) -> list[Any]:
    """The messages up to the next one of this type."""
    messages: list[Any] = []
    while not messages or messages[-1]["type"] != kind:
        messages.append(await listener.message())
        assert messages[-1].pop("time")
    return messages


@pytest.mark.clause("D10", "D12", "R18")
@pytest.mark.parametrize(("number", "ending"), [(signal.SIGTERM, "completed"), (signal.SIGKILL, "lost")])
async def test_a_server_that_is_started_again_is_followed(
    harken_command: str, port: int, number: signal.Signals, ending: str
) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    hub = [harken_command, "hub", "--port", str(port)]
    async with command(harken_command, "listen", url, "--tools", "--follow", "--json") as listener:
        # Nobody is there yet.
        assert (await listener.message())["state"] == "connecting"
        away = (await until(listener, "state"))[-1]
        assert (away["state"], away["reason"]) == ("backing_off", "lost")
        async with command(*hub) as first:
            await first.url()
            *_, live, ack, resync = await until(listener, "resync")
            assert live == {"type": "state", "state": "live", "reason": None, "delay": None}
            assert ack["honored"] == {"toolsListChanged": True}
            assert resync == {"type": "resync"}
            first.process.send_signal(number)
            await first.end()
        messages = await until(listener, "state")
        assert messages[-2] == {"type": "ended", "ending": ending}
        assert (messages[-1]["state"], messages[-1]["reason"]) == ("backing_off", ending)
        assert messages[-1]["delay"] >= 0
        async with command(*hub) as second:
            await second.url()
            again = (await until(listener, "resync"))[-2]
            assert again["honored"] == {"toolsListChanged": True}
            assert again["subscriptionId"] != ack["subscriptionId"]
            assert (await run(harken_command, "publish", "tools_list_changed", "--hub", url))[0] == 0
            [event] = await until(listener, "event")
            assert event == {"type": "event", "event": "tools_list_changed"}


@pytest.mark.clause("T4")
async def test_a_child_that_was_killed_is_followed_by_another(harken_command: str) -> None:
    child = f"import os, sys; print(os.getpid(), file=sys.stderr, flush=True)\n{SERVER}"
    words = [harken_command, "listen", "--tools", "--follow", "--json", "--", sys.executable, "-c", child]
    async with command(*words) as listener:
        first = int(await listener.stderr.readline())
        await until(listener, "event")
        os.kill(first, signal.SIGKILL)
        ended = (await until(listener, "ended"))[-1]
        assert ended["ending"] == "lost"
        await until(listener, "event")
        listener.process.send_signal(signal.SIGINT)
        assert (await until(listener, "ended"))[-1]["ending"] == "closed"
        assert (await listener.end())[0] == 130
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


async def test_in_words_and_so_many_events(harken_command: str) -> None:
    words = [
        harken_command,
        "listen",
        "--tools",
        "--follow",
        "--count",
        "1",
        "--",
        sys.executable,
        "-c",
        SERVER,
    ]
    code, stdout, stderr = await run(*words)
    assert (code, stderr) == (0, "this is a log line\n")
    assert [line.split("  ", 1)[1] for line in stdout.splitlines()] == [
        "state: connecting",
        "state: live",
        "listening for tools",
        "everything may have changed",
        "the list of tools changed",
        "ended (closed): stopped listening: that was the last event asked for",
    ]


async def test_a_no_is_3_and_time_up_is_5(harken_command: str, port: int) -> None:
    async with served(Hub(subscriptions=False).asgi()) as url:
        code, stdout, stderr = await run(harken_command, "listen", url, "--tools", "--follow")
        assert code == 3
        assert "state: refused" in stdout
        assert "ended (refused): the server refused: " in stderr
    nobody = f"http://127.0.0.1:{port}/mcp"
    words = [harken_command, "listen", nobody, "--tools", "--follow", "--timeout", "3", "--json"]
    async with command(*words) as listener:
        messages = await listener.messages()
        assert (await listener.end())[0] == 5
    assert messages[-1]["ending"] == "timeout"
    assert sum(message["type"] == "ended" for message in messages) > 1


async def test_the_list_of_resources_is_followed_too(harken_command: str, tmp_path: object) -> None:
    words = [harken_command, "listen", "--all", "--follow", "--json", "--"]
    folder = str(tmp_path)
    with open(os.path.join(folder, "a.txt"), "w") as file:  # noqa: ASYNC230  # a line
        file.write("a")
    async with command(*words, harken_command, "serve", "--stdio", folder) as listener:
        lists = (await until(listener, "ack"))[-1]
        assert "resourceSubscriptions" not in lists["honored"]
        assert (await until(listener, "ended"))[-1]["ending"] == "closed"
        [ack] = await until(listener, "ack")
        [uri] = ack["honored"]["resourceSubscriptions"]
        assert uri.endswith("a.txt")
