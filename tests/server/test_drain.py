"""How a hub learns that the process is to end; the real servers are in tests/e2e/test_shutdown.py."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import uvicorn
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.protocol.http_stream import HTTPStream

from harken.brokers.memory import MemoryBroker
from harken.core.events import ToolsListChanged
from harken.core.filters import Filter
from harken.core.subscription import SSE, Ending
from harken.errors import HubClosed, RPCError
from harken.server import drain
from harken.server.hub import Hub
from harken.server.stream import Stream
from tests.serving import until

pytestmark = pytest.mark.anyio

TOOLS = Filter.parse({"toolsListChanged": True})


class Recorded(Stream):
    """A stream that keeps what it writes; `blocked` as long as its reader takes nothing."""

    def __init__(self, hub: Hub, id: int = 1) -> None:
        super().__init__(hub, id, TOOLS, SSE)
        self.written = b""
        self.full = self.aborted = False

    def flush(self, now: float) -> None:
        if self.full:
            if self.blocked_since is None:
                self.hub.blocked(self)
            return
        self.written += self.take()
        if not self.alive:
            self.hub.leave(self, Ending.SHUTDOWN)

    def beat(self, now: float) -> None:
        """Nothing."""

    def abort(self) -> None:
        self.aborted = True
        self.hub.leave(self, Ending.SHUTDOWN)

    @property
    def ended_well(self) -> bool:
        return b'"resultType":"complete"' in self.written and not self.aborted


def opened(hub: Hub, count: int = 1) -> list[Recorded]:
    """Streams that have had their acknowledgment."""
    streams = [Recorded(hub, id) for id in range(count)]
    for stream in streams:
        hub.join(stream)
        stream.flush(0)
    return streams


def new_hub(**options: Any) -> Hub:
    return Hub(**{"drain_window": 0.0, **options})


class Server:
    """What a server has for a handler, which counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.calls.append(number)


