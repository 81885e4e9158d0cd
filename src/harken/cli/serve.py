"""`harken serve`: a folder as a live MCP server."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from harken.cli.exits import Exit
from harken.cli.options import host_option, json_option, port_option
from harken.errors import InvalidURI
from harken.server.hub import Hub
from harken.server.limits import Limits
from harken.sources.files import Files
from harken.sources.folder import Folder

__all__ = ["serve"]

INSTRUCTIONS = (
    "The files of a folder, as resources. Subscribe to resourcesListChanged to hear of files that come, go "
    "or are renamed, and name URIs in resourceSubscriptions to hear when those files change."
)
# A listener may name every file of a large folder in one filter.
LIMITS = Limits(max_uris=100_000, max_body=16 * 1024 * 1024)


@click.command
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@host_option
@port_option(8765)
@click.option("--stdio", is_flag=True, help="Serve on stdin and stdout instead, until the input ends.")
@click.option(
    "--exclude",
    metavar="GLOB",
    multiple=True,
    help="Leave out what matches; may be repeated. '*.log' and 'node_modules' mean a name at any depth, "
    "'docs/*.pdf' a path below DIR ('*' matches slashes too), 'build/' folders only.",
)
@click.option(
    "--hidden",
    is_flag=True,
    help="Serve hidden files too: names that begin with a dot ('.git' among them), and what editors leave "
    "beside a file ('notes.md~').",
)
@click.option(
    "--base-uri",
    metavar="URI",
    help="The URI below which the files appear, such as notes:/// or https://notes.example/. By default "
    "the folder's own file:// URI.",
)
@json_option('print {"type":"ready","url":…} on stdout instead of the URL on stderr')
def serve(
    folder: str,
    host: str,
    port: int,
    stdio: bool,
    exclude: tuple[str, ...],
    hidden: bool,
    base_uri: str | None,
    as_json: bool,
) -> int:
    """Serve the files of DIR as MCP resources, and tell every listener at once when they change.

    A file that is edited is told as resources/updated; one that is added, removed or renamed as
    resources/list_changed, and as updated to who named it. DIR itself may be removed and come back.

    The first line on stderr is the URL. Ctrl-C ends every stream gracefully and exits with 0; a second Ctrl-C
    ends at once.

    \b
    Examples:
      harken serve .
      harken serve ~/notes --exclude '*.log' --exclude node_modules
      harken listen http://127.0.0.1:8765/mcp --all

    \b
    As a program that an MCP client starts:
      harken serve ~/notes --stdio
      harken listen --all -- harken serve ~/notes --stdio

    Nothing outside DIR can be read: symbolic links in it are neither listed nor followed. Whoever reaches the
    port can read the files, so think before you pass another --host. Files of more than 50 MiB are listed and
    watched, and can't be read.
    """
    if stdio and as_json:
        raise click.UsageError("--stdio speaks the protocol on stdout and nothing else; leave out --json")
    try:
        source = Folder(folder, base_uri=base_uri, hidden=hidden, exclude=exclude)
    except InvalidURI as error:
        raise click.BadParameter(str(error), param_hint="--base-uri") from error
    hub = Hub(
        name="harken serve",
        supports=source.supports,
        methods=Files(source).methods,
        instructions=INSTRUCTIONS,
        limits=LIMITS,
    )
    with source.watching(hub.publish_from_thread):
        if stdio:
            asyncio.run(hub.serve_stdio())
            return Exit.ENDED
        return _serve_http(hub, source, host, port, as_json)


def _serve_http(hub: Hub, source: Folder, host: str, port: int, as_json: bool) -> int:
    from harken.gateway.runner import run_app

    label = f"serving {_printable(source.root)}; Ctrl-C ends"
    return run_app(hub.asgi(), hub, host, port, as_json=as_json, label=label)


def _printable(path: str) -> str:
    """A path that stderr takes, whatever bytes and encoding there are."""
    encoding = sys.stderr.encoding or "utf-8"
    return os.fsencode(path).decode("utf-8", "backslashreplace").encode(encoding, "replace").decode(encoding)
