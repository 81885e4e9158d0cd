"""`harken listen`, `harken hub` and `harken publish` together: real processes, pipes and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn

from harken.gateway.runner import bind
from harken.server.asgi import Receive, Scope, Send
from harken.server.hub import Hub
from tests.e2e.commands import Command, command, run

pytestmark = pytest.mark.anyio

App = Callable[[Scope, Receive, Send], Awaitable[None]]
TOKEN = "a-secret"


@contextlib.asynccontextmanager
async def hub(harken_command: str, *options: str) -> AsyncIterator[tuple[Command, str]]:
    """A running `harken hub`, and its URL."""
    async with command(harken_command, "hub", "--port", "0", *options) as running:
        yield running, await running.url()


@contextlib.asynccontextmanager
async def served(app: App) -> AsyncIterator[str]:
    """Any app on a socket, in this process, and its URL."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_config=None, lifespan="off"))
    task = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await task


def listening(
    harken_command: str, url: str, *options: str
) -> contextlib.AbstractAsyncContextManager[Command]:
    return command(harken_command, "listen", url, *options)


@pytest.mark.field("F7")
async def test_what_one_process_publishes_another_one_hears(harken_command: str) -> None:
    async with (
        hub(harken_command) as (_, url),
        listening(harken_command, url, "--all", "--resource", "file:///a", "--json") as listener,
    ):
        ack = await listener.message()
        assert ack.pop("time")
        assert ack.pop("subscriptionId") is not None
        assert ack == {
            "type": "ack",
            "honored": {
                "toolsListChanged": True,
                "promptsListChanged": True,
                "resourcesListChanged": True,
                "resourceSubscriptions": ["file:///a"],
            },
            "unsupported": {},
        }
        for words in (["tools_list_changed"], ["prompts_list_changed"], ["resource_updated", "file:///a"]):
            assert (await run(harken_command, "publish", *words, "--hub", url))[0] == 0
            event = await listener.message()
            assert event.pop("time")
            expected = {"type": "event", "event": words[0]}
            assert event == expected | ({"uri": words[1]} if len(words) > 1 else {})


async def test_publishing_without_a_listener_is_accepted(harken_command: str) -> None:
    async with hub(harken_command) as (_, url):
        environment = {"HARKEN_HUB": url.removesuffix("/mcp")}
        done = await run(harken_command, "publish", "resource_updated", "x:/a", "x:/b", env=environment)
        assert done == (0, "accepted: 2\n", "")


async def test_with_a_token_only_who_has_it_publishes(harken_command: str) -> None:
    async with (
        hub(harken_command, "--publish-token", TOKEN) as (_, url),
        listening(harken_command, url, "--tools", "--count", "1", "--json") as listener,
    ):
        assert (await listener.message())["type"] == "ack"
        environment = {"HARKEN_HUB": url.removesuffix("/mcp"), "HARKEN_TOKEN": ""}
        code, _, stderr = await run(harken_command, "publish", "tools_list_changed", env=environment)
        assert code == 3
        assert "HARKEN_TOKEN" in stderr
        environment["HARKEN_TOKEN"] = TOKEN
        assert (await run(harken_command, "publish", "tools_list_changed", env=environment))[0] == 0
        assert (await listener.message())["event"] == "tools_list_changed"


@pytest.mark.parametrize("as_json", [False, True])
async def test_after_n_events_it_ends_with_0(harken_command: str, as_json: bool) -> None:
    options = ["--resource", "x:/a", "--resource", "x:/b", "--count", "2", *(["--json"] if as_json else [])]
    async with (
        hub(harken_command) as (_, url),
        listening(harken_command, url, *options) as listener,
    ):
        await listener.line()
        await run(harken_command, "publish", "resource_updated", "x:/a", "x:/b", "--hub", url)
        assert "x:/a" in await listener.line()
        assert "x:/b" in await listener.line()
        assert "closed" in await listener.line()
        assert await listener.end() == (0, "", "")


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_server_that_drains_ends_it_with_0(harken_command: str, as_json: bool) -> None:
    async with (
        hub(harken_command) as (server, url),
        listening(harken_command, url, "--all", *(["--json"] if as_json else [])) as listener,
    ):
        await listener.line()
        server.process.send_signal(signal.SIGINT)
        assert (await server.end())[0] == 0
        assert "completed" in await listener.line()
        assert await listener.end() == (0, "", "")


async def test_a_server_that_dies_ends_it_with_4(harken_command: str) -> None:
    async with (
        hub(harken_command) as (server, url),
        listening(harken_command, url, "--all", "--json") as listener,
    ):
        await listener.line()
        server.process.kill()
        error, ended = await listener.messages()
        assert (error["type"], ended["type"], ended["ending"]) == ("error", "ended", "lost")
        assert (await listener.end())[0] == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_ctrl_c_is_130(harken_command: str, number: signal.Signals, code: int) -> None:
    async with (
        hub(harken_command) as (_, url),
        listening(harken_command, url, "--all") as listener,
    ):
        await listener.line()
        listener.process.send_signal(number)
        ended, stdout, stderr = await listener.end()
        assert (ended, stderr) == (code, "")
        assert "ended (closed)" in stdout


