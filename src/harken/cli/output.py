"""What `harken listen` shows: lines for people, with colours on a terminal, or JSON lines for programs.

The names in the JSON lines are a contract: `ack` (`honored`, `unsupported`, `subscriptionId`), `event`
(`event`, `uri`), `ended` (`ending`), `error` (`message`), and with `--follow` `resync` and `state` (`state`,
`reason`, `delay`), each with `time`.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import select
import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

import anyio

from harken.cli.exits import EXIT_OF, Exit
from harken.client.status import WatchStatus
from harken.core.demux import Ending
from harken.core.events import Event, Kind, ResourceUpdated
from harken.core.filters import KIND_OF, Filter
from harken.core.wire import RequestId
from harken.gateway.entries import entry_of

__all__ = ["JSONLines", "Lines", "Output", "hush", "open_output", "reader_gone", "room"]

SENTENCES = {
    Ending.COMPLETED: "the server ended the stream",
    Ending.CANCELLED_BY_SERVER: "the server cancelled the stream",
    Ending.ERROR_AFTER_ACK: "the server gave the stream up",
    Ending.LOST: "the connection is lost",
    Ending.REFUSED: "the server refused",
    Ending.NEVER_ACKNOWLEDGED: "the server ended the stream without an acknowledgment",
    Ending.NOTHING_HONORED: "the server offers nothing of what was asked for",
    Ending.TIMEOUT: "time is up",
    Ending.PROTOCOL_ERROR: "the server broke the protocol",
    Ending.CLOSED: "stopped listening",
}
_NAMES = {
    Kind.TOOLS_LIST_CHANGED: "tools",
    Kind.PROMPTS_LIST_CHANGED: "prompts",
    Kind.RESOURCES_LIST_CHANGED: "resources",
}


class Output(abc.ABC):
    """One line for each thing that happens; each is flushed, so that a pipe sees it at once."""

    @abc.abstractmethod
    def ack(self, honored: Filter, unsupported: Filter, subscription_id: RequestId) -> None:
        """A stream is open: what the server agreed to, and what not (clause R11)."""

    @abc.abstractmethod
    def resync(self) -> None:
        """A stream is open, so that everything may have changed (decision D12)."""

    @abc.abstractmethod
    def state(self, status: WatchStatus) -> None:
        """What the watch is doing has changed."""

    @abc.abstractmethod
    def event(self, event: Event) -> None:
        """Something may have changed."""

    @abc.abstractmethod
    def ended(self, ending: Ending, detail: str | None) -> None:
        """The end, and more about it where there is more to say."""

    @abc.abstractmethod
    def fault(self, message: str) -> None:
        """A fault in harken itself; a traceback follows on stderr."""

    @abc.abstractmethod
    def keep_alive(self, quiet: float) -> None:
        """A keep-alive came, so many seconds after the one before it, or after the ack (clause H11)."""

    @abc.abstractmethod
    def warning(self, message: str) -> None:
        """Something went wrong, and listening goes on."""


class JSONLines(Output):
    """For programs: one object a line on stdout, and nothing else there."""

    def ack(self, honored: Filter, unsupported: Filter, subscription_id: RequestId) -> None:
        self._write(
            "ack",
            honored=honored.to_wire(),
            unsupported=unsupported.to_wire(),
            subscriptionId=subscription_id,
        )

    def resync(self) -> None:
        self._write("resync")

    def state(self, status: WatchStatus) -> None:
        delay = None if status.delay is None else round(status.delay, 3)
        self._write("state", state=status.state, reason=status.reason, delay=delay)

    def event(self, event: Event) -> None:
        self._write("event", **entry_of(event))

    def ended(self, ending: Ending, detail: str | None) -> None:
        if EXIT_OF[ending] is not Exit.ENDED:
            self._write("error", message=_sentence(ending, detail))
        self._write("ended", ending=ending)

    def fault(self, message: str) -> None:
        self._write("error", message=f"a fault in harken: {message}")

    def keep_alive(self, quiet: float) -> None:
        print(f"keep-alive after {quiet:.1f} s", file=sys.stderr, flush=True)

    def warning(self, message: str) -> None:
        print(f"warning: {printable(message)}", file=sys.stderr, flush=True)

    def _write(self, kind: str, **members: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print(json.dumps({"type": kind, **members, "time": now}), flush=True)


class Lines(Output):
    """For people: what goes well on stdout, the rest on stderr.

    `write` takes a line's time, its text, a style of rich's, and whether it belongs on stderr.
    """

    def __init__(self, write: Callable[[datetime, str, str, bool], None]) -> None:
        self._write = write
        self._unsupported = Filter()

    def ack(self, honored: Filter, unsupported: Filter, subscription_id: RequestId) -> None:
        self._say(f"listening for {_described(honored) or 'nothing'}", "bold")
        if unsupported and unsupported != self._unsupported:  # told once, however often it listens anew
            self._say(f"not honored by the server: {_enumerated(unsupported)}", "yellow")
        self._unsupported = unsupported

    def resync(self) -> None:
        self._say("everything may have changed", "cyan")

    def state(self, status: WatchStatus) -> None:
        again = "" if status.delay is None else f", next attempt in {status.delay:.1f} s"
        self._say(f"state: {status.state}{again}", "dim")

    def event(self, event: Event) -> None:
        if isinstance(event, ResourceUpdated):
            self._say(f"updated {event.uri}", "cyan")
        else:
            self._say(f"the list of {_NAMES[KIND_OF[type(event)]]} changed", "green")

    def ended(self, ending: Ending, detail: str | None) -> None:
        failed = EXIT_OF[ending] is not Exit.ENDED
        self._say(f"ended ({ending}): {_sentence(ending, detail)}", "red" if failed else "bold", failed)

    def fault(self, message: str) -> None:
        self._say(f"a fault in harken, please report it: {message}", "red", True)

    def keep_alive(self, quiet: float) -> None:
        self._say(f"keep-alive after {quiet:.1f} s", "dim")

    def warning(self, message: str) -> None:
        self._say(f"warning: {message}", "yellow", True)

    def _say(self, text: str, style: str, failed: bool = False) -> None:
        self._write(datetime.now().astimezone(), printable(text), style, failed)


def open_output(as_json: bool) -> Output:
    """JSON lines, or lines with colours where stdout is a terminal, or plain ones."""
    if as_json:
        return JSONLines()
    stdout: TextIO | None = sys.stdout
    return Lines(_rich_writer() if stdout is not None and stdout.isatty() else _write_plain)


def _write_plain(time: datetime, text: str, _style: str, failed: bool) -> None:
    line = f"{time.isoformat(timespec='seconds')}  {text}"
    print(line, file=sys.stderr if failed else sys.stdout, flush=True)


def _rich_writer() -> Callable[[datetime, str, str, bool], None]:
    from rich.console import Console
    from rich.text import Text

    consoles = {failed: Console(stderr=failed, soft_wrap=True) for failed in (False, True)}

    def write(time: datetime, text: str, style: str, failed: bool) -> None:
        line = Text.assemble((f"{time:%H:%M:%S}  ", "dim"), (text, style))
        consoles[failed].print(line)

    return write


def printable(text: str) -> str:
    """`text` on one line, without what a terminal would obey: some of it was written by the server."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _sentence(ending: Ending, detail: str | None) -> str:
    if detail is None or ending is Ending.LOST:  # what it says then is a sentence of its own
        return detail or SENTENCES[ending]
    return f"{SENTENCES[ending]}: {detail}"


