"""The commands, each in a module of its own that is imported when it is called."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from typing import TextIO

import click

from harken.cli.exits import Exit
from harken.version import __version__

__all__ = ["harken", "run"]

COMMANDS = {
    "serve": "Serve a folder as a live MCP server.",
    "listen": "Listen to an MCP server and show what changes.",
    "hub": "Run a hub that others listen at and publish to.",
    "publish": "Publish an event to a hub.",
}


class _Lazy(click.Group):
    """A group whose commands are imported when they are called: `harken.cli.<name>`, attribute `<name>`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"harken.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="harken")
def harken() -> None:
    """Subscriptions and notifications for MCP: serve, listen, publish.

    \b
    Try it, in two terminals:
      harken serve .
      harken listen http://127.0.0.1:8765/mcp --all
    then edit a file in this folder.

    \b
    Or without a folder, in three:
      harken hub
      harken listen http://127.0.0.1:8766/mcp --tools
      harken publish tools_list_changed

    `harken COMMAND --help` tells the rest, with examples.
    """


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line, by default this process's own, and returns the exit code."""
    stderr: TextIO | None = sys.stderr
    if stderr is None:  # closed (`2>&-`): what is meant for it would go to stdout, or fail
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # any URI can be shown, whatever the encoding
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        # A command returns its exit code, or None where it is done.
        code = harken.main(arguments, prog_name="harken", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return int(code or Exit.ENDED)
