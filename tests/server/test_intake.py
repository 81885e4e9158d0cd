"""Events from other threads, and from before the hub runs."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harken.core.events import Event, ResourceUpdated, ToolsListChanged
from harken.errors import HarkenError, HubClosed, InvalidURI
from harken.server import intake as module
from harken.server.intake import Intake, checked

pytestmark = pytest.mark.anyio
TOOLS, A, B = ToolsListChanged(), ResourceUpdated("x://a"), ResourceUpdated("x://b")


def in_thread(call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Calls in a thread of its own, which is gone when the call is over."""
    pool = ThreadPoolExecutor(1)
    future = asyncio.get_running_loop().run_in_executor(pool, call, *arguments)
    pool.shutdown(wait=False)
    return future


class Heard:
    """What was accepted, and on which thread."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[int] = set()
        self.intake = Intake(self.accept)

    def accept(self, events: Sequence[Event]) -> None:
        """Events come in."""
        self.threads.add(threading.get_ident())
        self.events += checked(events)


@pytest.mark.field("F7")
async def test_another_thread_is_heard_on_the_loop_before_its_call_returns() -> None:
    heard = Heard()
    heard.intake.open(asyncio.get_running_loop())

    def publish() -> list[Event]:
        heard.intake.from_thread([TOOLS, A], 5)
        return list(heard.events)

    assert await in_thread(publish) == [TOOLS, A]
    assert heard.threads == {threading.get_ident()}


@pytest.mark.field("F7")
async def test_before_the_start_events_are_kept_each_once() -> None:
    heard = Heard()
    for _ in range(100):
        heard.intake.from_thread([A, TOOLS], 0.001)
    heard.intake.from_thread([B, A], 0.001)
    assert heard.events == []
    heard.intake.open(asyncio.get_running_loop())
    assert heard.events == [A, TOOLS, B]
    heard.intake.open(asyncio.get_running_loop())
    assert heard.events == [A, TOOLS, B]


async def test_what_is_kept_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    heard = Heard()
    heard.intake.from_thread([A, B, A], 1)
    heard.intake.from_thread([B], 1)
    with pytest.raises(HarkenError, match="start it first"):
        heard.intake.from_thread([TOOLS], 1)


async def test_what_the_cap_has_no_room_for_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    heard = Heard()
    heard.intake.from_thread([A], 1)
    with pytest.raises(HarkenError, match="start it first"):
        heard.intake.from_thread([B, TOOLS], 1)
    heard.intake.open(asyncio.get_running_loop())
    assert heard.events == [A]


@pytest.mark.field("F7")
async def test_after_the_close_it_says_so() -> None:
    heard = Heard()
    heard.intake.open(asyncio.get_running_loop())
    heard.intake.close()
    with pytest.raises(HubClosed):
        await in_thread(heard.intake.from_thread, [TOOLS], 5)
    heard.intake.open(asyncio.get_running_loop())
    await in_thread(heard.intake.from_thread, [TOOLS], 5)
    assert heard.events == [TOOLS]


async def test_a_loop_that_is_gone_counts_as_closed() -> None:
    heard = Heard()
    gone = asyncio.new_event_loop()
    heard.intake.open(gone)
    gone.close()
    with pytest.raises(HubClosed, match="event loop is closed"):
        heard.intake.from_thread([TOOLS], 5)


async def test_a_loop_that_does_not_turn_is_given_up() -> None:
    heard = Heard()
    still = asyncio.new_event_loop()
    heard.intake.open(still)
    with pytest.raises(TimeoutError):
        heard.intake.from_thread([TOOLS], 0.01)
    still.close()


async def test_on_the_hubs_own_loop_it_does_not_wait_for_itself() -> None:
    heard = Heard()
    heard.intake.open(asyncio.get_running_loop())
    heard.intake.from_thread([TOOLS], 5)
    assert heard.events == [TOOLS]


async def test_what_is_wrong_is_raised_where_it_was_published() -> None:
    def refuse(events: Sequence[Event]) -> None:
        raise HubClosed("no more")

    intake = Intake(refuse)
    intake.open(asyncio.get_running_loop())
    with pytest.raises(HubClosed, match="no more"):
        await in_thread(intake.from_thread, [TOOLS], 5)


async def test_many_threads_at_once_while_it_opens_lose_nothing() -> None:
    heard = Heard()
    events = [ResourceUpdated(f"x://{number}") for number in range(400)]
    start = threading.Barrier(9)

    def publish(share: Sequence[Event]) -> None:
        start.wait(10)
        for event in share:
            heard.intake.from_thread([event], 10)

    publishing = [in_thread(publish, events[number::8]) for number in range(8)]
    await in_thread(start.wait, 10)
    heard.intake.open(asyncio.get_running_loop())
    async with asyncio.timeout(20):
        await asyncio.gather(*publishing)
    assert set(heard.events) == set(events)


@pytest.mark.clause("D7")
async def test_uris_come_out_in_normal_form() -> None:
    assert checked([ResourceUpdated("X://A/%7e/../b"), A]) == [ResourceUpdated("x://a/b"), A]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (ResourceUpdated("no uri"), InvalidURI),
        (ToolsListChanged, TypeError),
        ("x://a", TypeError),
        (None, TypeError),
    ],
    ids=repr,
)
async def test_all_are_good_or_none_is_taken(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked([A, bad])
