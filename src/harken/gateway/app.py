"""The standalone hub: `/mcp` to listen at, `/publish` to publish at. Everything of it is built here."""

from __future__ import annotations

from collections.abc import Mapping

from harken.gateway.loopback import is_loopback
from harken.gateway.publish import Publish, respond
from harken.server.asgi import ASGIApp, Receive, Scope, Send
from harken.server.hub import Hub
from harken.server.methods import Handler, Request
from harken.version import __version__

__all__ = ["build"]

_LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


def build(host: str, publish_token: str | None) -> tuple[Hub, ASGIApp]:
    """The hub and its app, to be bound to `host`.

    Raises ValueError where a stranger could publish: off loopback a token is needed.
    """
    if publish_token is None and not is_loopback(host):
        raise ValueError(
            f"{host} can be reached from other machines, so publishing needs a token: "
            "set HARKEN_PUBLISH_TOKEN or pass --publish-token, or leave --host at 127.0.0.1"
        )
    methods = {method: _empty(key) for method, key in _LISTS.items()}
    hub = Hub(name="harken hub", version=__version__, methods=methods)
    publish = Publish(hub, publish_token, any_host=not is_loopback(host))
    return hub, _route({"/mcp": hub.asgi(), "/publish": publish})


def _empty(key: str) -> Handler:
    """A list method without entries, so that a client that refetches meets no error."""

    async def handler(request: Request) -> Mapping[str, object]:
        return {key: [], "ttlMs": 0, "cacheScope": "public"}

    return handler


def _route(apps: Mapping[str, ASGIApp]) -> ASGIApp:
    """One app for each path; the lifespan goes to the hub's."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await apps["/mcp"](scope, receive, send)
        elif (found := apps.get(scope["path"].rstrip("/"))) is not None:
            await found(scope, receive, send)
        else:
            message = "there is nothing at this path; clients listen at /mcp, publishers POST to /publish"
            await respond(send, 404, {"error": message, "paths": list(apps)})

    return app
