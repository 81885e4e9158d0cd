"""A channel of lines over a real Unix socket, on asyncio's own loop and on uvloop."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harken.core.events import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.subscription import Ending
from harken.errors import RPCError
from harken.server.hub import Hub
from harken.server.limits import Limits
from harken.server.methods import Request
from tests.core.frames import ODD_IDS, Message, brief, name, same_id, tag
from tests.lines_client import (
    ACK,
    ALL,
    LIMIT,
    META,
    TOOLS,
    Lines,
    cancel,
    connect,
    encode,
    listen,
    over_unix,
    request,
    until,
)

pytestmark = pytest.mark.anyio
VERSION = "io.modelcontextprotocol/protocolVersion"


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The server runs on either loop."""
    return request.param


@asynccontextmanager
async def channel(path: Path, **options: Any) -> AsyncIterator[tuple[Hub, Lines]]:
    """A hub and one client of it."""
    hub = Hub(drain_window=0, **options)
    async with over_unix(hub, path / "socket") as [client]:
        yield hub, client


class Gate:
    """A method that answers when it is told to, and what became of its calls."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.started = 0
        self.cancelled = 0

    def has_started(self, times: int) -> bool:
        """Whether so many calls have begun."""
        return self.started == times

    async def __call__(self, request: Request) -> Mapping[str, object]:
        """The handler."""
        self.started += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"passed": True}


# -- The life of a subscription


@pytest.mark.clause("T7", "R14", "R3")
async def test_a_whole_life(tmp_path: Path) -> None:
    async with channel(tmp_path, supports=["toolsListChanged", "resourceSubscriptions"]) as (hub, client):
        ack = await client.listen({**ALL, "resourceSubscriptions": ["x://a"]})
        assert ack["params"]["notifications"] == {
            "toolsListChanged": True,
            "resourceSubscriptions": ["x://a"],
        }
        await hub.publish(ToolsListChanged(), PromptsListChanged(), ResourceUpdated("x://b"))
        await hub.publish(ResourceUpdated("x://a"))
        assert await client.names(2) == ["tools/list_changed", "resources/updated x://a"]
        await hub.aclose()
        assert await client.names(1) == ["result"]
        assert client.seen[-1]["result"]["resultType"] == "complete"
        assert hub.endings == {Ending.SHUTDOWN: 1}


@pytest.mark.clause("R4")
@pytest.mark.field("F45")
@pytest.mark.parametrize("id", ODD_IDS, ids=brief)
async def test_ids_come_back_with_their_type_and_value(id: int | str, tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        line = json.dumps({**listen(TOOLS), "id": 0}).replace('"id": 0', f'"id": {_json(id)}')
        await client.send(line.encode() + b"\n")
        await client.receive()
        await hub.publish(ToolsListChanged())
        await client.receive()
        await client.send(line.encode() + b"\n")
        assert same_id((await client.receive())["id"], id)
        await hub.aclose()
        await client.receive()
        ack, event, refused, result = client.seen
        assert refused["error"]["code"] == -32600
        assert [name(message) for message in (ack, event, result)] == [ACK, "tools/list_changed", "result"]
        assert all(same_id(tag(message), id) for message in (ack, event, result))


def _json(id: int | str) -> str:
    """An id as JSON; Python prints no integer of so many digits by itself."""
    return json.dumps(id) if isinstance(id, str) else str(id)


@pytest.mark.clause("R4", "R5", "R6", "R12", "R15", "T2")
@pytest.mark.field("F44")
async def test_several_on_one_channel_each_have_their_own_copies(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.listen({**TOOLS, "promptsListChanged": True}, "1")
        await hub.publish(ToolsListChanged())
        events = [await client.receive(), await client.receive()]
        assert [name(event) for event in events] == ["tools/list_changed"] * 2
        assert {repr(tag(event)) for event in events} == {"1", "'1'"}
        await client.send(cancel(1))
        await client.quiet()
        await hub.publish(PromptsListChanged(), ToolsListChanged())
        events = [await client.receive(), await client.receive()]
        assert [(name(event), tag(event)) for event in events] == [
            ("prompts/list_changed", "1"),
            ("tools/list_changed", "1"),
        ]
        await client.quiet()


@pytest.mark.clause("R2", "R12")
async def test_the_ack_is_first_of_its_id_while_others_are_told(tmp_path: Path) -> None:
    """Every listen of a burst joins while events are pending for those before it."""
    async with channel(tmp_path, methods={"test/publish": _publisher()}) as (hub, client):
        lines: list[Message | bytes] = []
        for id in range(50):
            lines += [listen(ALL, id), request("test/publish", id=f"p{id}")]
        hubs.append(hub)
        await client.send(*lines)
        await until(lambda: len(hub.streams) == 50)
        await hub.publish(ToolsListChanged())
        await hub.aclose()
        seen: dict[object, list[str]] = {}
        async with asyncio.timeout(20):
            while sum(names[-1:] == ["result"] for names in seen.values()) < 50:
                message = await client.receive()
                if "method" in message or tag_of(message) is not None:
                    seen.setdefault(tag(message), []).append(name(message))
        for names in seen.values():
            assert names[0] == ACK
            assert names.count(ACK) == 1
            assert names.index("result") == len(names) - 1
            assert "tools/list_changed" in names


hubs: list[Hub] = []


def _publisher() -> Any:
    async def publish(request: Request) -> Mapping[str, object]:
        await hubs[-1].publish(ToolsListChanged(), ResourcesListChanged())
        return {}

    return publish


def tag_of(message: Message) -> object:
    """The subscription that a result names, None for any other answer."""
    result = message.get("result")
    return None if result is None else result["_meta"].get("io.modelcontextprotocol/subscriptionId")


@pytest.mark.clause("R2")
async def test_what_is_refused_gets_one_error_and_no_ack(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.send(listen({"toolsListChanged": 1}, "bad"))
        message = await client.receive()
        assert (message["id"], message["error"]["code"]) == ("bad", -32602)
        await hub.publish(ToolsListChanged())
        await client.quiet()
        assert not hub.streams


@pytest.mark.clause("R13")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": "all"},
        {"notifications": {"toolsListChanged": "false"}},
        {"notifications": {"promptsListChanged": None}},
        {"notifications": {"resourcesListChanged": 0}},
        {"notifications": {"resourceSubscriptions": "x://a"}},
        {"notifications": {"resourceSubscriptions": [1]}},
        {"notifications": {"resourceSubscriptions": ["no uri"]}},
        {"notifications": {"resourceSubscriptions": {"x://a": True}}},
    ],
    ids=str,
)
async def test_a_filter_that_breaks_the_schema_is_refused(params: dict[str, Any], tmp_path: Path) -> None:
    async with channel(tmp_path) as (_, client):
        answer = await client.ask("subscriptions/listen", params, id=3)
        assert answer["error"]["code"] == -32602
        await client.listen(TOOLS, 3)


@pytest.mark.clause("R17", "R24")
async def test_nothing_outlives_a_connection_nor_a_request(tmp_path: Path) -> None:
    hub = Hub(drain_window=0)
    async with over_unix(hub, tmp_path / "socket", 2) as [first, second]:
        await first.listen(TOOLS, 1)
        first.writer.close()
        await until(lambda: not hub.streams)
        assert hub.endings in ({Ending.CLIENT_GONE: 1}, {Ending.SHUTDOWN: 1})
        await hub.publish(ToolsListChanged())
        await second.quiet()
        await second.listen(TOOLS, 1)
        bare = {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "subscriptions/listen",
            "params": {"notifications": TOOLS},
        }
        await second.send(bare)  # the first listen's _meta is no listen's but its own
        assert (await second.receive())["error"]["code"] == -32602
        await hub.publish(ToolsListChanged())
        assert await second.names(1) == ["tools/list_changed"]
        await second.quiet()


@pytest.mark.clause("R23")
async def test_notifications_are_never_answered(tmp_path: Path) -> None:
    async with channel(tmp_path) as (_, client):
        for message in (
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "method": "no/such/method", "params": {}},
            {"jsonrpc": "2.0", "method": "server/discover", "params": {"_meta": META}},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": [1]},
            {"jsonrpc": "1.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "method": 5},
        ):
            if message["jsonrpc"] == "2.0" and isinstance(message["method"], str):
                await client.send(message)
        await client.quiet()


@pytest.mark.clause("D16")
async def test_a_listen_without_an_id_is_ignored(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.send({key: value for key, value in listen(ALL).items() if key != "id"})
        await client.quiet()
        assert not hub.streams
        await hub.publish(ToolsListChanged())
        await client.quiet()


# -- Cancelling


@pytest.mark.clause("R15", "R27")
@pytest.mark.field("F43")
async def test_after_a_cancel_nothing_with_that_id_follows(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(ALL, 7)
        await client.send(cancel(7), request("server/discover", id=8))
        assert (await client.receive())["id"] == 8
        assert not hub.streams
        assert hub.endings == {Ending.CANCELLED: 1}
        await hub.publish(ToolsListChanged(), ResourceUpdated("x://a"))
        await client.quiet()
        await hub.aclose()
        await client.quiet()
        await client.send(listen(ALL, 7))
        assert (await client.receive())["error"]["data"]["reason"] == "shutting_down"


@pytest.mark.clause("R15")
async def test_a_cancel_before_the_ack_takes_the_ack_with_it(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.send(listen(ALL, 1), cancel(1), listen(ALL, 2))
        assert same_id(tag(await client.receive()), 2)
        assert len(hub.streams) == 1
        await client.quiet()
        await client.listen(TOOLS, 1)


@pytest.mark.clause("R15")
async def test_a_cancel_takes_what_was_about_to_leave_with_it(tmp_path: Path) -> None:
    async with channel(tmp_path, methods={"test/publish": _publisher()}) as (hub, client):
        hubs.append(hub)
        await client.listen(TOOLS, 1)
        await client.send(request("test/publish", id=2), cancel(1))
        assert (await client.receive())["id"] == 2
        await client.quiet()


@pytest.mark.clause("R15")
@pytest.mark.parametrize(
    "params",
    [
        {"requestId": 2}, {"requestId": "1"}, {"requestId": 1.0}, {"requestId": True}, {"requestId": None},
        {"requestId": [1]}, {"requestId": {"id": 1}}, {"requestId": 10**400}, {"requestId": "x" * 2000},
        {"requestid": 1}, {}, {"reason": "none"}, {"requestId": 1.5, "_meta": META}, {"requestId": -1},
    ],
    ids=brief,
)  # fmt: skip
async def test_a_cancel_of_anything_else_is_ignored(params: dict[str, Any], tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        await client.quiet()
        await hub.publish(ToolsListChanged())
        assert await client.names(1) == ["tools/list_changed"]
        assert len(hub.streams) == 1


@pytest.mark.clause("R15")
async def test_a_cancel_of_what_has_finished_is_ignored_and_its_id_is_free_again(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen({}, 1)
        assert await client.names(1) == ["result"]
        await client.send(cancel(1), cancel(1))
        await client.listen(TOOLS, 1)
        await client.send(cancel(1))
        await client.quiet()
        await client.listen(TOOLS, 1)
        await hub.publish(ToolsListChanged())
        assert await client.names(1) == ["tools/list_changed"]


@pytest.mark.clause("R15")
async def test_a_request_can_be_cancelled_too(tmp_path: Path) -> None:
    gate = Gate()
    async with channel(tmp_path, methods={"test/wait": gate}) as (_, client):
        await client.send(request("test/wait", id=1))
        await until(lambda: gate.started)
        await client.send(cancel("1"), cancel(1))
        await until(lambda: gate.cancelled)
        gate.open.set()
        await client.quiet()


async def test_a_handler_that_ignores_its_cancellation_is_not_heard(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def stubborn(request: Request) -> Mapping[str, object]:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return {}

    async with channel(tmp_path, methods={"test/wait": stubborn}) as (_, client):
        await client.send(request("test/wait", id=1))
        await started.wait()
        await client.send(cancel(1))
        await client.quiet()


# -- Ids


@pytest.mark.clause("T6")
async def test_an_id_in_use_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with channel(tmp_path, methods={"test/wait": gate}) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.send(request("test/wait", id=2))
        await until(lambda: gate.started)
        for id in (1, 2):
            for message in (listen(ALL, id), request("test/wait", id=id), request("no/such", id=id)):
                await client.send(message)
                refusal = await client.receive()
                assert (refusal["id"], refusal["error"]["code"]) == (id, -32600)
        assert gate.started == 1
        await hub.publish(PromptsListChanged(), ToolsListChanged())
        assert await client.names(1) == ["tools/list_changed"]
        gate.open.set()
        assert (await client.answer(2))["result"]["passed"] is True
        await client.send(cancel(1))
        await client.quiet()
        assert not hub.streams


@pytest.mark.clause("T6", "D14")
@pytest.mark.field("F45")
@pytest.mark.parametrize(
    "id",
    ["null", "true", "false", "1.5", "1.0", "1e3", "[]", "{}", '["a"]', '"' + "x" * 1025 + '"', "1" * 4400],
)
async def test_what_cannot_be_an_id_is_refused_without_one(id: str, tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.send(json.dumps(listen(ALL, 0)).replace('"id": 0', f'"id": {id}').encode() + b"\n")
        message = await client.receive()
        assert message["error"]["code"] == -32600
        assert "id" not in message
        await hub.publish(ToolsListChanged())
        assert await client.names(1) == ["tools/list_changed"]
        assert len(hub.streams) == 1


# -- Requests


@pytest.mark.clause("T2")
@pytest.mark.field("F43")
async def test_a_listen_and_a_slow_request_block_nobody(tmp_path: Path) -> None:
    gate = Gate()

    async def tools(request: Request) -> Mapping[str, object]:
        return {"tools": []}

    async with channel(tmp_path, methods={"test/wait": gate, "tools/list": tools}) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.send(
            request("test/wait", id=2), request("tools/list", id=3), listen(TOOLS, 4), cancel(1)
        )
        messages = [await client.receive(), await client.receive()]
        assert {message.get("id") for message in messages} == {3, None}
        await until(lambda: len(hub.streams) == 1)
        await hub.publish(ToolsListChanged())
        assert same_id(tag(await client.receive()), 4)
        assert not gate.open.is_set()


@pytest.mark.clause("T8")
@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"jsonrpc": "2.0", "id": 9, "method": "server/discover"}, -32602),
        ({"jsonrpc": "2.0", "id": 9, "method": "server/discover", "params": {"_meta": {}}}, -32602),
        ({"jsonrpc": "2.0", "id": 9, "method": "server/discover", "params": {"_meta": None}}, -32602),
        (
            {
                "jsonrpc": "2.0",
                "id": 9,
                "method": "subscriptions/listen",
                "params": {"notifications": TOOLS, "_meta": {VERSION: META[VERSION]}},
            },
            -32602,
        ),
        (request("no/such/method", id=9), -32601),
        (request("resources/list", id=9), -32601),
        (request("notifications/cancelled", id=9), -32601),
        (request("server/discover", {"_meta": {**META, VERSION: "2024-11-05"}}, 9), -32022),
        (
            listen(TOOLS, 9) | {"params": {"notifications": TOOLS, "_meta": {**META, VERSION: "1"}}},
            -32022,
        ),
    ],
)
async def test_the_protocols_refusals(message: Message, code: int, tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.send(message)
        error = await client.receive()
        assert (error["id"], error["error"]["code"]) == (9, code)
        if code == -32022:
            assert error["error"]["data"]["supported"] == ["2026-07-28"]
            assert error["error"]["data"]["requested"] in {"2024-11-05", "1"}
        await hub.publish(ToolsListChanged())
        assert await client.names(1) == ["tools/list_changed"]
        assert len(hub.streams) == 1


@pytest.mark.clause("R22")
@pytest.mark.parametrize("params", [{"_meta": META}, {}, None])
async def test_ping_is_no_method_and_the_channel_lives_on(params: Any, tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(TOOLS, 1)
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": params}
        await client.send({key: value for key, value in ping.items() if value is not None})
        answer = await client.receive()
        assert (answer["id"], answer["error"]["code"]) == (2, -32601)
        await hub.publish(ToolsListChanged())
        assert await client.names(1) == ["tools/list_changed"]


@pytest.mark.clause("A7")
@pytest.mark.field("F56")
async def test_initialize_learns_which_versions_would_do(tmp_path: Path) -> None:
    async with channel(tmp_path) as (_, client):
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        await client.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        answer = await client.receive()
        assert answer["id"] == 0
        assert answer["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        await client.quiet()


async def test_answers_of_handlers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An answer comes whatever a handler does."""

    async def refuses(request: Request) -> Mapping[str, object]:
        raise RPCError(-32602, "not so", {"why": request.params["why"]})

    async def breaks(request: Request) -> Mapping[str, object]:
        raise ZeroDivisionError

    async def unanswerable(request: Request) -> Mapping[str, object]:
        return {"it": object()}

    async def nothing(request: Request) -> Any:
        return None

    async def odd_data(request: Request) -> Mapping[str, object]:
        raise RPCError(-32602, "not so", object())

    async def cancels_itself(request: Request) -> Mapping[str, object]:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner
        return {}

    methods = {
        "refuses": refuses, "breaks": breaks, "unanswerable": unanswerable, "nothing": nothing,
        "odd_data": odd_data, "cancels_itself": cancels_itself,
    }  # fmt: skip
    async with channel(tmp_path, methods=methods) as (_, client):
        await client.listen(TOOLS, 1)
        answer = await client.ask("refuses", {"why": "because"})
        assert answer["error"] == {"code": -32602, "message": "not so", "data": {"why": "because"}}
        for method in methods.keys() - {"refuses"}:
            answer = await client.ask(method)
            assert answer["error"] == {"code": -32603, "message": f"{method} failed inside the server"}
        await client.quiet()
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 5