@pytest.fixture
def server() -> Iterator[Server]:
    """A process whose server handles SIGTERM, SIGINT and SIGQUIT, and is the same afterwards."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]
    before = {number: signal.getsignal(number) for number in numbers}
    handler = Server()
    for number in numbers:
        signal.signal(number, handler)
    yield handler
    assert [signal.getsignal(number) for number in numbers] == [handler] * 3
    for number, old in before.items():
        signal.signal(number, old)


def handler_of(number: signal.Signals) -> object:
    """Who handles a signal."""
    return signal.getsignal(number)


@pytest.mark.parametrize(("streams", "seconds"), [(0, 1), (999, 1), (5_000, 5), (10_000, 10), (99_000, 10)])
def test_the_window_grows_with_the_streams(streams: int, seconds: float) -> None:
    assert drain.window(streams) == seconds


# -- The drain


@pytest.mark.clause("R14")
async def test_every_stream_gets_its_result_and_no_new_one_is_taken() -> None:
    async with new_hub() as hub:
        streams = opened(hub, 3)
        await hub.drain()
        assert all(stream.ended_well for stream in streams)
        assert not hub.streams
        with pytest.raises(RPCError) as refusal:
            hub.admit(TOOLS)
        assert refusal.value.data == {"reason": "shutting_down", "retryAfter": 1}


async def test_the_ends_are_spread_over_the_window() -> None:
    async with new_hub(drain_window=0.3) as hub:
        streams = opened(hub, 3)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        draining = asyncio.create_task(hub.drain())
        await until(lambda: any(stream.ended_well for stream in streams))
        assert not all(stream.ended_well for stream in streams)
        await draining
        assert loop.time() - begun > 0.19  # the last of three ends after two thirds


@pytest.mark.field("F38")
async def test_what_was_published_before_goes_out_before_the_result() -> None:
    async with new_hub(min_interval=60) as hub:
        (stream,) = opened(hub)
        await hub.publish(ToolsListChanged())
        await asyncio.sleep(0)
        await hub.publish(ToolsListChanged())  # held back for a minute
        await hub.drain()
        assert stream.written.count(b"tools/list_changed") == 2
        assert stream.written.rindex(b"list_changed") < stream.written.index(b"resultType")


async def test_publishing_meanwhile_reaches_whom_the_end_has_not() -> None:
    async with new_hub(drain_window=60) as hub:
        streams = opened(hub, 2)
        hub.begin_drain()
        await until(lambda: any(stream.ended_well for stream in streams))
        await hub.publish(ToolsListChanged())
        await asyncio.sleep(0)
        assert sorted(b"tools/list_changed" in stream.written for stream in streams) == [False, True]
        hub.hurry()
        assert all(stream.ended_well for stream in streams)


async def test_draining_again_is_the_same_drain() -> None:
    async with new_hub() as hub:
        opened(hub)
        first = hub.begin_drain()
        assert hub.begin_drain() is first
        await asyncio.gather(hub.drain(), hub.drain())
        await hub.drain()


async def test_who_waits_for_a_drain_may_be_cancelled() -> None:
    async with new_hub(drain_window=0.1) as hub:
        streams = opened(hub, 2)
        waiting = asyncio.create_task(hub.drain())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: all(stream.ended_well for stream in streams))


async def test_a_drain_is_over_with_its_last_stream() -> None:
    """Not with its window: a shutdown must not wait for clients that have left."""
    async with new_hub(drain_window=60) as hub:
        streams = opened(hub, 3)
        draining = hub.begin_drain()
        await asyncio.sleep(0)
        for stream in streams:
            hub.leave(stream, Ending.CLIENT_GONE)
        async with asyncio.timeout(10):
            await draining


async def test_a_reader_that_takes_nothing_is_left_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "GRACE", 0.05)
    async with new_hub() as hub:
        stuck, good = opened(hub, 2)
        stuck.full = True
        await hub.drain()
        assert stuck.aborted
        assert good.ended_well


async def test_a_reader_that_is_slow_has_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "GRACE", 60.0)
    async with new_hub() as hub:
        (slow,) = opened(hub)
        slow.full = True
        draining = hub.begin_drain()
        await until(lambda: slow.blocked_since is not None)
        slow.full = False
        slow.flush(0)
        async with asyncio.timeout(10):
            await draining
        assert slow.ended_well


async def test_in_a_hurry_all_end_now_and_who_takes_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain, "GRACE", 0.05)
    async with new_hub(drain_window=60) as hub:
        stuck, good = opened(hub, 2)
        stuck.full = True
        draining = hub.begin_drain()
        hub.hurry()
        assert good.ended_well
        async with asyncio.timeout(10):
            await draining
        assert stuck.aborted


async def test_closing_without_a_start_and_closing_twice() -> None:
    hub = new_hub()
    await hub.aclose()
    await hub.aclose()
    with pytest.raises(HubClosed):
        await hub.publish(ToolsListChanged())
    await hub.start()
    await asyncio.gather(hub.aclose(), hub.aclose())
    assert not hub.running


async def test_a_drain_from_another_event_loop_says_what_to_do() -> None:
    async with new_hub() as hub:
        (stream,) = opened(hub)
        with pytest.raises(RuntimeError, match="run_coroutine_threadsafe"):
            await asyncio.to_thread(asyncio.run, hub.drain())
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(hub.drain(), loop).result(10))
        assert stream.ended_well


async def test_two_who_close_at_once_close_the_broker_once() -> None:
    class Counted(MemoryBroker):
        closed = 0

        async def close(self) -> None:
            self.closed += 1
            await super().close()

    broker = Counted()
    hub = new_hub(broker=broker)
    await hub.start()
    opened(hub)
    await asyncio.gather(hub.aclose(), hub.aclose())
    assert broker.closed == 1


async def test_a_hub_that_is_started_anew_is_not_ended_by_the_old_hurry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain, "GRACE", 0.01)
    hub = new_hub()
    await hub.start()
    hub.begin_drain()
    hub.hurry()
    await hub.aclose()
    await hub.start()
    (stream,) = opened(hub)
    late = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, late.set)
    await late.wait()
    assert not stream.aborted
    await hub.aclose()


# -- Signals


@pytest.mark.field("F37")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
async def test_a_signal_drains_and_reaches_the_server(server: Server, number: signal.Signals) -> None:
    async with new_hub() as hub:
        (stream,) = opened(hub)
        signal.raise_signal(number)
        await until(lambda: stream.ended_well)
        assert server.calls == [number]


async def test_sigquit_leaves_no_time_for_a_window(server: Server) -> None:
    async with new_hub(drain_window=60) as hub:
        streams = opened(hub, 5)
        signal.raise_signal(signal.SIGQUIT)
        await until(lambda: all(stream.ended_well for stream in streams))


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)],
)
async def test_what_a_supervisor_passes_on_is_no_second_wish(
    server: Server, numbers: tuple[signal.Signals, ...]
) -> None:
    async with new_hub(drain_window=60) as hub:
        streams = opened(hub, 5)
        for number in numbers:
            signal.raise_signal(number)
        await until(lambda: any(stream.ended_well for stream in streams))
        assert not all(stream.ended_well for stream in streams)
        assert server.calls == list(numbers)
        hub.hurry()


@pytest.mark.parametrize(
    ("numbers", "echo"), [((signal.SIGINT, signal.SIGINT), 60), ((signal.SIGTERM, signal.SIGTERM), -1)]
)
async def test_a_second_signal_ends_at_once(
    server: Server, numbers: tuple[signal.Signals, ...], echo: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "ECHO", echo)
    async with new_hub(drain_window=60) as hub:
        streams = opened(hub, 5)
        for number in numbers:
            signal.raise_signal(number)
        await until(lambda: all(stream.ended_well for stream in streams))


async def test_every_hub_in_the_process_is_told(server: Server) -> None:
    async with new_hub() as one, new_hub() as two:
        streams = opened(one) + opened(two)
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: all(stream.ended_well for stream in streams))
        assert server.calls == [signal.SIGTERM]


async def test_the_last_hub_leaves_the_handlers_as_they_were(server: Server) -> None:
    async with new_hub():
        async with new_hub():
            pass
        assert handler_of(signal.SIGTERM) is not server
    assert handler_of(signal.SIGTERM) is server


async def test_a_server_that_installs_its_own_late(server: Server) -> None:
    async with new_hub() as hub:
        later = Server()
        signal.signal(signal.SIGTERM, later)
        (stream,) = opened(hub)
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: stream.ended_well)
        assert (later.calls, server.calls) == ([signal.SIGTERM], [])
    assert handler_of(signal.SIGTERM) is later
    signal.signal(signal.SIGTERM, server)


async def test_a_handler_that_calls_the_one_before_it_which_was_ours(server: Server) -> None:
    async with new_hub(drain_window=60) as hub:
        ours: Any = signal.getsignal(signal.SIGINT)

        def passes_on(number: int, frame: FrameType | None) -> None:
            ours(number, frame)

        signal.signal(signal.SIGINT, passes_on)
        streams = opened(hub, 5)
        signal.raise_signal(signal.SIGINT)
        await until(lambda: any(stream.ended_well for stream in streams))
        assert not all(stream.ended_well for stream in streams)  # it was told of one Ctrl-C
        assert server.calls == [signal.SIGINT]
        hub.hurry()
    signal.signal(signal.SIGINT, server)


async def test_a_process_without_a_server_ends_at_once_as_ever() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        async with new_hub():
            assert handler_of(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_hub_in_a_thread_hears_of_it_once_the_main_thread_has_looked(server: Server) -> None:
    """Only the main thread may install handlers: there another hub, or uvicorn's own way, has to."""
    opened_there, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        async with new_hub() as hub:
            (stream,) = opened(hub)
            opened_there.set()
            await until(lambda: stream.ended_well)
            ended.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert opened_there.wait(10)
    assert handler_of(signal.SIGTERM) is server
    drain.look_again()
    signal.raise_signal(signal.SIGTERM)
    assert ended.wait(10)
    thread.join(10)
    # The last hub left in another thread, where handlers can't be put back; ours passes everything on.
    signal.raise_signal(signal.SIGINT)
    assert server.calls == [signal.SIGTERM, signal.SIGINT]

    async def once_more() -> None:
        async with new_hub():
            pass

    asyncio.run(once_more())


