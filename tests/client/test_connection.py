"""What both transports share: ids, `_meta`, and the life of a connection."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from harken import Connection, ConnectionLost, Ending, Filter, ListenTimeout, connect
from harken.client.connection import Options, Outgoing
from harken.version import __version__
from tests.client.scripted import Channel, ack, channel_server, error, result

pytestmark = pytest.mark.anyio


def test_the_defaults_say_who_we_are() -> None:
    options = Options()
    assert options.client_info == {"name": "harken", "version": __version__}
    assert options.ack_timeout == 30.0
    assert options.max_event_bytes == 1024 * 1024


@pytest.mark.clause("T1")
def test_a_request_is_one_line() -> None:
    assert (
        Outgoing(1, "m", {"a": "b\n"}).body == b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"b\\n"}}'
    )


async def test_meta_is_added_and_the_caller_s_own_is_kept(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def script(channel: Channel) -> None:
        while True:
            heard.append(await channel.heard())
            await channel.say(result(heard[-1]["id"]))

    params = {"a": 1, "_meta": {"progressToken": 5}}
    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        await connection.request("tools/list", params)
        await connection.request("tools/list", {"_meta": None})
    assert params == {"a": 1, "_meta": {"progressToken": 5}}
    assert heard[0]["params"]["a"] == 1
    assert heard[0]["params"]["_meta"]["progressToken"] == 5
    for message in heard:
        assert message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


@pytest.mark.clause("R26")
async def test_a_listen_s_own_ack_timeout_goes_first(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        await channel.until_closed()

    async with (
        channel_server(tmp_path, script) as path,
        connect(path, ack_timeout=None) as connection,
    ):
        with pytest.raises(ListenTimeout, match=r"0\.05 s"):
            async with connection.listen(tools_list_changed=True, ack_timeout=0.05):
                pytest.fail("nobody acknowledged")


async def test_a_request_without_a_timeout_waits(tmp_path: Path) -> None:
    release = anyio.Event()

    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await release.wait()
        await channel.say(result(id))
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    await connection.request("tools/list", timeout=None)

                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                release.set()


async def test_a_connection_that_was_never_entered_can_be_closed(tmp_path: Path) -> None:
    connection = connect(tmp_path / "nowhere")
    await connection.aclose()


async def test_closing_wakes_whoever_waits(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(ack(id, toolsListChanged=True))
        await channel.until_closed()

    async def ask(connection: Connection) -> None:
        with pytest.raises(ConnectionLost):
            await connection.request("tools/list")

    async def wait_for_ack(connection: Connection) -> None:
        with pytest.raises(ConnectionLost, match="closed"):
            async with connection.listen(tools_list_changed=True):
                pytest.fail("nobody acknowledged")

    async with (
        channel_server(tmp_path, script) as path,
        connect(path) as connection,
        connection.listen(tools_list_changed=True) as subscription,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask, connection)
        tasks.start_soon(wait_for_ack, connection)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await connection.aclose()
            assert [event async for event in subscription] == []
        assert subscription.ending is Ending.CLOSED


async def test_what_was_not_acknowledged_can_be_entered_to_see_why(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        for answer in (error, result):
            await channel.say(answer((await channel.heard())["id"]))
        id = (await channel.heard())["id"]
        await channel.say(ack(id, toolsListChanged=True))
        await channel.until_closed()

    seen = []
    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        for _ in range(3):
            async with connection.try_listen(Filter(True)) as subscription:
                seen.append((subscription.acknowledged, subscription.ending))
    assert seen == [(False, Ending.REFUSED), (False, Ending.NEVER_ACKNOWLEDGED), (True, None)]


async def test_whether_it_can_be_used(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        await channel.heard()

    async with channel_server(tmp_path, script) as path:
        connection = connect(path)
        usable = [connection.usable]
        async with connection:
            usable.append(connection.usable)
            with pytest.raises(ConnectionLost):
                await connection.request("tools/list")
            usable.append(connection.usable)
    over_http = connect("http://127.0.0.1:1/mcp")
    async with over_http:
        usable.append(over_http.usable)
    assert usable == [False, True, False, True]
    assert not over_http.usable


def test_what_a_watch_has_to_know_of_it() -> None:
    async def token() -> str:
        raise NotImplementedError

    channel, http = connect(["server"]), connect("http://127.0.0.1/", token="t")
    assert (channel.shared, http.shared) == (True, False)
    assert not channel.renewable
    assert not http.renewable
    assert connect("http://127.0.0.1/", token=token).renewable