@pytest.mark.clause("D9")
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_streams": 2}, "server_full"),
        ({"max_streams_per_channel": 2}, "quota"),
        ({"max_uris": 1}, "quota"),
    ],
)
async def test_too_much_is_refused_and_one_that_ends_frees_its_place(
    limits: dict[str, int], reason: str, tmp_path: Path
) -> None:
    async with channel(tmp_path, limits=Limits(**limits)) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.listen(TOOLS, 2)
        await client.send(listen({"resourceSubscriptions": ["x://a", "x://b"]}, 3))
        refusal = await client.receive()
        assert refusal["id"] == 3
        assert refusal["error"]["code"] == -32603
        assert refusal["error"]["data"] == {"reason": reason, "retryAfter": 5}
        assert hub.endings == {Ending.REJECTED: 1}
        if "max_uris" not in limits:
            await client.send(cancel(1))
            await client.listen(TOOLS, 3)


@pytest.mark.clause("D9")
async def test_too_many_requests_in_flight_are_refused(tmp_path: Path) -> None:
    gate = Gate()
    limits = Limits(max_requests_per_channel=2)
    async with channel(tmp_path, methods={"test/wait": gate}, limits=limits) as (_, client):
        await client.send(*(request("test/wait", id=id) for id in range(3)))
        refusal = await client.receive()
        assert refusal["id"] == 2
        assert refusal["error"]["data"]["reason"] == "quota"
        gate.open.set()
        assert {(await client.receive())["id"] for _ in range(2)} == {0, 1}
        await client.quiet()