def test_a_hub_that_nobody_closed_is_no_trouble(server: Server) -> None:
    async def start() -> weakref.ref[Hub]:
        hub = new_hub()
        await hub.start()
        return weakref.ref(hub)

    hub = asyncio.run(start())
    signal.raise_signal(signal.SIGTERM)  # its loop has closed
    gc.collect()
    assert hub() is None
    signal.raise_signal(signal.SIGTERM)
    assert server.calls == [signal.SIGTERM] * 2

    async def once_more() -> None:
        async with new_hub():
            pass

    asyncio.run(once_more())


# -- hypercorn's workers


def hypercorn_stream(context: WorkerContext) -> Any:
    """A stream of hypercorn's; its `app_send` is the `send` of the app."""
    unused: Any = None
    return HTTPStream(unused, Config(), context, unused, False, None, None, unused, 1)


async def test_the_end_of_a_hypercorn_worker_drains() -> None:
    context = WorkerContext(None)
    async with new_hub() as hub, new_hub() as other:
        (stream,) = opened(hub)
        drain.follow(hub, hypercorn_stream(context).app_send)
        drain.follow(hub, hypercorn_stream(context).app_send)
        await context.terminated.set()
        await until(lambda: stream.ended_well)
        assert not other.draining


async def test_a_hub_that_has_closed_follows_nobody() -> None:
    tasks = len(asyncio.all_tasks())
    async with new_hub() as hub:
        drain.follow(hub, hypercorn_stream(WorkerContext(None)).app_send)
        assert len(asyncio.all_tasks()) == tasks + 1
    await until(lambda: len(asyncio.all_tasks()) == tasks)


