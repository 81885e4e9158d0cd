"""The hub: its publishers, its streams and its own life."""

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from harken.core.events import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter
from harken.core.subscription import LINES, Ending, State
from harken.errors import HubClosed, InvalidURI
from harken.server.hub import Hub
from harken.server.stream import Stream
from tests.clock import now, run
from tests.core.frames import name, read
from tests.lines_client import ACK, TOOLS, over_unix, until

pytestmark = pytest.mark.anyio
EVERYTHING = Filter(True, True, True, ("x://a", "x://b"))


class Memory(Stream):
    """A stream into memory, whose reader may stop, at moments that are noted."""

    def __init__(self, hub: Hub, honored: Filter = EVERYTHING) -> None:
        super().__init__(hub, 1, honored, LINES)
        self.written: list[str] = []
        self.times: list[float] = []
        self.beats: list[float] = []
        self.ready = True
        self.aborted = False
        hub.join(self)
        self.flush(now())

    def flush(self, at: float) -> None:
        """See `Stream.flush`."""
        if self.ready and (data := self.take()):
            self.last_write = at
            names = [name(message) for message in read(data)]
            self.written += names
            self.times += [now()] * len(names)
            if self.state is State.ENDED:
                self.hub.leave(self, Ending.SHUTDOWN)

    def beat(self, at: float) -> None:
        """See `Stream.beat`."""
        self.last_write = at
        self.beats.append(at)

    def abort(self) -> None:
        """See `Stream.abort`."""
        self.aborted = True
        self.hub.leave(self, Ending.CLIENT_GONE)