# -- Decisions


@pytest.mark.clause("R27", "D1", "R14")
@pytest.mark.parametrize("signal", ["result", "cancelled", "both"])
async def test_how_the_end_is_told(signal: Any, tmp_path: Path) -> None:
    async with channel(tmp_path, end_signal=signal) as (hub, client):
        await client.listen(TOOLS, "a")
        await client.listen(TOOLS, "b")
        await client.send(cancel("b"))
        await client.quiet()
        await hub.publish(ToolsListChanged())
        await hub.aclose()
        assert await client.names(1) == ["tools/list_changed"]
        told = ["cancelled", "result"] if signal == "both" else [signal]
        assert await client.names(len(told)) == told
        for message in client.seen:
            if message.get("method") == "notifications/cancelled":
                assert message["params"]["requestId"] == "a"
        await client.quiet()


@pytest.mark.clause("D2")
@pytest.mark.parametrize("asked", [{}, {"toolsListChanged": False}, {"promptsListChanged": True}], ids=str)
async def test_nothing_honored_is_acked_and_over(asked: dict[str, Any], tmp_path: Path) -> None:
    async with channel(tmp_path, supports=["toolsListChanged"]) as (hub, client):
        ack = await client.listen(asked, 1)
        assert ack["params"]["notifications"] == {}
        assert await client.names(1) == ["result"]
        assert not hub.streams
        assert hub.endings == {Ending.NOTHING_HONORED: 1}


