"""A watch stays: over real sockets and child processes, against servers that end in every way."""

from __future__ import annotations

import gc
import logging
import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from harken import (
    ConnectionLost,
    Ending,
    Filter,
    NeverAcknowledged,
    NothingHonored,
    ProtocolError,
    Refused,
    ResourceUpdated,
    Resync,
    RetryPolicy,
    ToolsListChanged,
    Watch,
    WatchState,
    WatchStatus,
    connect,
    watch,
)
from tests.client.scripted import (
    Channel,
    Exchange,
    ack,
    channel_server,
    encode,
    error,
    http_server,
    result,
    tools_changed,
    updated,
)

pytestmark = pytest.mark.anyio

TOOLS = Filter(tools_list_changed=True)
PROMPTS = Filter(prompts_list_changed=True)
BOTH = Filter(True, True)
RESYNC = Resync(TOOLS, Filter(), 0)
FAST = RetryPolicy(first_delay=0.005, max_delay=0.02, attempts=100, refill=0.01)
Script = Callable[[Exchange], Awaitable[None]]


async def hold(exchange: Exchange) -> None:
    """Acknowledge all that was asked for, and stay until the client leaves."""
    await exchange.acknowledge(**exchange.body["params"]["notifications"])
    await exchange.until_closed()


def one_after_the_other(*scripts: Script) -> Script:
    """A script for each listen; the last one for all that follow."""
    left = list(scripts)

    async def script(exchange: Exchange) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(exchange)

    return script