async def test_time_up_is_5(harken_command: str) -> None:
    async with hub(harken_command) as (_, url):
        code, stdout, stderr = await run(harken_command, "listen", url, "--tools", "--timeout", "3")
        assert code == 5
        assert "listening for tools" in stdout
        assert "ended (timeout)" in stderr


async def test_nothing_honored_is_told(harken_command: str) -> None:
    async with served(Hub(supports=["promptsListChanged"]).asgi()) as url:
        code, stdout, stderr = await run(harken_command, "listen", url, "--tools", "--resource", "x:/a")
        assert (code, stderr) == (0, "")
        assert "not honored by the server: tools, x:/a" in stdout
        assert "ended (nothing_honored)" in stdout


async def test_a_refusal_is_3(harken_command: str) -> None:
    async with served(Hub(subscriptions=False).asgi()) as url:
        code, stdout, stderr = await run(harken_command, "listen", url, "--tools")
        assert (code, stdout) == (3, "")
        assert "ended (refused): the server refused: " in stderr
        assert "Traceback" not in stderr


async def test_the_token_goes_with_each_request(harken_command: str) -> None:
    endpoint = Hub(supports=[]).asgi()
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(dict(scope["headers"])[b"authorization"])
        await endpoint(scope, receive, send)

    async with served(app) as url:
        words = [harken_command, "listen", url, "--all"]
        assert (await run(*words, "--token", TOKEN))[0] == 0
        assert (await run(*words, env={"HARKEN_TOKEN": TOKEN}))[0] == 0
    assert set(seen) == {f"Bearer {TOKEN}".encode()}
    assert len(seen) >= 4  # the list and the stream, twice


@pytest.mark.clause("H11")
@pytest.mark.parametrize("as_json", [False, True])
async def test_verbose_shows_keep_alives(harken_command: str, as_json: bool) -> None:
    options = ["--tools", "-v", *(["--json"] if as_json else [])]
    async with (
        served(Hub(keep_alive=0.05).asgi()) as url,
        listening(harken_command, url, *options) as listener,
    ):
        await listener.line()
        line = (await listener.stderr.readline()).decode() if as_json else await listener.line()
        assert re.search(r"keep-alive after \d+\.\d s", line)


async def test_who_has_read_enough_ends_it_quietly(harken_command: str) -> None:
    """As `harken listen … | head -1` does, also where nothing more is ever written."""
    async with hub(harken_command) as (_, url):
        reading, writing = os.pipe()
        listener = await asyncio.create_subprocess_exec(
            harken_command, "listen", url, "--all", stdout=writing, stderr=asyncio.subprocess.PIPE
        )
        os.close(writing)
        assert b"listening for" in await asyncio.to_thread(os.read, reading, 4096)
        os.close(reading)
        assert (await listener.communicate())[1] == b""
        assert listener.returncode == 0


async def test_without_stdout_it_listens_all_the_same(harken_command: str) -> None:
    async with served(Hub(supports=[]).asgi()) as url:
        closed = ["sh", "-c", 'exec "$0" "$@" >&-', harken_command]
        assert await run(*closed, "listen", url, "--tools") == (0, "", "")


async def test_any_uri_can_be_shown_in_any_encoding(harken_command: str) -> None:
    async with served(Hub(supports=[]).asgi()) as url:
        words = [harken_command, "listen", url, "--resource", "x:/ü"]
        code, stdout, _ = await run(*words, env={"PYTHONIOENCODING": "ascii"})
        assert code == 0
        assert "not honored by the server: x:/\\xfc" in stdout


SERVER = textwrap.dedent("""
    import asyncio, sys
    from harken.core.events import ToolsListChanged
    from harken.server.hub import Hub

    async def main():
        hub = Hub()

        async def publish():
            while not hub.streams:
                await asyncio.sleep(0.01)
            await hub.publish(ToolsListChanged())

        publishing = asyncio.create_task(publish())
        print("this is a log line", file=sys.stderr, flush=True)
        await hub.serve_stdio()

    asyncio.run(main())
""")


@pytest.mark.parametrize("wanted", ["--all", "--tools"])
async def test_over_stdio(harken_command: str, wanted: str) -> None:
    words = [harken_command, "listen", wanted, "--json", "--count", "1", "--", sys.executable, "-c", SERVER]
    async with command(*words, env={"HARKEN_TOKEN": "for-others"}) as listener:
        messages = await listener.messages()
        assert [message["type"] for message in messages] == ["ack", "event", "ended"]
        code, _, stderr = await listener.end()
        assert (code, stderr) == (0, "this is a log line\n")


async def test_ctrl_c_ends_the_command_that_it_started(harken_command: str) -> None:
    words = [harken_command, "listen", "--prompts", "--", sys.executable, "-c", SERVER]
    async with command(*words) as listener:
        await listener.line()
        listener.process.send_signal(signal.SIGINT)
        assert (await listener.end())[0] == 130