@pytest.mark.clause("D2")
async def test_nothing_honored_is_held_where_that_is_wanted(tmp_path: Path) -> None:
    async with channel(tmp_path, hold_empty=True) as (hub, client):
        await client.listen({}, 1)
        await hub.publish(ToolsListChanged())
        await client.quiet()
        assert len(hub.streams) == 1
        await hub.aclose()
        assert await client.names(1) == ["result"]


@pytest.mark.clause("D3")
@pytest.mark.field("F2")
async def test_the_off_switch_takes_method_and_bits_away(tmp_path: Path) -> None:
    async def tools(request: Request) -> Mapping[str, object]:
        return {"tools": []}

    async with channel(tmp_path, subscriptions=False, methods={"tools/list": tools}) as (_, client):
        await client.send(listen(ALL, 1))
        assert (await client.receive())["error"]["code"] == -32601
        assert (await client.call("server/discover"))["capabilities"] == {"tools": {}}


@pytest.mark.clause("D8")
@pytest.mark.parametrize("report", ["subscribed", "child"])
async def test_sub_resources(report: Any, tmp_path: Path) -> None:
    async with channel(tmp_path, subresources=True, report=report) as (hub, client):
        await client.listen({"resourceSubscriptions": ["x://h/A/", "X://h/b"]}, 1)
        await hub.publish(ResourceUpdated("x://h/A/c"))
        child = report == "child"
        assert await client.names(1) == [f"resources/updated {'x://h/A/c' if child else 'x://h/A/'}"]
        await hub.publish(ResourceUpdated("x://h/b/c/d"))
        assert await client.names(1) == [f"resources/updated {'x://h/b/c/d' if child else 'X://h/b'}"]
        await hub.publish(ResourceUpdated("x://h/bc"), ResourceUpdated("x://h/Ab"), ResourceUpdated("x://h/"))
        await client.quiet()
        await hub.publish(ResourceUpdated("x://h/b"))
        assert await client.names(1) == ["resources/updated X://h/b"]


