"""What `harken listen --follow` does: a watch, and each thing that happens to it shown in its order.

What happens is written down at once, and shown when stdout has room. Before a stream's end is written down,
what it had brought is: nothing of a stream is shown after its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio
import anyio.abc

from harken.cli.follow import FIRST_RETRY, LAST_RETRY, joined, list_resources
from harken.cli.output import Output, room
from harken.client.status import WatchState, WatchStatus
from harken.client.watch import Resync, Watch
from harken.core.demux import Ending
from harken.core.events import Event, ResourcesListChanged
from harken.errors import ConnectionLost, HarkenError, NothingHonored

__all__ = ["Stayer"]

# What waits for room on stdout; past it the oldest is dropped. A reader that stopped for hours costs no more.
BACKLOG = 10_000


class Stayer:
    """Watches until `count` events were shown, or the watch gives up.

    `open_watch` makes the watch, given what takes its states. With `everything`, the filter grows and shrinks
    with what `resources/list` names.
    """

    def __init__(
        self,
        open_watch: Callable[[Callable[[WatchStatus], object]], Watch],
        output: Output,
        *,
        everything: bool,
        count: int | None,
    ) -> None:
        self._watch = open_watch(self._state)
        self._wanted = self._watch.wanted
        self._output = output
        self._everything = everything
        self._left = count
        self._subscribed = False
        self._backlog: deque[Callable[[], None]] = deque(maxlen=BACKLOG)
        self._noted = anyio.Event()
        self._showing = anyio.Lock()
        self._list_changed = anyio.Event()
        self._enough = anyio.CancelScope()

    async def run(self) -> tuple[Ending, HarkenError | None]:
        """How it ended: `closed` after so many events, or what the watch has given up for."""
        self._note(lambda: self._output.state(self._watch.status))
        error: HarkenError | None = None
        async with anyio.create_task_group() as tasks, self._watch:
            tasks.start_soon(self._show_later)
            if self._everything:
                tasks.start_soon(self._keep_up)
            with self._enough:
                try:
                    await self._follow()
                except HarkenError as failed:
                    error = failed  # carried out of the group, which would wrap it
            reason = self._watch.status.reason
            tasks.cancel_scope.cancel()
        await self._show()
        return (reason, error) if error is not None and reason is not None else (Ending.CLOSED, None)

    async def _follow(self) -> None:
        """Returns never: it raises what the watch has given up for."""
        while True:
            try:
                async for item in self._watch:
                    self._item(item)
                    await self._show()  # what comes meanwhile collapses inside the stream
            except NothingHonored:
                refused = self._watch.wanted
                if self._everything:
                    await self._widen()  # the lists may not be honored, and the resources may be
                if self._watch.wanted == refused:
                    raise

    def _item(self, item: Resync | Event) -> None:
        if isinstance(item, Resync):
            self._list_changed.set()
            if self._subscribed:  # for another filter
                self._note(lambda: self._output.ended(Ending.CLOSED, "another one has taken its place"))
            self._subscribed = True
            self._note(lambda: self._output.ack(item.honored, item.unsupported, item.subscription_id))
            self._note(self._output.resync)
            return
        if isinstance(item, ResourcesListChanged):
            self._list_changed.set()
        self._note(lambda: self._event(item))

    def _state(self, status: WatchStatus) -> None:
        """One state of the watch follows another."""
        if status.state is WatchState.CLOSED:
            return  # the command itself says that
        while status.state is not WatchState.LIVE and (item := self._watch.take()) is not None:
            self._item(item)
        if status.state is WatchState.BACKING_OFF and status.reason is not None:
            ending, detail = status.reason, None if status.error is None else str(status.error)
            self._note(lambda: self._output.ended(ending, detail))
            self._subscribed = False
        self._note(lambda: self._output.state(status))

    def _event(self, event: Event) -> None:
        self._output.event(event)
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._backlog.clear()
                self._enough.cancel()

    def _note(self, show: Callable[[], None]) -> None:
        if not self._enough.cancel_called:
            self._backlog.append(show)
            self._noted.set()

    async def _show(self) -> None:
        async with self._showing:
            while self._backlog:
                await room()
                self._backlog.popleft()()

    async def _show_later(self) -> None:
        while True:
            await self._noted.wait()
            self._noted = anyio.Event()
            await self._show()

    async def _keep_up(self) -> None:
        """The filter follows the list; each Resync is another look at it."""
        delay = FIRST_RETRY
        while True:
            await self._list_changed.wait()
            self._list_changed = anyio.Event()
            try:
                await self._widen()
                delay = FIRST_RETRY
            except (HarkenError, TimeoutError) as error:
                if isinstance(error, ConnectionLost) or self._watch.state is WatchState.REFUSED:
                    continue  # the next Resync, if any, comes back to it
                self._output.warning(f"the list of resources could not be followed ({error}); trying again")
                await anyio.sleep(delay)
                delay = min(delay * 2, LAST_RETRY)
                self._list_changed.set()

    async def _widen(self) -> None:
        """Watch what is listed now."""
        wanted = joined(self._wanted, await list_resources(self._watch))
        if set(wanted.resource_subscriptions) != set(self._watch.wanted.resource_subscriptions):
            await self._watch.update(wanted)
