"""The client's two front doors: `listen()` is one subscription, `connect()` one connection for several.

One stream, faithful to the wire: what ends it is told, and whether to listen again is the caller's decision.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.abc

from harken.client.channel import StreamConnection, connect_unix
from harken.client.connection import CLIENT_INFO, Connection, Options
from harken.client.stdio import StdioConnection
from harken.client.subscription import Subscription
from harken.core.filters import Filter
from harken.core.sse import DEFAULT_MAX_EVENT_BYTES

if TYPE_CHECKING:
    import httpx2

    from harken.client.http import Token

__all__ = ["Target", "connect", "listen"]

Target = str | Sequence[str] | os.PathLike[str] | anyio.abc.ByteStream
"""Where a server is: a URL, a command with its arguments (stdio), a Unix socket's path, a byte stream."""


def connect(
    target: Target,
    *,
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    http_client: httpx2.AsyncClient | None = None,
    client_info: Mapping[str, object] | None = None,
    ack_timeout: float | None = 30.0,
    max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
    on_keep_alive: Callable[[], object] | None = None,
    stderr: Callable[[str], object] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Connection:
    """A connection to `target`, to be entered with `async with`.

    - `token`: a bearer token, or an async callable that brings one for each request. HTTP only.
    - `headers`: more headers for each request. HTTP only.
    - `http_client`: an `httpx2.AsyncClient` of your own, which stays yours to close. Its read timeout ends no
      subscription; where its pool is full, PoolFull says so. HTTP only.
    - `client_info`: the `name` and `version` that the server is told.
    - `ack_timeout`: how long a listen waits for its acknowledgment, in seconds (clause R26); None for ever.
    - `max_event_bytes`: the size over which a message from the server is not read (field case F24).
    - `on_keep_alive`: called for each keep-alive that comes on a subscription.
    - `stderr`: takes the lines that the server writes there, which otherwise go to this process's own; `env`
      and `cwd`: the server's environment (this process's own where None) and folder. stdio only.

    Raises ValueError for a target, or a combination, that makes no sense. Entering raises ConnectionLost
    where the server cannot be started or reached (over HTTP the first request finds that out).
    """
    options = Options(
        client_info=client_info or CLIENT_INFO,
        ack_timeout=ack_timeout,
        max_event_bytes=max_event_bytes,
        on_keep_alive=on_keep_alive,
    )
    if isinstance(target, str):
        return _connect_http(target, options, token, headers, http_client)
    if not (token is None and headers is None and http_client is None):
        raise ValueError("token, headers and http_client are for servers that are reached by a URL")
    if isinstance(target, os.PathLike):
        path = target
        return StreamConnection(lambda: connect_unix(path), options)
    if isinstance(target, anyio.abc.ByteStream):
        stream = target
        return StreamConnection(lambda: _already(stream), options)
    command = [os.fspath(part) for part in target]
    if not command:
        raise ValueError("the command is empty: give the program and its arguments")
    return StdioConnection(command, options, env=env, cwd=cwd, stderr=stderr)


@asynccontextmanager
async def listen(
    target: Target,
    wanted: Filter | None = None,
    *,
    tools_list_changed: bool = False,
    prompts_list_changed: bool = False,
    resources_list_changed: bool = False,
    resource_subscriptions: Collection[str] = (),
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    http_client: httpx2.AsyncClient | None = None,
    client_info: Mapping[str, object] | None = None,
    ack_timeout: float | None = 30.0,
    max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
    on_keep_alive: Callable[[], object] | None = None,
    stderr: Callable[[str], object] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> AsyncIterator[Subscription]:
    """One subscription on a connection of its own: `connect()` and `Connection.listen()` in one.

    The arguments and errors are theirs. Leaving ends the subscription and closes the connection.
    """
    connection = connect(
        target,
        token=token,
        headers=headers,
        http_client=http_client,
        client_info=client_info,
        ack_timeout=ack_timeout,
        max_event_bytes=max_event_bytes,
        on_keep_alive=on_keep_alive,
        stderr=stderr,
        env=env,
        cwd=cwd,
    )
    async with (
        connection,
        connection.listen(
            wanted,
            tools_list_changed=tools_list_changed,
            prompts_list_changed=prompts_list_changed,
            resources_list_changed=resources_list_changed,
            resource_subscriptions=resource_subscriptions,
        ) as subscription,
    ):
        yield subscription


def _connect_http(
    url: str,
    options: Options,
    token: Token | None,
    headers: Mapping[str, str] | None,
    http_client: httpx2.AsyncClient | None,
) -> Connection:
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"not a URL of http or https: {url[:80]!r} (a command is given as a list)")
    from harken.client.http import HTTPConnection

    return HTTPConnection(url, options, token=token, headers=headers, http_client=http_client)


async def _already(stream: anyio.abc.ByteStream) -> anyio.abc.ByteStream:
    return stream
