"""`harken listen`: attach to a server and show what changes."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import click

from harken.cli.exits import EXIT_OF, Exit
from harken.cli.follow import Follower
from harken.cli.options import is_url, json_option, perhaps, token_option
from harken.cli.output import Output, hush, open_output, reader_gone
from harken.cli.stay import Stayer
from harken.client.listen import connect
from harken.client.status import WatchStatus
from harken.client.watch import Watch, watch
from harken.core.demux import Ending
from harken.core.filters import Filter
from harken.errors import (
    ConnectionLost,
    HarkenError,
    InvalidURI,
    NeverAcknowledged,
    RPCError,
)

__all__ = ["listen"]

_THE_LAST = "that was the last event asked for"


class _Command(click.Command):
    """What follows `--` is a command of the user's, with options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[__name__] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=_Command)
@click.argument("target", required=False, metavar="URL | -- COMMAND [ARG]...")
@click.option("--tools", is_flag=True, help="Hear when the list of tools changes.")
@click.option("--prompts", is_flag=True, help="Hear when the list of prompts changes.")
@click.option("--resources", is_flag=True, help="Hear when the list of resources changes.")
@click.option(
    "--resource",
    "uris",
    metavar="URI",
    multiple=True,
    help="Hear when this resource changes; may be repeated.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All of that: the three lists, and every resource that the server lists, new ones too.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Stay: listen again after every end, with back-off, and show each change of the state.",
)
@json_option("print JSON lines, one object each, of type ack, event, ended or error")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N events.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End after so many seconds, with exit code 5.",
)
@token_option
@click.option(
    "-v", "--verbose", is_flag=True, help="Show keep-alives too, and how long it was quiet before each."
)
@click.pass_context
def listen(
    context: click.Context,
    target: str | None,
    tools: bool,
    prompts: bool,
    resources: bool,
    uris: tuple[str, ...],
    everything: bool,
    follow: bool,
    as_json: bool,
    count: int | None,
    timeout: float | None,
    token: str | None,
    verbose: bool,
) -> int:
    """Listen to an MCP server and show what changes, until Ctrl-C or until the server ends the stream.

    The server is a URL, or a command that speaks MCP on its stdin and stdout. A change means "fetch it
    again"; what has changed is not said.

    \b
    Examples:
      harken listen http://127.0.0.1:8765/mcp --all
      harken listen https://example.com/mcp --tools --prompts
      harken listen http://127.0.0.1:8765/mcp --resource file:///srv/report.csv --count 1
      harken listen --all -- harken serve --stdio .
      harken listen https://example.com/mcp --tools --follow
      harken listen http://127.0.0.1:8766/mcp --tools --json | jq .event

    \b
    With --json each line has a type and a time:
      {"type":"ack","honored":{…},"unsupported":{…},"subscriptionId":1,"time":"…"}
      {"type":"event","event":"resource_updated","uri":"file:///…","time":"…"}
      {"type":"ended","ending":"completed","time":"…"}
      {"type":"error","message":"…","time":"…"}
    and with --follow, where ended comes for each stream:
      {"type":"resync","time":"…"}
      {"type":"state","state":"backing_off","reason":"lost","delay":0.7,"time":"…"}

    \b
    Exit codes: 0 the stream ended gracefully or N events were seen (the line
    "ended" tells which), 1 internal fault, 2 usage, 3 refused by the server,
    4 connection lost, 5 time is up, 130 Ctrl-C, 143 SIGTERM.
    """
    wanted = _filter(tools, prompts, resources, uris, everything)
    server = _target(target, context.meta.get(__name__))
    if token is not None and not isinstance(server, str):
        if context.get_parameter_source("token") is not click.core.ParameterSource.ENVIRONMENT:
            raise click.UsageError(
                "--token goes with a URL; a command gets what it needs by its own arguments"
            )
        token = None
    session = _Session(open_output(as_json), wanted, everything, follow, count, timeout, verbose)
    return anyio.run(session.run, server, token)


def _filter(tools: bool, prompts: bool, resources: bool, uris: Sequence[str], everything: bool) -> Filter:
    try:
        wanted = Filter(tools or everything, prompts or everything, resources or everything, tuple(uris))
    except InvalidURI as error:
        raise click.UsageError(f"--resource: {error}") from error
    if not wanted:
        raise click.UsageError(
            "say what to listen for: --all, or any of --tools, --prompts, --resources, --resource URI"
        )
    return wanted


