"""The wheel: each item once, at its deadline or a grain later, by one timer."""

import asyncio
import random
from itertools import pairwise

import pytest

from harken.server.wheel import Wheel
from tests.clock import now, run

GRAIN = 0.1


class Item:
    """Something with a deadline."""

    def __init__(self, deadline: float = 0.0) -> None:
        self.slot: int | None = None
        self.deadline = deadline


class Seen:
    """What came due, and when."""

    def __init__(self, grain: float = GRAIN) -> None:
        self.due: list[tuple[Item, float]] = []
        self.wheel: Wheel[Item] = Wheel(self.came, grain)

    def came(self, item: Item, at: float) -> None:
        """An item is due."""
        assert item.slot is None
        self.due.append((item, at))

    @property
    def items(self) -> list[Item]:
        """What came due, in order."""
        return [item for item, _ in self.due]


def test_an_item_is_due_once_at_its_deadline_or_a_grain_later() -> None:
    async def main() -> None:
        seen = Seen()
        items = [Item(now() + deadline) for deadline in (0.0, 0.11, 0.25, 0.4, 7.3, 3600.0)]
        for item in reversed(items):
            seen.wheel.schedule(item, item.deadline)
        await asyncio.sleep(4000)
        assert seen.items == items
        assert all(item.deadline <= at <= item.deadline + GRAIN + 1e-6 for item, at in seen.due)

    run(main())


@pytest.mark.parametrize("grain", [0.1, 0.3, 1 / 3, 0.7, 1.0, 1e-3])
def test_whatever_is_planned_anew_or_cancelled(grain: float) -> None:
    """Against the simplest model: a table of deadlines."""

    async def main() -> None:
        dice = random.Random(int(grain * 1000))
        seen = Seen(grain)
        items = [Item() for _ in range(20)]
        planned: dict[Item, float] = {}
        for _ in range(2000):
            item, when = dice.choice(items), now() + dice.uniform(0, 20 * grain)
            match dice.randrange(4):
                case 0:
                    seen.wheel.cancel(item)
                    planned.pop(item, None)
                case 1:
                    seen.wheel.schedule(item, when)
                    planned[item] = when
                case 2:
                    seen.wheel.hasten(item, when)
                    planned[item] = min(when, planned.get(item, when))
                case _:
                    await asyncio.sleep(dice.uniform(0, 5 * grain))
            for item, at in seen.due:
                assert planned.pop(item) <= at + 1e-6
            seen.due.clear()
            assert all(when > now() - grain - 1e-6 for when in planned.values()), "one was not due in time"
        await asyncio.sleep(30 * grain)
        assert {item for item, _ in seen.due} == set(planned)

    run(main())


def test_one_timer_for_all_and_none_for_nobody() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def timers() -> int:
            return len([t for t in loop._scheduled if not t.cancelled()])  # type: ignore[attr-defined]

        seen = Seen()
        items = [Item() for _ in range(1000)]
        for number, item in enumerate(items):
            seen.wheel.schedule(item, now() + 1000 - number)
        assert timers() == 1
        for item in items:
            seen.wheel.cancel(item)
        assert timers() == 0
        seen.wheel.schedule(items[0], now() + 1)
        await asyncio.sleep(2)
        assert timers() == 0
        assert seen.items == [items[0]]

    run(main())


def test_streams_that_come_and_go_leave_nothing() -> None:
    async def main() -> None:
        seen = Seen()
        stays = Item()
        seen.wheel.schedule(stays, now() + 10)
        for _ in range(10_000):
            item = Item()
            seen.wheel.schedule(item, now() + 5)
            seen.wheel.cancel(item)
        assert len(seen.wheel._order) == 2

    run(main())


def test_what_is_planned_for_the_past_comes_in_a_later_turn() -> None:
    """Else an item that cannot get on would keep the event loop to itself."""

    async def main() -> None:
        turns: list[float] = []

        def again(item: Item, at: float) -> None:
            turns.append(at)
            if len(turns) < 5:
                wheel.schedule(item, at - 100)

        wheel = Wheel(again, GRAIN)
        wheel.schedule(Item(), now())
        await asyncio.sleep(10)
        assert len(turns) == 5
        assert all(later - earlier >= GRAIN - 1e-6 for earlier, later in pairwise(turns))

    run(main())


def test_who_is_cancelled_by_a_neighbour_in_the_same_turn_is_not_due() -> None:
    async def main() -> None:
        first, second, third = Item(), Item(), Item()
        came: list[Item] = []

        def due(item: Item, at: float) -> None:
            came.append(item)
            wheel.cancel(second)
            if item is first:
                wheel.schedule(third, at + 5)

        wheel = Wheel(due, GRAIN)
        for item in (first, second, third):
            wheel.schedule(item, now() + 1)
        await asyncio.sleep(3)
        assert came == [first]
        await asyncio.sleep(5)
        assert came == [first, third]

    run(main())


def test_after_clear_everything_can_be_planned_anew() -> None:
    async def main() -> None:
        seen = Seen()
        item = Item()
        seen.wheel.schedule(item, now() + 1)
        seen.wheel.clear()
        seen.wheel.cancel(Item())
        await asyncio.sleep(2)
        assert seen.due == []
        seen.wheel.schedule(item, now() + 1)
        seen.wheel.clear()
        seen.wheel.schedule(item, now() + 1)
        await asyncio.sleep(2)
        assert seen.items == [item]

    run(main())


def test_hasten_never_delays() -> None:
    async def main() -> None:
        seen = Seen()
        item, begun = Item(), now()
        seen.wheel.hasten(item, begun + 5)
        seen.wheel.hasten(item, begun + 9)
        seen.wheel.hasten(item, begun + 1)
        await asyncio.sleep(20)
        [(_, at)] = seen.due
        assert begun + 1 <= at <= begun + 1 + GRAIN + 1e-6

    run(main())


def test_one_broken_item_leaves_the_others_due() -> None:
    async def main() -> None:
        broken: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: broken.append(told.get("exception")))
        seen: list[Item] = []

        def came(item: Item, at: float) -> None:
            seen.append(item)
            if item is items[0]:
                raise RuntimeError("this item is broken")

        items = [Item(now() + deadline) for deadline in (1.0, 1.0, 5.0)]
        wheel: Wheel[Item] = Wheel(came, GRAIN)
        for item in items:
            wheel.schedule(item, item.deadline)
        await asyncio.sleep(60)
        assert seen == items
        assert [type(error) for error in broken] == [RuntimeError]

    run(main())
