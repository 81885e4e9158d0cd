"""`harken hub`: the standalone hub."""

from __future__ import annotations

import click

from harken.cli.options import check_token, host_option, json_option, port_option

__all__ = ["hub"]


@click.command
@host_option
@port_option(8766)
@click.option(
    "--publish-token",
    metavar="TOKEN",
    envvar="HARKEN_PUBLISH_TOKEN",
    callback=check_token,
    help="What publishers must show as a bearer token. Needed unless --host is a loopback address; without "
    "it, programs on this machine may publish. Also read from HARKEN_PUBLISH_TOKEN, which keeps it out of "
    "the list of processes.",
)
@json_option('print {"type":"ready","url":…} on stdout instead of the URL on stderr')
def hub(host: str, port: int, publish_token: str | None, as_json: bool) -> int:
    """Run a hub: MCP clients listen at /mcp, programs POST events to /publish.

    The first line on stderr is the URL to listen at. Ctrl-C ends every stream gracefully and exits with 0; a
    second Ctrl-C ends at once.

    \b
    Examples:
      harken hub
      harken listen http://127.0.0.1:8766/mcp --tools
      harken publish tools_list_changed
      harken publish resource_updated file:///srv/report.csv

    \b
    The same without harken on the publishing side:
      curl http://127.0.0.1:8766/publish -H 'Content-Type: application/json' \\
           -d '{"event": "resource_updated", "uri": "file:///srv/report.csv"}'

    \b
    For other machines too:
      HARKEN_PUBLISH_TOKEN=… harken hub --host 0.0.0.0

    POST /publish takes one event or a list of them: tools_list_changed, prompts_list_changed,
    resources_list_changed, and resource_updated with a uri. It answers 202 with how many were accepted, or
    400 naming the bad entry, and then accepts none.
    """
    from harken.gateway.app import build
    from harken.gateway.runner import run_app

    try:
        built, app = build(host, publish_token)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return run_app(app, built, host, port, as_json=as_json, label="Ctrl-C ends the hub")
