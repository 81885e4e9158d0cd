"""`harken publish`: an event to a hub."""

from __future__ import annotations

from urllib.parse import urlsplit

import click
import httpx2

from harken.cli.exits import Exit
from harken.cli.options import is_url, perhaps, token_option
from harken.core.events import Event
from harken.gateway.entries import EVENT_NAMES, InvalidEntry, entry_of, make_event
from harken.gateway.loopback import is_loopback

__all__ = ["publish"]

TIMEOUT = 10.0  # seconds for the whole exchange's each step


class Failure(Exception):
    """The events did not get there; `code` is the exit code."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


@click.command
@click.argument("event", type=click.Choice(EVENT_NAMES), metavar="EVENT")
@click.argument("uris", metavar="[URI]...", nargs=-1)
@click.option(
    "--hub",
    envvar="HARKEN_HUB",
    default="http://127.0.0.1:8766",
    show_default=True,
    metavar="URL",
    help="The hub's base URL. Also read from HARKEN_HUB.",
)
@token_option
def publish(event: str, uris: tuple[str, ...], hub: str, token: str | None) -> int:
    """Tell everyone who listens at a hub that something may have changed.

    EVENT is tools_list_changed, prompts_list_changed, resources_list_changed, or resource_updated, which
    takes one URI or several. Publishing once too often does no harm: an event says "fetch it again".

    \b
    Examples:
      harken publish tools_list_changed
      harken publish resource_updated file:///srv/report.csv file:///srv/totals.csv
      HARKEN_HUB=https://hub.example HARKEN_TOKEN=… harken publish resources_list_changed

    \b
    Exit codes: 0 accepted, 2 usage, 3 the hub refused, 4 no connection to the hub,
    5 the hub did not answer in time.
    """
    events = _events(event, uris)
    try:
        accepted = send(endpoint_of(hub), events, token)
    except Failure as failure:
        click.echo(f"error: {failure}", err=True)
        return failure.code
    click.echo(f"accepted: {accepted}")
    return Exit.ENDED


def _events(name: str, uris: tuple[str, ...]) -> list[Event]:
    if name == "resource_updated" and not uris:
        raise click.UsageError("resource_updated needs at least one URI: harken publish resource_updated URI")
    try:
        return [make_event(name, uri) for uri in uris or (None,)]
    except InvalidEntry as error:
        raise click.UsageError(str(error)) from error


def endpoint_of(hub: str) -> str:
    """Where to POST; the URLs of the hub's two paths do as well as the base URL.

    Raises click.UsageError for what is no URL.
    """
    if not is_url(hub):
        problem = f"--hub must be a URL such as http://127.0.0.1:8766, not {hub!r}"
        raise click.UsageError(f"{problem}{perhaps(hub)}")
    parts = urlsplit(hub)
    path = parts.path.rstrip("/").removesuffix("/mcp").removesuffix("/publish")
    return parts._replace(path=f"{path}/publish", query="", fragment="").geturl()


def send(endpoint: str, events: list[Event], token: str | None) -> int:
    """POSTs the events and returns how many were accepted. Raises Failure."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        answer = httpx2.post(
            endpoint,
            json=[entry_of(event) for event in events],
            headers=headers,
            timeout=TIMEOUT,
            # The environment's proxy leads nowhere from a machine to itself.
            trust_env=not is_loopback(urlsplit(endpoint).hostname or ""),
        )
    except httpx2.TimeoutException as error:
        raise Failure(Exit.TIMEOUT, f"{endpoint} did not answer within {TIMEOUT:.0f} s") from error
    except httpx2.ConnectError as error:
        raise Failure(
            Exit.LOST, f"cannot reach {endpoint} ({error}); is the hub running? `harken hub` starts one"
        ) from error
    except httpx2.TransportError as error:
        raise Failure(
            Exit.LOST,
            f"the connection to {endpoint} broke before its answer ({error}); publishing again does no harm",
        ) from error
    return _accepted(endpoint, answer)


def _accepted(endpoint: str, answer: httpx2.Response) -> int:
    try:
        body = answer.json()
    except ValueError:
        body = None
    told = body if isinstance(body, dict) else {}
    if answer.status_code == 202 and isinstance(told.get("accepted"), int):
        return int(told["accepted"])
    reason = told.get("error") or f"{endpoint} does not answer like a harken hub; is --hub right?"
    hint = "; pass --token or set HARKEN_TOKEN" if answer.status_code == 401 else ""
    raise Failure(Exit.REFUSED, f"refused with {answer.status_code}: {reason}{hint}")
