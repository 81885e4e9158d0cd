"""Several subscriptions and other requests on one channel, over a real socket."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from harken import (
    ConnectionLost,
    Ending,
    Filter,
    ListenTimeout,
    ProtocolError,
    Refused,
    ResourceUpdated,
    RPCError,
    ToolsListChanged,
    connect,
)
from harken.core.demux import Ignored
from tests.client.scripted import Channel, ack, channel_server, encode, error, result, tools_changed, updated

pytestmark = pytest.mark.anyio

TOOLS = Filter(tools_list_changed=True)


def answering(*say: Callable[[Any], object]) -> Callable[[Channel], Awaitable[None]]:
    """A server that answers each listen with these messages, made from its id, and then only listens."""

    async def script(channel: Channel) -> None:
        while True:
            heard = await channel.heard()
            if heard["method"] == "subscriptions/listen":
                await channel.say(*(make(heard["id"]) for make in say))

    return script


def acked(id: Any) -> object:
    return ack(id, toolsListChanged=True)


@pytest.mark.clause("T7", "R5", "R6")
async def test_each_subscription_gets_its_own(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        first, second = (await channel.heard())["id"], (await channel.heard())["id"]
        await channel.say(ack(second, resourceSubscriptions=["x://a"]), ack(first, toolsListChanged=True))
        await channel.say(tools_changed(first), updated(second, "x://a"), tools_changed(str(first)))
        await channel.say(updated(second, "x://a/b"))
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:

                async def listen(wanted: Filter, *events: object) -> None:
                    async with connection.listen(wanted) as subscription:
                        assert [await anext(subscription) for _ in events] == list(events)

                tasks.start_soon(listen, TOOLS, ToolsListChanged())
                await anyio.wait_all_tasks_blocked()
                uris = Filter(resource_subscriptions=("x://a",))
                tasks.start_soon(listen, uris, ResourceUpdated("x://a"), ResourceUpdated("x://a/b"))
        assert connection.ignored == {Ignored.UNKNOWN: 1}


@pytest.mark.clause("T7")
async def test_a_byte_stream_that_is_already_there_will_do(tmp_path: Path) -> None:
    async with channel_server(tmp_path, answering(acked, tools_changed)) as path:
        stream = await anyio.connect_unix(path)
        async with connect(stream) as connection, connection.listen(TOOLS) as subscription:
            assert await anext(subscription) == ToolsListChanged()
        with pytest.raises(anyio.ClosedResourceError):
            await stream.send(b"x")


class Answering(anyio.abc.ByteStream):
    """A peer that does something about each line inside the very call that sends it."""

    def __init__(self, heard: Callable[[dict[str, Any], Callable[[object], None]], None]) -> None:
        self._heard = heard
        self._answers, self._inbox = anyio.create_memory_object_stream[bytes](10)

    async def send(self, item: bytes) -> None:
        self._heard(json.loads(item), self._answer)
        await anyio.wait_all_tasks_blocked()

    def _answer(self, message: object) -> None:
        self._answers.send_nowait(encode(message) + b"\n")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._inbox.receive()

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self._answers.close()
        self._inbox.close()


@pytest.mark.field("F47")
async def test_the_ack_may_come_inside_the_very_call_that_sends_the_request() -> None:
    def heard(message: dict[str, Any], answer: Callable[[object], None]) -> None:
        if "id" in message:
            answer(acked(message["id"]))
            answer(tools_changed(message["id"]))

    with anyio.fail_after(5):
        async with connect(Answering(heard)) as connection, connection.listen(TOOLS) as subscription:
            assert await anext(subscription) == ToolsListChanged()


@pytest.mark.clause("R25")
async def test_the_last_words_of_a_server_that_no_longer_reads_are_heard() -> None:
    listens: list[Any] = []

    def heard(message: dict[str, Any], answer: Callable[[object], None]) -> None:
        if message["method"] == "subscriptions/listen":
            listens.append(message["id"])
            answer(acked(message["id"]))
        else:
            answer(result(listens[0]))
            raise anyio.BrokenResourceError

    with anyio.fail_after(5):
        async with connect(Answering(heard)) as connection, connection.listen(TOOLS) as subscription:
            with pytest.raises(ConnectionLost, match="no longer reads"):
                await connection.request("tools/list")
            assert subscription.ending is Ending.COMPLETED


@pytest.mark.clause("T6")
@pytest.mark.field("F43")
async def test_other_requests_go_on_meanwhile_and_ids_are_never_used_twice(tmp_path: Path) -> None:
    ids: list[Any] = []

    async def script(channel: Channel) -> None:
        while True:
            heard = await channel.heard()
            if "id" in heard:
                ids.append(heard["id"])
                listen = heard["method"] == "subscriptions/listen"
                await channel.say(acked(heard["id"]) if listen else result(heard["id"], tools=[]))

    async with channel_server(tmp_path, script) as path:
        for _ in range(2):
            async with connect(path) as connection:
                for _ in range(2):
                    async with connection.listen(TOOLS):
                        assert (await connection.request("tools/list"))["tools"] == []
                await connection.discover()
    assert len(ids) == len(set(ids)) == 10


@pytest.mark.clause("R16")
async def test_leaving_sends_a_cancel_and_ignores_what_still_comes(tmp_path: Path) -> None:
    cancels: list[Any] = []

    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(acked(id))
        cancels.append(await channel.heard())
        await channel.say(tools_changed(id), result(id))
        await channel.say(result((await channel.heard())["id"]))
        cancels.append(id)
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        async with connection.listen(TOOLS) as subscription:
            pass
        assert subscription.ending is Ending.CLOSED
        await connection.request("tools/list")
        assert connection.ignored == {Ignored.LATE: 2}
        assert [event async for event in subscription] == []
    notification, id = cancels
    assert notification["method"] == "notifications/cancelled"
    assert notification["params"] == {"requestId": id}
    assert "id" not in notification


@pytest.mark.clause("R16")
@pytest.mark.parametrize(
    "end", [result, error, lambda id: {"method": "notifications/cancelled", "params": {"requestId": id}}]
)
async def test_what_has_ended_is_not_cancelled(tmp_path: Path, end: Callable[[Any], object]) -> None:
    heard: list[str] = []

    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(acked(id), end(id))
        request = await channel.heard()
        heard.append(request["method"])
        await channel.say(result(request["id"]))

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        async with connection.listen(TOOLS) as subscription:
            assert [event async for event in subscription] == []
        await connection.request("tools/list")
    assert heard == ["tools/list"]


@pytest.mark.clause("R25", "D1")
@pytest.mark.parametrize(
    ("end", "ending"),
    [
        (result, Ending.COMPLETED),
        (lambda id: {"id": id, "result": {}}, Ending.COMPLETED),
        (error, Ending.ERROR_AFTER_ACK),
        (
            lambda id: {"method": "notifications/cancelled", "params": {"requestId": id}},
            Ending.CANCELLED_BY_SERVER,
        ),
        (lambda id: {"id": id, "result": {"resultType": "input_required"}}, Ending.PROTOCOL_ERROR),
    ],
)
async def test_endings_are_told_apart(tmp_path: Path, end: Callable[[Any], object], ending: Ending) -> None:
    script = answering(acked, tools_changed, end)
    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        async with connection.listen(TOOLS) as subscription:
            assert [event async for event in subscription] == [ToolsListChanged()]
        assert subscription.ending is ending


@pytest.mark.clause("R26", "R16")
async def test_without_an_ack_the_request_is_cancelled(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def script(channel: Channel) -> None:
        heard.append(await channel.heard())
        heard.append(await channel.heard())

    async with channel_server(tmp_path, script) as path, connect(path, ack_timeout=0.05) as connection:
        with pytest.raises(ListenTimeout):
            async with connection.listen(TOOLS):
                pytest.fail("it was never acknowledged")
        with anyio.fail_after(5):
            while len(heard) < 2:
                await anyio.wait_all_tasks_blocked()
    assert heard[1]["params"] == {"requestId": heard[0]["id"]}


@pytest.mark.clause("R26")
async def test_after_the_ack_no_timeout_runs(tmp_path: Path) -> None:
    release = anyio.Event()

    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(acked(id))
        await release.wait()
        await channel.say(tools_changed(id))
        await channel.until_closed()

    async with (
        channel_server(tmp_path, script) as path,
        connect(path) as connection,
        connection.listen(TOOLS, ack_timeout=0.05) as subscription,
    ):
        with anyio.move_on_after(0.2) as scope:
            await anext(subscription)
        assert scope.cancelled_caught
        assert subscription.ending is None
        release.set()
        with anyio.fail_after(5):
            assert await anext(subscription) == ToolsListChanged()


@pytest.mark.clause("T6")
async def test_a_refusal_is_raised_and_the_channel_lives_on(tmp_path: Path) -> None:
    def refusal(id: Any) -> object:
        return error(id, -32601, "no such method", data={"retryAfter": 2})

    async with (
        channel_server(tmp_path, answering(refusal, refusal, acked)) as path,
        connect(path) as connection,
    ):
        for _ in range(2):
            with pytest.raises(Refused, match="no such method") as caught:
                async with connection.listen(TOOLS):
                    pytest.fail("it was refused")
            assert (caught.value.code, caught.value.status, caught.value.retry_after) == (-32601, None, 2.0)


@pytest.mark.clause("D14")
async def test_an_error_without_an_id_belongs_to_the_only_request_in_flight(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        for id in ({}, {"id": None}):
            await channel.heard()
            await channel.say({**id, "error": {"code": -32700, "message": "what?"}})
        await channel.heard()
        await channel.heard()
        await channel.say({"error": {"code": -32700, "message": "whose?"}})
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        with pytest.raises(Refused, match=r"what\?"):
            async with connection.listen(TOOLS):
                pytest.fail("it was refused")
        with pytest.raises(RPCError, match=r"what\?"):
            await connection.request("tools/list")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.request, "tools/list")
            tasks.start_soon(connection.request, "tools/list")
            with anyio.fail_after(5):
                while not connection.ignored:
                    await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert connection.ignored == {Ignored.UNKNOWN: 1}


@pytest.mark.clause("R18", "R25")
@pytest.mark.parametrize("reset", [False, True])
async def test_a_channel_that_closes_loses_all_that_was_on_it(tmp_path: Path, reset: bool) -> None:
    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(acked(id), tools_changed(id))
        await channel.heard()
        if reset:
            await channel.raw(b'{"half a mess')

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        async with connection.listen(TOOLS) as subscription:
            with pytest.raises(ConnectionLost):
                await connection.request("tools/list")
            assert [event async for event in subscription] == [ToolsListChanged()]
            assert subscription.ending is Ending.LOST
            assert isinstance(subscription.error, ConnectionLost)
        for _ in range(200):  # more than waits for the writer: none may hang
            with pytest.raises(ConnectionLost):
                await connection.request("tools/list")
        with pytest.raises(ConnectionLost):
            async with connection.listen(TOOLS):
                pytest.fail("the channel is gone")


@pytest.mark.clause("R18")
async def test_whoever_waits_to_write_learns_of_the_loss(tmp_path: Path) -> None:
    full = anyio.Event()

    async def script(channel: Channel) -> None:
        await full.wait()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        lost = 0

        async def ask() -> None:
            nonlocal lost
            with pytest.raises(ConnectionLost):
                await connection.request("tools/call", {"name": "x" * 100_000})
            lost += 1

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                full.set()
        assert lost == 100


@pytest.mark.field("F24")
@pytest.mark.parametrize(
    "line", [b"x" * 2000 + b"\n", b"no json\n", b'"\xff"\n', b"[]\n"], ids=["long", "text", "bytes", "array"]
)
async def test_a_line_that_cannot_be_read_is_told_to_every_subscription(tmp_path: Path, line: bytes) -> None:
    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(ack(id, toolsListChanged=True, resourceSubscriptions=["x://a"]))
        await channel.raw(line)
        await channel.say(result((await channel.heard())["id"]))
        await channel.say(updated(id, "x://b"))
        await channel.until_closed()

    wanted = Filter(tools_list_changed=True, resource_subscriptions=("x://a",))
    async with channel_server(tmp_path, script) as path, connect(path, max_event_bytes=1000) as connection:
        async with connection.listen(wanted) as subscription:
            with anyio.fail_after(5):
                assert await anext(subscription) == ToolsListChanged()
                assert await anext(subscription) == ResourceUpdated("x://a")
                await connection.request("tools/list")
                assert await anext(subscription) == ResourceUpdated("x://b")
        assert subscription.ending is Ending.CLOSED


@pytest.mark.clause("R22")
async def test_a_request_from_the_server_is_reported_and_never_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say({"id": 1, "method": "ping"}, {"id": 2, "method": "ping"}, acked(id))
        while True:
            heard.append(await channel.heard())
            if "id" in heard[-1]:
                await channel.say(result(heard[-1]["id"]))

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        async with connection.listen(TOOLS):
            await connection.request("tools/list")
        assert connection.ignored == {Ignored.SERVER_REQUEST: 2}
    assert heard[0]["method"] == "tools/list"
    assert not [message for message in heard if "method" not in message or message["method"] == "ping"]
    assert len([record for record in caplog.records if "server_request" in record.getMessage()]) == 1


@pytest.mark.clause("R16")
async def test_a_request_that_is_left_is_cancelled(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def script(channel: Channel) -> None:
        heard.append(await channel.heard())
        heard.append(await channel.heard())
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        with pytest.raises(TimeoutError, match="tools/list"):
            await connection.request("tools/list", timeout=0.05)
        with anyio.fail_after(5):
            while len(heard) < 2:
                await anyio.wait_all_tasks_blocked()
    assert heard[1]["params"] == {"requestId": heard[0]["id"]}


@pytest.mark.clause("T6")
async def test_the_first_of_two_answers_counts(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(result(id, which=1), result(id, which=2))
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        assert (await connection.request("tools/list"))["which"] == 1


async def test_an_answer_that_is_no_object_is_a_protocol_error(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        await channel.say({"id": (await channel.heard())["id"], "result": []})
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        with pytest.raises(ProtocolError):
            await connection.request("tools/list")


@pytest.mark.clause("R23", "H12")
async def test_a_notification_is_sent_and_its_failure_not_fatal(tmp_path: Path) -> None:
    heard: list[Any] = []

    async def script(channel: Channel) -> None:
        heard.append(await channel.heard())

    async with channel_server(tmp_path, script) as path, connect(path) as connection:
        await connection.notify("notifications/example", {"a": 1})
        with pytest.raises(ConnectionLost):
            await connection.request("tools/list")
        await connection.notify("notifications/example", {"a": 2})
    assert heard == [{"jsonrpc": "2.0", "method": "notifications/example", "params": {"a": 1}}]


async def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match="nowhere"):
        async with connect(tmp_path / "nowhere"):
            pytest.fail("there is nothing")