async def turns(count: int = 5) -> None:
    """Lets the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


# -- Publishing


@pytest.mark.clause("R1", "R7", "R8", "R9", "R10")
async def test_each_event_reaches_who_asked_for_it() -> None:
    async with Hub(drain_window=0) as hub:
        streams = [
            Memory(hub, Filter(tools_list_changed=True)),
            Memory(hub, Filter(prompts_list_changed=True)),
            Memory(hub, Filter(resources_list_changed=True)),
            Memory(hub, Filter(resource_subscriptions=("x://a",))),
        ]
        await hub.publish(
            ToolsListChanged(), PromptsListChanged(), ResourcesListChanged(), ResourceUpdated("x://a"),
            ResourceUpdated("x://b"),
        )  # fmt: skip
        await turns()
        assert [stream.written[1:] for stream in streams] == [
            ["tools/list_changed"],
            ["prompts/list_changed"],
            ["resources/list_changed"],
            ["resources/updated x://a"],
        ]


@pytest.mark.field("F7")
async def test_publishing_with_nobody_there_or_before_the_start() -> None:
    hub = Hub(drain_window=0)
    hub.publish_from_thread(ToolsListChanged(), ToolsListChanged())
    await hub.publish(ToolsListChanged())
    assert hub.running
    stream = Memory(hub)
    await asyncio.to_thread(hub.publish_from_thread, ResourceUpdated("x://a"))
    task = asyncio.create_task(hub.publish(ResourceUpdated("x://b")))
    await task
    await turns()
    assert stream.written == [ACK, "resources/updated x://a", "resources/updated x://b"]
    await hub.aclose()
    with pytest.raises(HubClosed):
        await hub.publish(ToolsListChanged())
    with pytest.raises(HubClosed):
        hub.publish_from_thread(ToolsListChanged())
    with pytest.raises(HubClosed):
        await asyncio.to_thread(hub.publish_from_thread, ToolsListChanged())


async def test_all_events_are_good_or_none_is_published() -> None:
    async with Hub(drain_window=0) as hub:
        stream = Memory(hub)
        bad: Any = "tools"
        for wrong, error in ((bad, TypeError), (ResourceUpdated("no uri"), InvalidURI)):
            with pytest.raises(error):
                await hub.publish(ToolsListChanged(), wrong)
            with pytest.raises(error):
                hub.publish_from_thread(ToolsListChanged(), wrong)
        await turns()
        assert stream.written == [ACK]


@pytest.mark.field("F41")
async def test_a_burst_is_one_write_in_the_order_of_the_first_change() -> None:
    async with Hub(drain_window=0) as hub:
        stream = Memory(hub)
        for _ in range(200):
            await hub.publish(ResourceUpdated("x://b"), ToolsListChanged(), ResourceUpdated("x://a"))
        await turns()
        frames = ["resources/updated x://b", "tools/list_changed", "resources/updated x://a"]
        assert stream.written[1:] in ([*frames], [*frames, *frames])


@pytest.mark.parametrize("min_interval", [0.0, 0.01])
async def test_a_publisher_in_a_hot_loop_leaves_the_loop_to_others(min_interval: float) -> None:
    """Also where nobody listens yet, and where events are held back."""
    async with Hub(drain_window=0, min_interval=min_interval) as hub:
        stop = False

        async def storm() -> None:
            while not stop:
                await hub.publish(ResourceUpdated("x://a"))

        task = asyncio.create_task(storm())
        async with asyncio.timeout(20):
            await asyncio.sleep(0.01)
            stream = Memory(hub)
            await until(lambda: len(stream.written) > 3)
        stop = True
        await task


async def test_one_broken_stream_leaves_the_others_theirs() -> None:
    broken: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: broken.append(told.get("exception")))

    class Broken(Memory):
        def flush(self, at: float) -> None:
            if self.state is State.ACKNOWLEDGED:
                raise RuntimeError("this stream is broken")
            super().flush(at)

    async with Hub(drain_window=0) as hub:
        bad, good = Broken(hub), Memory(hub)
        await hub.publish(ToolsListChanged())
        await until(lambda: "tools/list_changed" in good.written)
        hub.leave(bad, Ending.CLIENT_GONE)
    assert [type(error) for error in broken] == [RuntimeError]


async def test_a_long_flush_gives_the_loop_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Hub(drain_window=0) as hub:
        loop = asyncio.get_running_loop()
        order: list[str] = []

        class Slow(Memory):
            def flush(self, at: float) -> None:
                """Takes its time."""
                if self.pending:
                    clock[0] += 0.001
                    order.append("stream")
                super().flush(at)

        streams = [Slow(hub, Filter(tools_list_changed=True)) for _ in range(200)]
        clock = [loop.time()]
        monkeypatch.setattr(loop, "time", lambda: clock[0])
        await hub.publish(ToolsListChanged())
        loop.call_soon(order.append, "other")
        await turns(10)
        monkeypatch.undo()
        assert order.count("stream") == 200
        assert order.index("other") < 199
        assert all(stream.written[1:] == ["tools/list_changed"] for stream in streams)


# -- Streams


@pytest.mark.field("F9")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_whoever_leaves_the_others_hear(order: tuple[int, ...]) -> None:
    async with Hub(drain_window=0) as hub:
        streams = [Memory(hub, Filter(resource_subscriptions=("x://a",))) for _ in range(3)]
        for count, leaving in enumerate(order):
            await hub.publish(ResourceUpdated("x://a"))
            await turns()
            assert [len(stream.written) - 1 for stream in streams if stream.alive] == [count + 1] * (
                3 - count
            )
            hub.leave(streams[leaving], Ending.CLIENT_GONE)
        assert not hub.streams


@pytest.mark.field("F42", "F41")
def test_min_interval_through_the_hub() -> None:
    async def main() -> None:
        async with Hub(drain_window=0, min_interval=1.0) as hub:
            stream = Memory(hub)
            begun = now()
            for _ in range(500):
                await hub.publish(ToolsListChanged())
                await asyncio.sleep(0.01)
            await asyncio.sleep(2)
            assert [round(at - begun, 3) for at in stream.times[1:]] == [0, 1, 2, 3, 4, 5]
            await hub.publish(ToolsListChanged())
            await hub.publish(ToolsListChanged())
            await hub.drain()
            assert stream.written[-2:] == ["tools/list_changed", "result"]

    run(main())


@pytest.mark.clause("H11")
def test_quiet_streams_beat_and_not_all_at_once() -> None:
    async def main() -> None:
        async with Hub(drain_window=0, keep_alive=10) as hub:
            streams = [Memory(hub) for _ in range(50)]
            begun = now()
            await asyncio.sleep(100)
            for stream in streams:
                gaps = [later - earlier for earlier, later in itertools.pairwise([begun, *stream.beats])]
                assert max(gaps) <= 11.1
                assert len(stream.beats) >= 9
            assert len({round(stream.beats[0], 1) for stream in streams}) > 3

    run(main())


@pytest.mark.field("F4")
def test_max_age_ends_each_stream_gracefully_at_its_own_moment() -> None:
    async def main() -> None:
        async with Hub(drain_window=0, max_age=100) as hub:
            begun = now()
            streams = [Memory(hub) for _ in range(50)]
            await asyncio.sleep(102)
            assert not hub.streams
            assert hub.endings == {Ending.MAX_AGE: 50}
            ages = [stream.times[-1] - begun for stream in streams]
            assert all(stream.written == [ACK, "result"] for stream in streams)
            assert 89.9 <= min(ages) < max(ages) <= 101.1
            assert len({round(age) for age in ages}) > 3

    run(main())


@pytest.mark.clause("D13")
def test_a_blocked_stream_is_left_after_the_write_timeout_and_not_before() -> None:
    async def main() -> None:
        async with Hub(drain_window=0, write_timeout=5) as hub:
            stuck, slow = Memory(hub), Memory(hub)
            for stream in (stuck, slow):
                stream.ready = False
                hub.blocked(stream)
            await asyncio.sleep(4.9)
            slow.ready, slow.blocked_since = True, None
            assert hub.streams == {slow, stuck}
            await asyncio.sleep(0.7)
            assert stuck.aborted
            assert hub.streams == {slow}
            assert hub.endings == {Ending.STUCK_READER: 1}
            await asyncio.sleep(60)
            assert not slow.aborted

    run(main())


# -- The end, and after it


@pytest.mark.clause("R14")
@pytest.mark.field("F38")
async def test_published_then_shut_down_at_once() -> None:
    hub = Hub(drain_window=0)
    await hub.start()
    streams = [Memory(hub) for _ in range(10)]
    await hub.publish(ToolsListChanged())
    hub.publish_from_thread(ResourceUpdated("x://a"))
    await hub.aclose()
    for stream in streams:
        assert stream.written == [ACK, "tools/list_changed", "resources/updated x://a", "result"]
    assert hub.endings == {Ending.SHUTDOWN: 10}


def test_the_ends_are_spread_over_the_drain_window() -> None:
    async def main(options: dict[str, Any], window: float) -> None:
        hub = Hub(**options)
        await hub.start()
        streams = [Memory(hub) for _ in range(10)]
        begun = now()
        await hub.drain()
        ends = sorted(stream.times[-1] - begun for stream in streams)
        assert ends == pytest.approx([window * number / 10 for number in range(10)])
        with pytest.raises(Exception, match="shutting down"):
            hub.admit(EVERYTHING)
        await hub.aclose()

    run(main({}, 1.0))
    run(main({"drain_window": 5}, 5.0))
    run(main({"drain_window": 0}, 0.0))


def test_a_reader_that_does_not_take_its_end_is_left() -> None:
    async def main() -> None:
        hub = Hub(drain_window=0)
        await hub.start()
        stuck, fine = Memory(hub), Memory(hub)
        stuck.ready = False
        begun = now()
        await hub.aclose()
        assert now() - begun == pytest.approx(1.0)
        assert fine.written == [ACK, "result"]
        assert stuck.aborted
        assert not hub.streams

    run(main())


async def test_a_hub_can_be_started_anew(tmp_path: Path) -> None:
    hub = Hub(drain_window=0, min_interval=60)
    for number in range(3):
        async with over_unix(hub, tmp_path / str(number)) as [client]:
            await hub.start()
            await client.listen(TOOLS, 1)
            await hub.publish(ToolsListChanged())
            assert await client.names(1) == ["tools/list_changed"]
            await hub.publish(ToolsListChanged())
            await hub.aclose()
            await hub.aclose()
            assert await client.names(2) == ["tools/list_changed", "result"]
            with pytest.raises(HubClosed):
                await hub.publish(ToolsListChanged())
        await hub.start()


async def test_a_hub_that_was_never_started_can_be_closed() -> None:
    hub = Hub()
    await hub.aclose()
    with pytest.raises(HubClosed):
        await hub.publish(ToolsListChanged())
    with pytest.raises(HubClosed):
        hub.publish_from_thread(ToolsListChanged())
    assert not hub.running


@pytest.mark.field("F7")
async def test_another_event_loop_is_told_how_to_publish() -> None:
    async with Hub(drain_window=0) as hub:
        stream = Memory(hub)
        errors: list[Exception] = []

        def elsewhere() -> None:
            async def main() -> None:
                with pytest.raises(RuntimeError, match="publish_from_thread"):
                    await hub.publish(ToolsListChanged())
                hub.publish_from_thread(ResourceUpdated("x://a"))

            try:
                asyncio.run(main())
            except Exception as error:  # noqa: BLE001 - it is the test's to raise
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await until(lambda: not thread.is_alive())
        assert errors == []
        await turns()
        assert stream.written == [ACK, "resources/updated x://a"]


def test_a_hub_outlives_the_loop_it_ran_on() -> None:
    hub = Hub(drain_window=0, min_interval=0.05)

    async def main() -> list[str]:
        await hub.start_lazily()
        stream = Memory(hub)
        await hub.publish(ToolsListChanged())
        await hub.publish(ToolsListChanged())
        await until(lambda: len(stream.written) == 3)
        await hub.publish(ToolsListChanged())
        return stream.written

    for _ in range(3):
        assert asyncio.run(main()) == [ACK, "tools/list_changed", "tools/list_changed"]