def _target(url: str | None, command: Sequence[str] | None) -> str | Sequence[str]:
    if url is not None and command is not None:
        raise click.UsageError("pass a URL, or a command after --, not both")
    if command is not None:
        if not command:
            raise click.UsageError("the command is missing: harken listen --all -- COMMAND [ARG]...")
        if shutil.which(command[0]) is None:
            raise click.UsageError(f"the command {command[0]!r} was not found")
        return command
    if url is None:
        raise click.UsageError("say where to listen: a URL, or a command after --")
    if not is_url(url):
        command_hint = "; a command comes after --: harken listen --all -- COMMAND"
        raise click.UsageError(f"{url!r} is no URL of http or https{perhaps(url) or command_hint}")
    importlib.import_module("harken.client.http")  # a missing extra is told before anything runs
    return url


@dataclass(slots=True)
class _Session:
    """One run of the command."""

    output: Output
    wanted: Filter
    everything: bool
    follow: bool
    count: int | None
    timeout: float | None
    verbose: bool
    scope: anyio.CancelScope = field(init=False)
    code: int | None = None
    """Set where something else than the stream ended it."""

    async def run(self, server: str | Sequence[str], token: str | None) -> int:
        """The exit code."""
        self.scope = anyio.CancelScope()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_on_signal)
                tasks.start_soon(self._end_without_reader)
                ending = await self._listen(server, token)
                tasks.cancel_scope.cancel()
        except* BrokenPipeError:
            self.code = Exit.ENDED  # `| head -1`: whoever read has seen enough
            hush()
        except* Exception as faults:
            self.output.fault(str(faults.exceptions[0]))
            raise
        return EXIT_OF[ending] if self.code is None else self.code

    async def _listen(self, server: str | Sequence[str], token: str | None) -> Ending:
        ending, detail = Ending.CLOSED, None
        with self.scope:
            try:
                with anyio.fail_after(self.timeout):
                    ending, detail = await self._follow(server, token)
            except (HarkenError, TimeoutError) as error:
                ending, detail = ending_of(error), str(error) or None
        if self.code != Exit.ENDED:  # else nobody reads it
            self.output.ended(ending, detail)
        return ending

    async def _follow(self, server: str | Sequence[str], token: str | None) -> tuple[Ending, str | None]:
        on_keep_alive = _Quiet(self.output).kept_alive if self.verbose else None
        if self.follow:
            ending, error = await self._stay(server, token, on_keep_alive)
            return ending, _THE_LAST if ending is Ending.CLOSED else str(error)
        async with connect(server, token=token, on_keep_alive=on_keep_alive) as connection:
            follower = Follower(
                connection, self.wanted, self.output, everything=self.everything, count=self.count
            )
            ending, error = await follower.run()
        if ending is Ending.CLOSED:
            return ending, _THE_LAST
        return ending, None if error is None else str(error)

    async def _stay(
        self, server: str | Sequence[str], token: str | None, on_keep_alive: Callable[[], None] | None
    ) -> tuple[Ending, HarkenError | None]:
        def open_watch(on_state: Callable[[WatchStatus], object]) -> Watch:
            return watch(server, self.wanted, token=token, on_keep_alive=on_keep_alive, on_state=on_state)

        return await Stayer(open_watch, self.output, everything=self.everything, count=self.count).run()

    async def _end_on_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                if self.code is not None:
                    os._exit(128 + number)  # the second one does not wait
                self.code = 128 + number
                self.scope.cancel()

    async def _end_without_reader(self) -> None:
        await reader_gone()
        self.code = Exit.ENDED
        hush()
        self.scope.cancel()


class _Quiet:
    """How long it was quiet before each keep-alive."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last = time.monotonic()

    def kept_alive(self) -> None:
        """One has come (clause H11)."""
        before, self._last = self._last, time.monotonic()
        self._output.keep_alive(self._last - before)


def ending_of(error: Exception) -> Ending:
    """How a stream ended that could not even be opened."""
    return next(
        (ending for kind, ending in _ENDINGS.items() if isinstance(error, kind)), Ending.PROTOCOL_ERROR
    )


_ENDINGS: dict[type[Exception], Ending] = {
    TimeoutError: Ending.TIMEOUT,
    RPCError: Ending.REFUSED,
    NeverAcknowledged: Ending.NEVER_ACKNOWLEDGED,
    ConnectionLost: Ending.LOST,
}
