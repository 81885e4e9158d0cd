"""Options that several commands share, spelled and explained alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import click

__all__ = ["check_token", "host_option", "is_url", "json_option", "perhaps", "port_option", "token_option"]

_ADDRESS = re.compile(r"localhost(?=[:/]|$)|\d+(\.\d+){3}(?=[:/]|$)|\[[0-9a-fA-F:.]+\]|[\w.-]+:\d")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def check_token(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """A token that a header can carry."""
    if value is not None and not re.fullmatch(r"[!-~]+", value):
        raise click.BadParameter("a token is made of visible ASCII characters, without spaces")
    return value


def is_url(text: str) -> bool:
    """Whether `text` is a URL that a server can have."""
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def perhaps(text: str) -> str:
    """`; did you mean http://…?` where `text` is a URL but for its beginning, else nothing."""
    url = f"http://{text}"
    return f"; did you mean {url}?" if _ADDRESS.match(text) and is_url(url) else ""


def host_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--host`."""
    return click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="The address to serve at; 0.0.0.0 means all of this machine's.",
    )(function)


def port_option(default: int) -> Decorator:
    """`--port`."""
    return click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=default,
        show_default=True,
        help="The port to serve at; 0 picks a free one.",
    )


def json_option(what: str) -> Decorator:
    """`--json`, for machines: one object a line on stdout."""
    return click.option("--json", "as_json", is_flag=True, help=f"For programs: {what}.")


def token_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--token`."""
    return click.option(
        "--token",
        envvar="HARKEN_TOKEN",
        metavar="TOKEN",
        callback=check_token,
        help="The bearer token to show. Also read from HARKEN_TOKEN, which keeps it out of the list of "
        "processes.",
    )(function)
