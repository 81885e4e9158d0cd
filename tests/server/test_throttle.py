"""The throttle: an item at most once an interval, and never its last change lost."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from harken.core.events import Event, PromptsListChanged, ResourceUpdated, ToolsListChanged
from harken.server import throttle as module
from harken.server.throttle import Throttle
from tests.clock import now, run

TOOLS, PROMPTS, A = ToolsListChanged(), PromptsListChanged(), ResourceUpdated("x://a")


class Seen:
    """What was delivered, and when, counted from the start."""

    def __init__(self, interval: float) -> None:
        self.begun = now()
        self.frames: list[tuple[float, Event]] = []
        self.publish = Throttle(interval, self.deliver)

    def deliver(self, events: Sequence[Event]) -> None:
        """Events have passed."""
        self.frames += [(round(now() - self.begun, 6), event) for event in events]

    def timers(self) -> int:
        """How many timers are pending."""
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        return len([timer for timer in scheduled if not timer.cancelled()])


@pytest.mark.field("F41")
def test_many_identical_changes_are_two_frames() -> None:
    async def main() -> None:
        seen = Seen(1.0)
        for _ in range(200):
            seen.publish([TOOLS])
        assert seen.frames == [(0, TOOLS)]
        await asyncio.sleep(10)
        assert seen.frames == [(0, TOOLS), (1, TOOLS)]

    run(main())


@pytest.mark.field("F42")
@pytest.mark.parametrize("before_the_end", [1e-6, 1e-7, 0.5, 0.999999])
def test_a_change_in_the_last_microsecond_is_told_after_it(before_the_end: float) -> None:
    async def main() -> None:
        seen = Seen(1.0)
        seen.publish([TOOLS])
        await asyncio.sleep(1 - before_the_end)
        seen.publish([TOOLS])
        assert len(seen.frames) == 1
        await asyncio.sleep(5)
        assert seen.frames == [(0, TOOLS), (1, TOOLS)]

    run(main())


@pytest.mark.field("F42")
def test_a_change_in_the_very_instant_of_the_end_is_told() -> None:
    """Whether the timer or the change comes first in that turn of the loop."""

    async def main(timer_first: bool) -> None:
        loop = asyncio.get_running_loop()
        seen = Seen(1.0)
        if not timer_first:
            loop.call_at(seen.begun + 1, seen.publish, [TOOLS])
        seen.publish([TOOLS])
        if timer_first:
            loop.call_at(seen.begun + 1, seen.publish, [TOOLS])
        await asyncio.sleep(5)
        assert seen.frames == [(0, TOOLS), (1, TOOLS)]

    run(main(True))
    run(main(False))


@pytest.mark.field("F42")
def test_churn_faster_than_the_interval_keeps_frames_coming() -> None:
    async def main() -> None:
        seen = Seen(1.0)
        for _ in range(1000):
            seen.publish([TOOLS, A])
            await asyncio.sleep(0.01)
        times = [at for at, event in seen.frames if event == A]
        assert times == [float(second) for second in range(10)]
        await asyncio.sleep(5)
        assert seen.frames[-2:] == [(10, TOOLS), (10, A)], "the last change was lost"

    run(main())


def test_each_item_has_an_interval_of_its_own() -> None:
    async def main() -> None:
        seen = Seen(1.0)
        seen.publish([TOOLS])
        await asyncio.sleep(0.4)
        seen.publish([PROMPTS, A, A])
        await asyncio.sleep(0.4)
        seen.publish([TOOLS, PROMPTS])
        await asyncio.sleep(5)
        assert seen.frames == [(0, TOOLS), (0.4, PROMPTS), (0.4, A), (1, TOOLS), (1.4, PROMPTS), (1.4, A)]
        assert seen.timers() == 0
        seen.publish([A])
        assert seen.frames[-1] == (5.8, A)

    run(main())


def test_release_passes_what_is_held_and_begins_anew() -> None:
    async def main() -> None:
        seen = Seen(1.0)
        seen.publish([TOOLS, PROMPTS])
        seen.publish([TOOLS])
        seen.publish.release()
        assert seen.frames == [(0, TOOLS), (0, PROMPTS), (0, TOOLS)]
        assert seen.timers() == 0
        seen.publish.release()
        await asyncio.sleep(0.5)
        seen.publish([TOOLS])
        seen.publish([TOOLS])
        await asyncio.sleep(5)
        assert seen.frames[3:] == [(0.5, TOOLS), (1.5, TOOLS)]

    run(main())


def test_what_is_held_is_capped_and_past_the_cap_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ITEMS", 10)

    async def main() -> None:
        seen = Seen(1.0)
        events = [ResourceUpdated(f"x://{number}") for number in range(50)]
        for _ in range(3):
            seen.publish(events)
            assert len(seen.publish._held) == len(seen.publish._ends) == 10
        await asyncio.sleep(5)
        assert Counter(event for _, event in seen.frames) == {
            event: 2 if number < 10 else 3 for number, event in enumerate(events)
        }

    run(main())