def replying(status: int, body: Callable[[Any], object], **headers: str) -> Script:
    async def script(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.reply(status, encode(body(exchange.id)), named)

    return script


@asynccontextmanager
async def watching(target: Any, wanted: Filter = TOOLS, **options: Any) -> AsyncIterator[Watch]:
    with anyio.fail_after(20):
        async with watch(target, wanted, **{"retry": FAST, **options}) as watched:
            yield watched


# Back after every end


async def completes(exchange: Exchange) -> None:
    await exchange.acknowledge(toolsListChanged=True)
    await exchange.say(result(exchange.id))


async def breaks(exchange: Exchange) -> None:
    await exchange.acknowledge(toolsListChanged=True)


async def dies_mid_frame(exchange: Exchange) -> None:
    await exchange.acknowledge(toolsListChanged=True)
    await exchange.raw(b'data: {"jsonrpc":"2.0","method":"notifications/to')


async def fails(exchange: Exchange) -> None:
    await exchange.acknowledge(toolsListChanged=True)
    await exchange.say(error(exchange.id))


async def cancels(exchange: Exchange) -> None:
    await exchange.acknowledge(toolsListChanged=True)
    await exchange.say({"method": "notifications/cancelled", "params": {"requestId": exchange.id}})


async def says_too_much(exchange: Exchange) -> None:
    await exchange.acknowledge(toolsListChanged=True)
    await exchange.raw(b"data: " + b"x" * 4096)
    await exchange.until_closed()


async def closes_before_it_answers(exchange: Exchange) -> None:
    await exchange.raw(b"")


@pytest.mark.clause("D10", "D12", "R17", "R18")
@pytest.mark.parametrize(
    ("script", "ending"),
    [
        (completes, Ending.COMPLETED),
        (breaks, Ending.LOST),
        (dies_mid_frame, Ending.LOST),
        (says_too_much, Ending.LOST),
        (closes_before_it_answers, Ending.LOST),
        (fails, Ending.ERROR_AFTER_ACK),
        (cancels, Ending.CANCELLED_BY_SERVER),
    ],
)
async def test_it_listens_again_after_every_end(script: Script, ending: Ending) -> None:
    states: list[WatchStatus] = []
    opens = script is not closes_before_it_answers
    async with (
        http_server(one_after_the_other(script, hold)) as server,
        watching(server.url, on_state=states.append, max_event_bytes=1024) as watched,
    ):
        for _ in range(2 if opens else 1):
            assert await anext(watched) == RESYNC
        await watched.wait_for("live")
    first, second = (exchange.id for exchange in server.exchanges)
    assert first != second
    expected = [WatchState.LIVE] if opens else []
    expected += [WatchState.BACKING_OFF, WatchState.CONNECTING, WatchState.LIVE, WatchState.CLOSED]
    assert [status.state for status in states] == expected
    away, again = states[-4:-2]
    assert away.reason is again.reason is ending
    assert away.delay is not None
    assert 0 <= away.delay < 1
    assert again.delay is None
    assert watched.status == states[-1] == WatchStatus(WatchState.CLOSED, Ending.CLOSED)


@pytest.mark.clause("D10")
async def test_a_cancel_before_any_ack_is_no_final_end() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.open()
        await exchange.say({"method": "notifications/cancelled", "params": {"requestId": exchange.id}})

    async with (
        http_server(one_after_the_other(script, hold)) as server,
        watching(server.url) as watched,
    ):
        assert await anext(watched) == RESYNC


@pytest.mark.clause("R26")
async def test_an_ack_that_does_not_come_is_asked_for_again() -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.open()
        await exchange.until_closed()

    states: list[WatchStatus] = []
    async with (
        http_server(one_after_the_other(silent, hold)) as server,
        watching(server.url, ack_timeout=0.05, on_state=states.append) as watched,
    ):
        assert await anext(watched) == RESYNC
    assert states[0].reason is Ending.TIMEOUT


@pytest.mark.clause("D12")
async def test_after_the_ack_the_resync_comes_before_every_event() -> None:
    """Also before one that stood ahead of the ack, and again for the second stream."""

    async def eager(exchange: Exchange) -> None:
        await exchange.open()
        id = exchange.id
        await exchange.say(tools_changed(id), ack(id, toolsListChanged=True), tools_changed(id))
        await exchange.until_closed()

    async with (
        http_server(one_after_the_other(completes, eager)) as server,
        watching(server.url) as watched,
    ):
        seen = [await anext(watched) for _ in range(3)]
    assert seen == [RESYNC, RESYNC, ToolsListChanged()]


@pytest.mark.field("F11")
async def test_who_fetches_on_the_resync_is_current_whenever_the_change_came() -> None:
    """The list changes, without a word, between each end and the next ack."""
    tools = 0

    async def script(exchange: Exchange) -> None:
        nonlocal tools
        tools += 1  # between the request and its ack
        await exchange.acknowledge(toolsListChanged=True)
        if tools == 5:
            await exchange.until_closed()
        await exchange.say(result(exchange.id))

    fetched: list[int] = []
    async with http_server(script) as server, watching(server.url) as watched:
        while tools < 5 or fetched[-1:] != [5]:
            assert await anext(watched) == RESYNC
            fetched.append(tools)
    assert fetched[-1] == 5


async def test_what_was_not_read_before_the_end_is_read_until_the_next_ack() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        await exchange.say(tools_changed(exchange.id), result(exchange.id))

    slow = RetryPolicy(first_delay=1000, max_delay=1000)
    async with http_server(script) as server, watching(server.url, retry=slow) as watched:
        await watched.wait_for("backing_off")
        assert await anext(watched) == RESYNC
        assert await anext(watched) == ToolsListChanged()


@pytest.mark.clause("R11")
async def test_what_is_not_honored_is_told_with_each_resync() -> None:
    async with (
        http_server(one_after_the_other(completes, breaks, hold)) as server,
        watching(server.url, Filter(True, True, resource_subscriptions=("x://a",))) as watched,
    ):
        for _ in range(2):
            resync = await anext(watched)
            assert isinstance(resync, Resync)
            assert resync.honored == TOOLS
            assert resync.unsupported == Filter(prompts_list_changed=True, resource_subscriptions=("x://a",))


@pytest.mark.clause("R19")
async def test_the_update_of_a_sub_resource_is_passed_on() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(resourceSubscriptions=["x://a"])
        await exchange.say(updated(exchange.id, "x://a/b"))
        await exchange.until_closed()

    async with (
        http_server(script) as server,
        watching(server.url, Filter(resource_subscriptions=("x://a",))) as watched,
    ):
        assert isinstance(await anext(watched), Resync)
        assert await anext(watched) == ResourceUpdated("x://a/b")


# How often


@pytest.mark.field("F26")
async def test_a_server_that_ends_each_stream_at_once_sees_no_more_attempts_than_the_budget_has() -> None:
    """A minute in a second: five attempts at once, and one more each 0.2 s."""
    at = [time.monotonic()]

    def note(status: WatchStatus) -> None:
        if status.state is WatchState.CONNECTING:
            at.append(time.monotonic())

    async def ends_soon(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        await anyio.sleep(0.01)
        await exchange.say(result(exchange.id))

    policy = RetryPolicy(first_delay=0.001, max_delay=0.01, attempts=5, refill=0.2)
    async with http_server(ends_soon) as server, watching(server.url, retry=policy, on_state=note) as watched:
        async for _ in watched:
            if len(at) >= 12:
                break
    assert all(later - earlier >= 1 for earlier, later in zip(at, at[10:], strict=False))
    assert len(server.exchanges) <= len(at)


async def recycles(exchange: Exchange) -> None:
    await exchange.acknowledge(toolsListChanged=True)
    await anyio.sleep(0.1)  # longer than `healthy_after`, so that each delay is a first one
    await exchange.say(result(exchange.id))


RECYCLED = RetryPolicy(first_delay=0.01, max_delay=1000, factor=1000, healthy_after=0.05, attempts=100)


@pytest.mark.field("F26")
async def test_a_server_that_recycles_its_streams_has_its_client_back_promptly() -> None:
    delays: list[float] = []

    def note(status: WatchStatus) -> None:
        if status.delay is not None:
            delays.append(status.delay)

    async with (
        http_server(recycles) as server,
        watching(server.url, retry=RECYCLED, on_state=note) as watched,
    ):
        for _ in range(6):
            assert await anext(watched) == RESYNC
    assert len(delays) >= 5
    assert max(delays) <= 0.01


@pytest.mark.field("F26")
async def test_what_is_in_order_is_no_warning_and_a_loss_is_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "harken"):
        async with http_server(recycles) as server, watching(server.url, retry=RECYCLED) as watched:
            for _ in range(3):
                assert await anext(watched) == RESYNC
        assert {record.levelno for record in caplog.records} == {logging.INFO}
        caplog.clear()
        async with http_server(one_after_the_other(breaks, hold)) as server, watching(server.url) as watched:
            for _ in range(2):
                assert await anext(watched) == RESYNC
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "lost: the stream closed without a result" in caplog.text


@pytest.mark.field("F30")
async def test_a_server_that_is_full_twice_has_it_back_with_the_same_filter() -> None:
    wanted = Filter(True, resource_subscriptions=("x://a", "x://b"))
    full = replying(503, lambda id: error(id, data={"reason": "server_full"}), Retry_After="1")
    states: list[WatchStatus] = []
    began = time.monotonic()
    async with (
        http_server(one_after_the_other(full, full, hold)) as server,
        watching(server.url, wanted, on_state=states.append) as watched,
    ):
        assert await anext(watched) == Resync(wanted, Filter(), 0)
    assert time.monotonic() - began >= 2
    assert [status.delay for status in states if status.delay] == pytest.approx([1, 1], abs=0.02)
    assert [type(status.error) for status in states[:2]] == [Refused, Refused]
    asked = [exchange.body["params"]["notifications"] for exchange in server.exchanges]
    assert asked == [wanted.to_wire()] * 3


# What is final


@pytest.mark.clause("D10", "D11")
@pytest.mark.parametrize(
    ("script", "reason", "kind"),
    [
        (replying(404, lambda id: error(id, -32601)), Ending.REFUSED, Refused),
        (replying(400, lambda id: error(id, -32602)), Ending.REFUSED, Refused),
        (replying(200, lambda id: error(id, -32603)), Ending.REFUSED, Refused),
        (replying(200, result), Ending.NEVER_ACKNOWLEDGED, NeverAcknowledged),
        (replying(200, lambda _: "what?"), Ending.PROTOCOL_ERROR, ProtocolError),
    ],
)
async def test_a_no_is_final_and_told(script: Script, reason: Ending, kind: type[Exception]) -> None:
    states: list[WatchStatus] = []
    async with http_server(script) as server, watching(server.url, on_state=states.append) as watched:
        with pytest.raises(kind) as raised:
            await anext(watched)
        assert watched.status == WatchStatus(WatchState.REFUSED, reason, None, raised.value)
        assert watched.take() is None
        for wait in (anext(watched), watched.wait_for("live")):
            with pytest.raises(kind):
                await wait
        await watched.wait_for("refused")
    assert [status.state for status in states] == ["refused", "closed"]
    assert len(server.exchanges) == 1


@pytest.mark.clause("D10", "D12")
@pytest.mark.parametrize("holds", [False, True])
async def test_nothing_honored_is_final_also_where_the_stream_is_held(holds: bool) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge()
        if holds:
            await exchange.until_closed()
        await exchange.say(result(exchange.id))

    async with http_server(script) as server, watching(server.url) as watched:
        assert await anext(watched) == Resync(Filter(), TOOLS, 0)
        with pytest.raises(NothingHonored):
            await anext(watched)
        assert watched.status.reason is Ending.NOTHING_HONORED
        await server.until(closed=1)
    assert len(server.exchanges) == 1


async def test_what_breaks_inside_is_raised_to_the_user() -> None:
    def on_state(status: WatchStatus) -> None:
        if status.state is WatchState.BACKING_OFF:
            raise LookupError("a fault in the callback")

    async with http_server(completes) as server, watching(server.url, on_state=on_state) as watched:
        assert await anext(watched) == RESYNC
        for use in (anext(watched), watched.wait_for("live"), watched.update(PROMPTS)):
            with pytest.raises(LookupError, match="a fault"):
                await use
        assert watched.state is WatchState.REFUSED


# Tokens


@pytest.mark.field("F33")
async def test_the_token_is_asked_for_anew_each_time() -> None:
    tokens = iter(["old", "new", "newest"])

    async def token() -> str:
        return next(tokens)

    async def script(exchange: Exchange) -> None:
        if exchange.headers["authorization"] == "Bearer old":
            await exchange.reply(401, b"", {"WWW-Authenticate": "Bearer"})
        elif exchange.headers["authorization"] == "Bearer new":
            await completes(exchange)
        else:
            await hold(exchange)

    async with http_server(script) as server, watching(server.url, token=token) as watched:
        assert [await anext(watched) for _ in range(2)] == [RESYNC, RESYNC]
    sent = [exchange.headers["authorization"] for exchange in server.exchanges]
    assert sent == ["Bearer old", "Bearer new", "Bearer newest"]


async def test_a_token_that_stays_the_same_is_refused_once() -> None:
    async with (
        http_server(replying(401, error)) as server,
        watching(server.url, token="secret") as watched,
    ):
        with pytest.raises(Refused):
            await anext(watched)
    assert len(server.exchanges) == 1


async def test_a_source_of_tokens_that_is_away_is_asked_again_and_one_that_is_wrong_is_told() -> None:
    outcomes: list[Exception | str] = [
        ConnectionLost("away"),
        TimeoutError("slow"),
        "good",
        LookupError("bug"),
    ]

    async def token() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with http_server(completes) as server, watching(server.url, token=token) as watched:
        assert await anext(watched) == RESYNC
        with pytest.raises(LookupError, match="bug"):
            await anext(watched)
        with pytest.raises(LookupError, match="bug"):
            await watched.update(PROMPTS)


# Dead peers


@pytest.mark.clause("D13")
async def test_told_to_a_silent_stream_is_given_up() -> None:
    states: list[WatchStatus] = []
    async with (
        http_server(hold) as server,
        watching(server.url, dead_after=0.1, on_state=states.append) as watched,
    ):
        assert [await anext(watched) for _ in range(2)] == [RESYNC, RESYNC]
        assert server.closed == 1
    assert states[1].reason is Ending.LOST
    assert "not heard for 0.1 s" in str(states[1].error)


@pytest.mark.clause("D13")
async def test_keep_alives_and_events_are_signs_of_life() -> None:
    async def lively(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        for sign in (b": ping\n\n", b"data: %b\n\n" % encode(tools_changed(exchange.id))) * 10:
            await anyio.sleep(0.05)
            await exchange.raw(sign)
        await exchange.say(result(exchange.id))

    states: list[WatchStatus] = []
    async with (
        http_server(lively) as server,
        watching(server.url, dead_after=0.6, on_state=states.append) as watched,
    ):
        await watched.wait_for("backing_off")
    assert states[1].reason is Ending.COMPLETED


@pytest.mark.clause("D13")
async def test_one_keep_alive_arms_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harken.core.liveness.SHORTEST", 0.1)
    quiet = anyio.Event()

    async def goes_dead(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        with anyio.move_on_after(0.3):
            await exchange.until_closed()
            pytest.fail("it was given up before there was any keep-alive")
        quiet.set()
        await exchange.raw(b":\n\n")
        await exchange.until_closed()

    async with (
        http_server(one_after_the_other(goes_dead, hold)) as server,
        watching(server.url) as watched,
    ):
        assert await anext(watched) == RESYNC
        await quiet.wait()
        assert await anext(watched) == RESYNC


# Child processes and channels

CHILD = textwrap.dedent("""
    import json, os, sys
    for line in sys.stdin:
        message = json.loads(line)
        if message["method"] == "notifications/cancelled":
            continue
        if message["method"] != "subscriptions/listen":
            print(json.dumps({"id": message["id"], "result": {"pid": os.getpid()}}), flush=True)
            continue
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        params = {"_meta": meta, "notifications": message["params"]["notifications"]}
        print(json.dumps({"method": "notifications/subscriptions/acknowledged", "params": params}))
        sys.stdout.write('{"half a li')
        sys.stdout.flush()
        sys.stdout.write('ne": 1}\\n')
        sys.stdout.flush()
""")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.clause("T4", "R17")
async def test_a_child_that_died_is_started_again_and_listened_to_again() -> None:
    pids = []
    async with watching([sys.executable, "-c", CHILD]) as watched:
        for _ in range(3):
            assert await anext(watched) == RESYNC
            pid = (await watched.request("pid"))["pid"]
            assert isinstance(pid, int)
            pids.append(pid)
            os.kill(pid, 9)
        assert await anext(watched) == RESYNC
        last = (await watched.request("pid"))["pid"]
    assert isinstance(last, int)
    assert len({*pids, last}) == 4
    assert not any(alive(pid) for pid in [*pids, last])


@pytest.mark.clause("T4")
async def test_a_child_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "server"
    async with watching([program]) as watched:
        await watched.wait_for("backing_off")
        assert watched.status.reason is Ending.LOST
        with pytest.raises(ConnectionLost, match="no connection"):
            await watched.request("tools/list")
        draft = tmp_path / "draft"
        draft.write_text(f"#!{sys.executable}\n{CHILD}")
        draft.chmod(0o755)
        draft.rename(program)
        assert await anext(watched) == RESYNC


@pytest.mark.clause("T4")
async def test_an_end_is_told_before_a_child_that_lingers_is_gone() -> None:
    lingering = f"{CHILD}    os.close(1)\n    import time; time.sleep(60)\n"
    seen: list[int] = []
    alive_then: list[bool] = []

    def on_state(status: WatchStatus) -> None:
        if status.state is WatchState.BACKING_OFF:
            alive_then.append(alive(seen[0]))

    command = [sys.executable, "-c", f"import os, sys; print(os.getpid(), file=sys.stderr)\n{lingering}"]
    async with watching(command, stderr=lambda line: seen.append(int(line)), on_state=on_state) as watched:
        assert await anext(watched) == RESYNC
        await watched.wait_for("backing_off")
        assert alive_then == [True]
    assert not alive(seen[0])


@pytest.mark.clause("D13", "T4")
async def test_a_child_that_hangs_is_replaced() -> None:
    async with watching([sys.executable, "-c", CHILD], dead_after=0.2) as watched:
        assert await anext(watched) == RESYNC
        first = (await watched.request("pid"))["pid"]
        assert await anext(watched) == RESYNC
        await watched.wait_for("live")
        assert isinstance(first, int)
        assert not alive(first)


@pytest.mark.clause("T7", "R17")
async def test_a_unix_socket_is_connected_again(tmp_path: Path) -> None:
    ids = []

    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        ids.append(id)
        await channel.say(ack(id, toolsListChanged=True))
        if len(ids) == 3:
            await channel.until_closed()
        await channel.raw(b'{"half')

    async with channel_server(tmp_path, script) as path, watching(path) as watched:
        for _ in range(3):
            assert await anext(watched) == RESYNC
    assert len(set(ids)) == 3


async def test_on_a_channel_that_lives_a_completed_stream_is_followed_by_another(tmp_path: Path) -> None:
    connections = 0

    async def script(channel: Channel) -> None:
        nonlocal connections
        connections += 1
        for _ in range(3):
            id = (await channel.heard())["id"]
            await channel.say(ack(id, toolsListChanged=True), result(id))
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path, watching(path) as watched:
        for _ in range(3):
            assert await anext(watched) == RESYNC
    assert connections == 1


async def test_an_open_connection_is_used_and_stays_open() -> None:
    async with (
        http_server(one_after_the_other(breaks, completes, hold)) as server,
        connect(server.url) as connection,
    ):
        async with watching(connection) as watched:
            for _ in range(3):
                assert await anext(watched) == RESYNC
        async with connection.listen(TOOLS):
            pass


async def test_an_open_connection_that_is_lost_is_not_the_watches_to_restore(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(ack(id, toolsListChanged=True))

    async with (
        channel_server(tmp_path, script) as path,
        connect(path) as connection,
        watching(connection) as watched,
    ):
        assert await anext(watched) == RESYNC
        with pytest.raises(ConnectionLost):
            await anext(watched)
        assert watched.status.reason is Ending.LOST
        with pytest.raises(ConnectionLost):
            await watched.update(PROMPTS)


# Another filter


@pytest.mark.field("F32")
async def test_the_new_stream_is_acknowledged_before_the_old_one_is_closed() -> None:
    closed_at_ack: list[int] = []
    go_on = anyio.Event()

    async def second(exchange: Exchange) -> None:
        await go_on.wait()
        closed_at_ack.append(server.closed)
        await hold(exchange)

    async with (
        http_server(one_after_the_other(hold, second)) as server,
        watching(server.url) as watched,
    ):
        assert await anext(watched) == RESYNC
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watched.update, BOTH)
            await server.until(exchanges=2)
            # While the new one is not acknowledged, the old one brings what changes.
            old = server.exchanges[0]
            await old.say(tools_changed(old.id))
            assert await anext(watched) == ToolsListChanged()
            go_on.set()
        assert watched.state is WatchState.LIVE
        assert watched.wanted == BOTH
        assert await anext(watched) == Resync(BOTH, Filter(), 0)
        await server.until(closed=1)
    assert closed_at_ack == [0]
    assert len(server.exchanges) == 2


@pytest.mark.field("F32")
async def test_what_both_streams_bring_is_told_once() -> None:
    async def second(exchange: Exchange) -> None:
        await old.say(tools_changed(old.id))
        await exchange.open()
        id = exchange.id
        await exchange.say(ack(id, toolsListChanged=True, promptsListChanged=True), tools_changed(id))
        await go_on.wait()
        await exchange.say(tagged_prompts(id))
        await exchange.until_closed()

    go_on = anyio.Event()
    async with (
        http_server(one_after_the_other(hold, second)) as server,
        watching(server.url) as watched,
    ):
        assert await anext(watched) == RESYNC
        old = server.exchanges[0]
        await watched.update(BOTH)
        assert await anext(watched) == Resync(BOTH, Filter(), 0)
        assert await anext(watched) == ToolsListChanged()
        go_on.set()
        assert str(await anext(watched)) == "PromptsListChanged()"


def tagged_prompts(id: object) -> dict[str, Any]:
    return {**tools_changed(id), "method": "notifications/prompts/list_changed"}


@pytest.mark.field("F32")
async def test_under_a_changing_filter_no_change_is_missed() -> None:
    """A resource of each filter changes at any time; who fetches on what is told has the newest of each."""
    versions = {f"x://{number}": 0 for number in range(4)}
    seen = dict.fromkeys(versions, -1)
    streams: dict[Any, tuple[Exchange, set[str]]] = {}
    writing = anyio.Lock()
    done, consumed = False, anyio.Event()

    async def script(exchange: Exchange) -> None:
        uris = exchange.body["params"]["notifications"]["resourceSubscriptions"]
        async with writing:
            streams[exchange.id] = exchange, set(uris)
            await exchange.acknowledge(resourceSubscriptions=uris)
        try:
            await exchange.until_closed()
        finally:
            del streams[exchange.id]

    async def change() -> None:
        for number in range(300):
            uri = f"x://{number % 4}"
            versions[uri] += 1
            async with writing:
                for id, (exchange, uris) in list(streams.items()):
                    if uri in uris:
                        try:
                            await exchange.say(updated(id, uri))
                        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                            pass  # it has just been closed
            await anyio.sleep(0.001)

    async def consume(watched: Watch) -> None:
        async for item in watched:
            if isinstance(item, Resync):
                seen.update({uri: versions[uri] for uri in item.honored.resource_subscriptions})
            elif isinstance(item, ResourceUpdated):
                seen[item.uri] = versions[item.uri]
            if done and seen == versions:
                consumed.set()

    async def turn(watched: Watch) -> None:
        for number in range(40):
            await watched.update(Filter(resource_subscriptions=("x://0", f"x://{number % 3 + 1}")))

    async with (
        http_server(script) as server,
        watching(server.url, Filter(resource_subscriptions=("x://0",))) as watched,
        anyio.create_task_group() as consuming,
    ):
        consuming.start_soon(consume, watched)
        async with anyio.create_task_group() as working:
            working.start_soon(change)
            working.start_soon(turn, watched)
        await watched.update(Filter(resource_subscriptions=tuple(versions)))
        done = True
        if seen != versions:
            await consumed.wait()
        consuming.cancel_scope.cancel()
    assert seen == versions


async def test_the_same_filter_changes_nothing() -> None:
    async with http_server(hold) as server, watching(server.url) as watched:
        await watched.wait_for("live")
        await watched.update(TOOLS)
    assert len(server.exchanges) == 1


async def test_while_a_new_stream_cannot_be_had_the_old_one_goes_on() -> None:
    tries = 0

    async def later(exchange: Exchange) -> None:
        nonlocal tries
        tries += 1
        if tries > 3:
            await hold(exchange)

    async with (
        http_server(one_after_the_other(hold, later)) as server,
        watching(server.url, retry=RetryPolicy(first_delay=0.2, max_delay=0.2, attempts=9)) as watched,
    ):
        assert await anext(watched) == RESYNC
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watched.update, BOTH)
            await watched.wait_for("backing_off")
            old = server.exchanges[0]
            await old.say(tools_changed(old.id))
            assert await anext(watched) == ToolsListChanged()
        assert await anext(watched) == Resync(BOTH, Filter(), 0)
    assert tries == 4


async def test_a_place_that_the_old_stream_takes_is_given_up_for_the_new_one() -> None:
    async def only_one(exchange: Exchange) -> None:
        if len(server.exchanges) - server.closed > 1:
            await exchange.open(429)
            await exchange.say(error(exchange.id, data={"reason": "quota", "retryAfter": 0}))
        else:
            await hold(exchange)

    async with http_server(only_one) as server, watching(server.url) as watched:
        await watched.wait_for("live")
        await watched.update(BOTH)
        assert watched.state is WatchState.LIVE


@pytest.mark.clause("D10")
async def test_after_a_no_another_filter_is_another_attempt() -> None:
    async def tools_only(exchange: Exchange) -> None:
        if "toolsListChanged" in exchange.body["params"]["notifications"]:
            await hold(exchange)
        else:
            await exchange.acknowledge()
            await exchange.say(result(exchange.id))

    async with http_server(tools_only) as server, watching(server.url, PROMPTS) as watched:
        for _ in range(2):
            with pytest.raises(NothingHonored):
                await watched.update(PROMPTS)
        await watched.update(TOOLS)
        assert watched.status == WatchStatus(WatchState.LIVE)
        with pytest.raises(NothingHonored):
            await watched.update(PROMPTS)
        assert watched.status.reason is Ending.NOTHING_HONORED


async def test_a_no_to_what_is_no_longer_wanted_is_nobodys_concern() -> None:
    go_on = anyio.Event()

    async def script(exchange: Exchange) -> None:
        if exchange.body["params"]["notifications"] == PROMPTS.to_wire():
            await go_on.wait()
            await exchange.reply(404, encode(error(exchange.id, -32601)))
        else:
            await hold(exchange)

    states: list[WatchState] = []
    async with (
        http_server(script) as server,
        watching(server.url, PROMPTS, on_state=lambda status: states.append(status.state)) as watched,
        anyio.create_task_group() as tasks,
    ):
        await server.until(exchanges=1)
        tasks.start_soon(watched.update, TOOLS)
        await anyio.wait_all_tasks_blocked()
        go_on.set()
        assert await anext(watched) == RESYNC
    assert WatchState.REFUSED not in states


# What is left, and what makes no sense


@pytest.mark.field("F29")
async def test_leaving_leaves_nothing(tmp_path: Path) -> None:
    """Neither task, nor timer, nor socket, nor child, nor a further request, in whatever state it is left."""
    slow = RetryPolicy(first_delay=0.001, max_delay=1000, factor=1e6)

    async def over_a_channel(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(ack(id, toolsListChanged=True))
        await channel.until_closed()

    async def silent(exchange: Exchange) -> None:
        await exchange.until_closed()

    async def leave_all() -> None:
        async with (
            http_server(hold) as holding,
            http_server(completes) as recycling,
            http_server(silent) as waiting,
            http_server(replying(404, error)) as refusing,
            channel_server(tmp_path, over_a_channel) as path,
        ):
            for target in (holding.url, path, [sys.executable, "-c", CHILD]):
                async with watching(target) as watched:
                    await watched.wait_for("live")
            away = anyio.Event()

            def note(status: WatchStatus, away: anyio.Event = away) -> None:
                if status.delay is not None and status.delay > 1:
                    away.set()

            async with watching(recycling.url, retry=slow, on_state=note):
                await away.wait()
            async with watching(waiting.url) as watched:
                await waiting.until(exchanges=waiting.closed + 1)
            async with watching(refusing.url) as watched:
                await watched.wait_for("refused")
            requests = len(recycling.exchanges)
            assert [item async for item in watched] == []
            for method in (watched.wait_for("live"), watched.update(PROMPTS)):
                with pytest.raises((ConnectionLost, Refused)):
                    await method
            await anyio.sleep(0.05)
            assert len(recycling.exchanges) == requests
        (tmp_path / "s").unlink()

    await leave_all()
    descriptors, tasks = os.listdir("/proc/self/fd"), anyio.get_running_tasks()
    for _ in range(3):
        await leave_all()
    gc.collect()
    assert os.listdir("/proc/self/fd") == descriptors
    assert anyio.get_running_tasks() == tasks


async def test_what_the_body_raises_goes_its_own_way() -> None:
    async with http_server(hold) as server:
        with pytest.raises(LookupError):
            async with watching(server.url):
                raise LookupError


async def test_it_is_used_inside_its_context_and_once() -> None:
    async with http_server(hold) as server:
        watched = watch(server.url, TOOLS)
        for use in (anext(watched), watched.wait_for("live"), watched.update(PROMPTS)):
            with pytest.raises(RuntimeError, match="async with"):
                await use
        async with watched:
            pass
        with pytest.raises(RuntimeError, match="once"):
            await watched.__aenter__()


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("http://127.0.0.1/", {}, "say what to watch"),
        ("no url", {"tools_list_changed": True}, "not a URL"),
        ([], {"tools_list_changed": True}, "empty"),
        (["server"], {"tools_list_changed": True, "token": "t"}, "URL"),
    ],
)
def test_what_makes_no_sense_is_told_at_once(target: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        watch(target, **options)


async def test_an_empty_filter_is_no_update() -> None:
    async with http_server(hold) as server, watching(server.url) as watched:
        with pytest.raises(ValueError, match="say what to watch"):
            await watched.update(Filter())
        assert watched.wanted == TOOLS


async def test_a_byte_stream_cannot_be_watched_but_its_connection_can(tmp_path: Path) -> None:
    async def script(channel: Channel) -> None:
        id = (await channel.heard())["id"]
        await channel.say(ack(id, toolsListChanged=True))
        await channel.until_closed()

    async with channel_server(tmp_path, script) as path:
        stream = await anyio.connect_unix(path)
        with pytest.raises(ValueError, match=r"connect\(\)"):
            watch(stream, TOOLS)
        async with connect(stream) as connection, watching(connection) as watched:
            assert await anext(watched) == RESYNC


# The form with a callback


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_is_called_with_each_change(is_async: bool) -> None:
    seen: list[object] = []

    class EnoughSeen(Exception):
        pass

    def handle(change: object) -> None:
        seen.append(change)
        if len(seen) == 3:
            raise EnoughSeen

    async def handle_later(change: object) -> None:
        await anyio.lowlevel.checkpoint()
        handle(change)

    async def eventful(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        await exchange.say(tools_changed(exchange.id))
        await exchange.until_closed()

    async with http_server(one_after_the_other(completes, eventful)) as server:
        with anyio.fail_after(10), pytest.raises(EnoughSeen):
            await watch(server.url, TOOLS, retry=FAST).run(handle_later if is_async else handle)
    assert seen == [RESYNC, RESYNC, ToolsListChanged()]