@pytest.mark.clause("D8")
async def test_sub_resources_are_off_by_default(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen({"resourceSubscriptions": ["x://h/a/"]}, 1)
        await hub.publish(ResourceUpdated("x://h/a/c"))
        await client.quiet()


@pytest.mark.field("F48")
async def test_a_client_that_names_an_unknown_subscription_is_ignored(tmp_path: Path) -> None:
    """The server's half: frames that carry a tag mean nothing to it."""
    async with channel(tmp_path) as (hub, client):
        await client.listen(TOOLS, 1)
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": 99}, "notifications": {}}
        for method in ("notifications/subscriptions/acknowledged", "notifications/tools/list_changed"):
            await client.send({"jsonrpc": "2.0", "method": method, "params": params})
        await client.quiet()
        assert len(hub.streams) == 1


# -- Bad input


BAD: list[tuple[bytes, int | None]] = [
    (b"{", -32700),
    (b"nonsense", -32700),
    (b'"half', -32700),
    (b"\x00", -32700),
    (b"\xff\xfe{}", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"\xc3\x28"}', -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xff"}}', -32700),
    (b'{"jsonrpc":"2.0","id":"\\ud800","method":"server/discover"}', -32700),
    (b"[" * 100_000, -32600),
    (b'{"jsonrpc":"2.0","id":5,"method":"x","params":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, -32700),
    (b"[]", -32600),
    (json.dumps([listen(ALL, 5)]).encode(), -32600),
    (b"null", -32600),
    (b"1", -32600),
    (b'"text"', -32600),
    (b"{}", -32600),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}', -32600),
    (b'{"jsonrpc":"2.0","id":5}', -32600),
    (b'{"jsonrpc":"2.0","id":5,"method":7}', -32600),
    (b'{"jsonrpc":"1.0","id":5,"method":"server/discover"}', -32600),
    (b'{"id":5,"method":"server/discover"}', -32600),
    (b'{"jsonrpc":"2.0","id":5,"method":"server/discover","params":[]}', -32602),
    (b'{"jsonrpc":"2.0","id":5,"method":"server/discover","params":"x"}', -32602),
    (b'{"jsonrpc":"2.0","id":5,"method":"server/discover","params":null}', -32602),
    (b"x" * 2_000_000, -32600),
    (b'{"jsonrpc":"2.0","id":5,"method":"' + b"x" * 10_000_000 + b'"}', -32600),
    (b'{"jsonrpc":"2.0","method":"notifications/x","params":[]}', None),
    (b'{"jsonrpc":"2.0","method":7}', None),
    (b'{"jsonrpc":"3","method":"notifications/x"}', None),
    (b"", None),
    (b"   \t\r", None),
]


