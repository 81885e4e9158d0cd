"""The two front doors: what leads where, and what makes no sense."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from harken import Ending, Filter, ToolsListChanged, connect, listen
from tests.client.scripted import Channel, Exchange, ack, channel_server, http_server, result, tools_changed

pytestmark = pytest.mark.anyio

STDIO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        honored = {"notifications": message["params"]["notifications"]}
        for method, more in (
            ("notifications/subscriptions/acknowledged", honored),
            ("notifications/tools/list_changed", {}),
        ):
            print(json.dumps({"method": method, "params": {"_meta": meta, **more}}))
        print(json.dumps({"id": message["id"], "result": {"resultType": "complete"}}), flush=True)
"""


async def over_http(exchange: Exchange) -> None:
    await exchange.acknowledge(**exchange.body["params"]["notifications"])
    await exchange.say(tools_changed(exchange.id), result(exchange.id))


async def over_a_channel(channel: Channel) -> None:
    heard = await channel.heard()
    id = heard["id"]
    await channel.say(ack(id, **heard["params"]["notifications"]), tools_changed(id), result(id))
    await channel.until_closed()


async def check(target: Any, **options: Any) -> None:
    with anyio.fail_after(10):
        async with listen(target, **options) as subscription:
            assert subscription.honored == Filter(tools_list_changed=True)
            assert not subscription.unsupported
            assert [event async for event in subscription] == [ToolsListChanged()]
        assert subscription.ending is Ending.COMPLETED


async def test_a_url() -> None:
    async with http_server(over_http) as server:
        await check(server.url, tools_list_changed=True)
        await check(server.url, wanted=Filter(tools_list_changed=True), headers={"x-more": "1"})
        await check(server.url.replace("http:", "HTTP:"), tools_list_changed=True)
    assert server.exchanges[1].headers["x-more"] == "1"


async def test_a_command() -> None:
    await check([sys.executable, "-c", STDIO], tools_list_changed=True)
    await check((Path(sys.executable), "-c", STDIO), tools_list_changed=True)


@pytest.mark.clause("T7")
async def test_a_unix_socket_and_a_byte_stream(tmp_path: Path) -> None:
    async with channel_server(tmp_path, over_a_channel) as path:
        await check(path, tools_list_changed=True)
        await check(await anyio.connect_unix(path), tools_list_changed=True)


@pytest.mark.clause("R16")
async def test_nothing_is_left(tmp_path: Path) -> None:
    """Neither task, nor socket, nor pipe, nor child, however a stream ends."""

    async def leave(target: Any) -> None:
        with anyio.fail_after(10):
            async with listen(target, tools_list_changed=True) as subscription:
                await anext(subscription)

    async def use_all(times: int) -> None:
        async with http_server(over_http) as server, channel_server(tmp_path, over_a_channel) as path:
            targets: list[Any] = [server.url, path, [sys.executable, "-c", STDIO]]
            for target in targets * times:
                await check(target, tools_list_changed=True)
                await leave(target)

    await use_all(1)
    descriptors, tasks = os.listdir("/proc/self/fd"), anyio.get_running_tasks()
    (tmp_path / "s").unlink()
    await use_all(3)
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    assert os.listdir("/proc/self/fd") == descriptors
    assert anyio.get_running_tasks() == tasks


async def test_who_the_client_says_it_is() -> None:
    async with http_server(over_http) as server:
        await check(server.url, tools_list_changed=True)
        await check(server.url, tools_list_changed=True, client_info={"name": "mine", "version": "2"})
    first, second = (
        exchange.body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]
        for exchange in server.exchanges
    )
    assert first["name"] == "harken"
    assert second == {"name": "mine", "version": "2"}


async def test_all_kinds_can_be_asked_for_by_name() -> None:
    async with (
        http_server(over_http) as server,
        listen(
            server.url,
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=["x://a", "x://b"],
        ) as subscription,
    ):
        assert subscription.honored == Filter(True, True, True, ("x://a", "x://b"))


@pytest.mark.parametrize("target", ["ftp://host/", "localhost:80", "harken serve", ""])
def test_a_string_that_is_no_url(target: str) -> None:
    with pytest.raises(ValueError, match="list"):
        connect(target)


def test_a_command_that_is_empty() -> None:
    with pytest.raises(ValueError, match="empty"):
        connect([])


async def test_what_is_for_http_alone() -> None:
    async with httpx2.AsyncClient() as client:
        choices: list[dict[str, Any]] = [{"token": "t"}, {"headers": {}}, {"http_client": client}]
        for options in choices:
            with pytest.raises(ValueError, match="URL"):
                connect(["server"], **options)


def test_without_httpx2_stdio_works_and_http_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['httpx2'] = None; import harken; harken.connect(['x'])\n"
        "try: harken.connect('http://127.0.0.1/')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert "pip install 'harken[http]'" in done.stdout
