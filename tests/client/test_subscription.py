"""A subscription as its user sees it: what it says of itself, and how it is iterated."""

import time

import anyio
import pytest

from harken import Ending, Event, Filter, Subscription, ToolsListChanged
from harken.core.demux import Stream
from harken.errors import ConnectionLost

pytestmark = pytest.mark.anyio

WANTED = Filter(tools_list_changed=True, prompts_list_changed=True)


def acknowledged() -> tuple[Stream, Subscription]:
    stream = Stream(7, WANTED)
    stream.acknowledge({"notifications": {"toolsListChanged": True}})
    return stream, Subscription(stream)


@pytest.mark.clause("R11")
async def test_it_says_what_was_asked_and_what_was_agreed_to() -> None:
    _, subscription = acknowledged()
    assert subscription.subscription_id == 7
    assert subscription.requested == WANTED
    assert subscription.honored == Filter(tools_list_changed=True)
    assert subscription.unsupported == Filter(prompts_list_changed=True)
    assert (subscription.ending, subscription.error) == (None, None)
    assert repr(subscription) == "<Subscription 7 acknowledged>"


async def test_before_the_ack_nothing_is_honored() -> None:
    subscription = Subscription(Stream(7, WANTED))
    assert subscription.honored == Filter()
    assert subscription.unsupported == WANTED
    assert repr(subscription) == "<Subscription 7 waiting>"


@pytest.mark.clause("R25")
async def test_the_first_ending_counts() -> None:
    _, subscription = acknowledged()
    error = ConnectionLost("gone")
    subscription.end(Ending.LOST, error)
    subscription.end(Ending.CLOSED)
    assert (subscription.ending, subscription.error) == (Ending.LOST, error)
    assert repr(subscription) == "<Subscription 7 lost>"


async def test_who_waits_for_an_event_gets_it_and_then_the_end() -> None:
    stream, subscription = acknowledged()
    seen: list[Event] = []

    async def read() -> None:
        seen.extend([event async for event in subscription])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            stream.mark(ToolsListChanged())
            subscription.wake()
            await anyio.wait_all_tasks_blocked()
            stream.mark(ToolsListChanged())
            subscription.end(Ending.COMPLETED)
    assert seen == [ToolsListChanged(), ToolsListChanged()]


async def test_a_cancelled_read_loses_nothing() -> None:
    stream, subscription = acknowledged()
    stream.mark(ToolsListChanged())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anext(subscription)
    assert scope.cancelled_caught
    assert await anext(subscription) == ToolsListChanged()


async def test_two_readers_share_the_events() -> None:
    stream, subscription = acknowledged()
    seen: list[Event] = []

    async def read() -> None:
        seen.extend([event async for event in subscription])

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            stream.mark(ToolsListChanged())
            subscription.wake()
            await anyio.wait_all_tasks_blocked()
            subscription.end(Ending.COMPLETED)
    assert seen == [ToolsListChanged()]


@pytest.mark.clause("H11")
async def test_keep_alives_are_told_and_timed() -> None:
    told: list[str] = []
    subscription = Subscription(Stream(7, WANTED), lambda: told.append("now"))
    before = time.monotonic()
    subscription.kept_alive()
    assert subscription.last_keep_alive is not None
    assert before <= subscription.last_keep_alive <= time.monotonic()
    assert told == ["now"]
    quiet = Subscription(Stream(8, WANTED))
    seen = [quiet.last_keep_alive]
    quiet.kept_alive()
    seen.append(quiet.last_keep_alive)
    assert [at is None for at in seen] == [True, False]


async def test_it_can_be_read_without_waiting_and_tells_when_to_look() -> None:
    stream = Stream(7, WANTED)
    looks: list[str] = []
    subscription = Subscription(stream, on_change=lambda: looks.append("look"))
    stream.mark(ToolsListChanged())
    assert (subscription.acknowledged, subscription.take()) == (False, None)
    stream.acknowledge({"notifications": {}})
    assert subscription.acknowledged
    assert [subscription.take(), subscription.take()] == [ToolsListChanged(), None]
    subscription.wake()
    subscription.kept_alive()
    subscription.end(Ending.LOST)
    assert looks == ["look"] * 3
    assert subscription.acknowledged


@pytest.mark.clause("D13")
async def test_everything_that_comes_is_a_sign_of_life() -> None:
    _, subscription = acknowledged()
    for sign in (subscription.wake, subscription.kept_alive):
        before = time.monotonic()
        assert subscription.last_heard <= before
        sign()
        assert before <= subscription.last_heard <= time.monotonic()
