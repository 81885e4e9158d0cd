"""What the hub asks of a stream, on one that writes into memory."""

import pytest

from harken.core.events import ToolsListChanged
from harken.core.filters import Filter
from harken.core.subscription import LINES, Ending, State
from harken.server.hub import Hub
from harken.server.stream import Stream
from tests.core.frames import name, read

pytestmark = pytest.mark.anyio


class Memory(Stream):
    """A stream whose reader may stop."""

    def __init__(self, hub: Hub, honored: Filter) -> None:
        super().__init__(hub, 1, honored, LINES)
        self.written: list[str] = []
        self.ready = True
        self.aborted = 0

    def flush(self, now: float) -> None:
        """See `Stream.flush`."""
        if self.ready:
            self.written += [name(message) for message in read(self.take())]
            if self.state is State.ENDED:
                self.hub.leave(self, Ending.SHUTDOWN)

    def beat(self, now: float) -> None:
        """See `Stream.beat`."""

    def abort(self) -> None:
        """See `Stream.abort`."""
        self.aborted += 1


async def test_a_stream_that_joins_is_told_and_ends() -> None:
    async with Hub() as hub:
        stream = Memory(hub, Filter(tools_list_changed=True))
        hub.join(stream)
        assert hub.streams == {stream}
        await hub.publish(ToolsListChanged())
        await hub.drain()
    assert stream.written == ["subscriptions/acknowledged", "tools/list_changed", "result"]
    assert stream.ending is Ending.SHUTDOWN
    assert hub.endings == {Ending.SHUTDOWN: 1}


@pytest.mark.clause("D13")
async def test_a_stuck_reader_gets_nothing_more() -> None:
    async with Hub() as hub:
        stream = Memory(hub, Filter(tools_list_changed=True))
        hub.join(stream)
        stream.flush(0)
        stream.ready = False
        await hub.publish(ToolsListChanged())
        stream.stuck(Ending.STUCK_READER)
        stream.ready = True
        stream.flush(0)
        assert stream.written == ["subscriptions/acknowledged"]
        assert stream.aborted == 1
        assert stream.ending is Ending.STUCK_READER
        hub.leave(stream, Ending.CLIENT_GONE)
        hub.leave(stream, Ending.CLIENT_GONE)
    assert hub.endings == {Ending.STUCK_READER: 1}