def _described(wanted: Filter) -> str:
    """`tools, resources and 3 URIs`."""
    words = [name for kind, name in _NAMES.items() if kind in wanted.kinds]
    count = len(wanted.resource_subscriptions)
    if count == 1:
        words.append(wanted.resource_subscriptions[0])
    elif count:
        words.append(f"{count} URIs")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _enumerated(wanted: Filter) -> str:
    names = [name for kind, name in _NAMES.items() if kind in wanted.kinds]
    return ", ".join([*names, *wanted.resource_subscriptions])


async def room() -> None:
    """Until stdout takes a line; meanwhile the loop goes on, and what comes in collapses."""
    descriptor = _descriptor()
    if descriptor is not None and not select.select([], [descriptor], [], 0)[1]:
        await anyio.wait_writable(descriptor)


async def reader_gone() -> None:
    """Until whoever reads stdout through a pipe has left, as `head -1` does; else for ever."""
    descriptor = _descriptor()
    if descriptor is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        await anyio.wait_readable(descriptor)  # all that a pipe's writing end can report is an error
    else:
        await anyio.sleep_forever()


def _descriptor() -> int | None:
    """That of stdout, None where it is closed (`>&-`) or can't be waited for."""
    stdout: TextIO | None = sys.stdout
    return None if stdout is None or os.name != "posix" else stdout.fileno()


def hush() -> None:
    """Nobody reads stdout any more: keeps Python from flushing into the broken pipe at its exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