async def test_other_sends_lead_nowhere() -> None:
    tasks = len(asyncio.all_tasks())
    async with new_hub() as hub:
        sends: list[object] = [print, [].append, new_hub().publish, None]
        for send in sends:
            drain.follow(hub, send)
        assert len(asyncio.all_tasks()) == tasks


# -- uvicorn's own way


class NoServer:
    """What uvicorn's `Server.shutdown` is called on here."""

    def __init__(self) -> None:
        self.ended = False


@pytest.fixture
def shutdown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """uvicorn's `Server.shutdown`, replaced by one that notes that it was called."""

    async def note(self: NoServer, sockets: object = None) -> None:
        self.ended = True

    monkeypatch.setattr(uvicorn.Server, "shutdown", note)
    return note


async def test_uvicorns_shutdown_drains_the_hubs_of_its_loop(shutdown: Any) -> None:
    async with new_hub() as hub:
        (stream,) = opened(hub)
        server = NoServer()
        await uvicorn.Server.shutdown(server, sockets=[])  # type: ignore[arg-type]  # see NoServer
        assert server.ended
        await until(lambda: stream.ended_well)
    assert uvicorn.Server.shutdown is shutdown


async def test_uvicorns_shutdown_in_another_thread_is_none_of_ours(shutdown: Any) -> None:
    async with new_hub() as hub:
        server = NoServer()
        await asyncio.to_thread(asyncio.run, uvicorn.Server.shutdown(server))  # type: ignore[arg-type]
        assert server.ended
        assert not hub.draining


async def test_who_wraps_ours_keeps_what_he_wrapped(shutdown: Any) -> None:
    async with new_hub():
        ours: Any = uvicorn.Server.shutdown

        async def theirs(self: Any, sockets: object = None) -> None:
            await ours(self, sockets)

        server: Any = uvicorn.Server
        server.shutdown = theirs
    assert server.shutdown is theirs
    async with new_hub() as hub:
        assert server.shutdown is theirs  # ours is still below it
        await server.shutdown(NoServer())
        assert hub.draining
    server.shutdown = ours
    async with new_hub():
        pass
    assert server.shutdown is shutdown