@pytest.mark.clause("T9", "D14")
@pytest.mark.parametrize(("line", "code"), BAD, ids=brief)
async def test_bad_input_hurts_nobody(line: bytes, code: int | None, tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(TOOLS, 1)
        await client.send(line + b"\n")
        if code is not None:
            message = await client.receive()
            assert message["error"]["code"] == code
            if b'"id":5' not in line or len(line) > 1000:
                assert "id" not in message
        await client.quiet()
        await hub.publish(ToolsListChanged())
        assert await client.names(1) == ["tools/list_changed"]
        assert len(hub.streams) == 1


@pytest.mark.clause("T9", "T1")
async def test_input_may_be_cut_anywhere(tmp_path: Path) -> None:
    async with channel(tmp_path) as (_, client):
        sent = [b"\r\n", encode(listen(TOOLS, "é€😀")), b"[]\r\n", encode(request("server/discover", id=2))]
        text = b"".join(sent)
        for at in range(len(text)):
            client.writer.write(text[at : at + 1])
            await asyncio.sleep(0)
        assert tag(await client.receive()) == "é€😀"
        assert (await client.receive())["error"]["code"] == -32600
        assert (await client.receive())["id"] == 2


# -- Slow readers


def _big(count: int = 2000) -> dict[str, Any]:
    return {"resourceSubscriptions": [f"x://host/{number:0100}" for number in range(count)]}


async def _block(hub: Hub, client: Lines, count: int = 2000) -> None:
    """Makes the channel of a client that does not read wait."""
    uris = _big(count)["resourceSubscriptions"]
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
    for _ in range(200):
        await hub.publish(*map(ResourceUpdated, uris))
        for _ in range(5):  # flush, write, and the transport's own turn
            await asyncio.sleep(0)
        if any(stream.pending for stream in hub.streams):
            return
    raise AssertionError("the channel takes everything")


@pytest.mark.clause("R15", "R14", "D13")
async def test_a_slow_reader_costs_its_filter_and_hears_the_last_state(tmp_path: Path) -> None:
    async with channel(tmp_path) as (hub, client):
        await client.listen(_big(), 1)
        await client.listen(TOOLS, 2)
        await _block(hub, client)
        for _ in range(50):
            await hub.publish(ToolsListChanged(), *map(ResourceUpdated, _big()["resourceSubscriptions"]))
            await asyncio.sleep(0)
        assert sorted(len(stream.pending) for stream in hub.streams) == [1, 2000]
        ending = asyncio.create_task(hub.aclose())
        await asyncio.sleep(0)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # it is a socket's
        results, last = 0, {}
        while results < 2:
            message = await client.receive()
            results += "result" in message
            last[tag(message)] = name(message)
        assert last == {1: "result", 2: "result"}
        names = [name(message) for message in client.seen if tag(message) == 2]
        assert names == [ACK, "tools/list_changed", "result"]
        await ending
        assert hub.endings == {Ending.SHUTDOWN: 2}


@pytest.mark.clause("D13")
async def test_a_stuck_reader_is_left_after_the_write_timeout(tmp_path: Path) -> None:
    hub = Hub(drain_window=0, write_timeout=0.3)
    async with over_unix(hub, tmp_path / "socket", 2) as [stuck, other]:
        await stuck.listen(_big(), 1)
        await other.listen(TOOLS, 1)
        await _block(hub, stuck)
        await until(lambda: len(hub.streams) == 1)
        assert hub.endings == {Ending.STUCK_READER: 1}
        await hub.publish(ToolsListChanged())
        assert await other.names(1) == ["tools/list_changed"]


@pytest.mark.clause("D13")
async def test_a_stuck_reader_without_a_subscription_is_left_too(tmp_path: Path) -> None:
    async def blob(request: Request) -> Mapping[str, object]:
        return {"blob": "x" * 3_000_000}

    async with channel(tmp_path, write_timeout=0.3, methods={"blob": blob}) as (_, client):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
        await client.send(request("blob", id=1))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            while True:
                try:
                    await client.send(request("blob", id=2))
                    await asyncio.sleep(0.01)
                except OSError:
                    break


@pytest.mark.clause("D13")
async def test_a_slow_reader_that_gets_on_is_not_left(tmp_path: Path) -> None:
    async def blob(request: Request) -> Mapping[str, object]:
        return {"blob": "x" * 8_000_000}

    async with channel(tmp_path, write_timeout=0.3, methods={"blob": blob}) as (_, client):
        await client.send(request("blob", id=1))
        begun = asyncio.get_running_loop().time()
        transport: Any = client.writer.transport
        answer = b""
        async with asyncio.timeout(LIMIT):
            while not answer.endswith(b"\n"):
                transport.pause_reading()
                await asyncio.sleep(0.02)
                transport.resume_reading()
                answer += await client.reader.read(200_000)
        assert asyncio.get_running_loop().time() - begun > 2 * 0.3
        await client.quiet()


@pytest.mark.clause("T3", "R14")
async def test_a_slow_reader_still_gets_its_result_when_the_server_ends(tmp_path: Path) -> None:
    hub = Hub(drain_window=0)
    serving = hub.serve_unix(tmp_path / "socket")
    await serving.__aenter__()
    client = await connect(tmp_path / "socket")
    await client.listen(_big(300), 1)
    await _block(hub, client, 300)
    leaving = asyncio.create_task(serving.__aexit__(None, None, None))
    await asyncio.sleep(0.05)
    assert not leaving.done()
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # it is a socket's
    rest = await client.rest()
    assert name(rest[-1]) == "result"
    await leaving
    assert hub.endings == {Ending.SHUTDOWN: 1}
    client.writer.close()
    await hub.aclose()


# -- The end


@pytest.mark.clause("T3", "R14")
async def test_the_end_of_input_answers_what_is_in_flight_and_ends_every_stream(tmp_path: Path) -> None:
    gate = Gate()
    async with channel(tmp_path, methods={"test/wait": gate}) as (hub, client):
        for id in range(3):
            await client.listen(TOOLS, id)
        await client.send(request("test/wait", id="slow"))
        await until(lambda: gate.started)
        client.end_input()
        await asyncio.sleep(0.01)
        gate.open.set()
        rest = await client.rest()
        assert rest[0]["id"] == "slow"
        assert {tag(message) for message in rest[1:]} == {0, 1, 2}
        assert all(name(message) == "result" for message in rest[1:])
        assert not hub.streams


@pytest.mark.clause("T3")
async def test_a_request_that_does_not_end_does_not_hold_the_end_up(tmp_path: Path) -> None:
    gate = Gate()
    async with channel(tmp_path, methods={"test/wait": gate}) as (_, client):
        await client.listen(TOOLS, 1)
        await client.send(request("test/wait", id=2), b'{"jsonrpc":"2.0","id":3,"method":"half a li')
        await until(lambda: gate.started)
        client.end_input()
        assert [name(message) for message in await client.rest()] == ["result"]
        assert gate.cancelled == 1


@pytest.mark.clause("R15")
async def test_a_client_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    gate = Gate()
    hub = Hub(drain_window=0, methods={"test/wait": gate})
    async with over_unix(hub, tmp_path / "socket", 0):
        before = len(asyncio.all_tasks())
        for number in range(20):
            client = await connect(tmp_path / "socket")
            await client.listen(ALL, 1)
            await client.send(request("test/wait", id=2))
            await until(partial(gate.has_started, number + 1))
            client.writer.transport.abort()
        await until(lambda: not hub.streams and gate.cancelled == 20)
        await until(lambda: len(asyncio.all_tasks()) == before)
        await hub.publish(ToolsListChanged())
