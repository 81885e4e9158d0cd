"""Around another app: what goes through untouched, what its discovery says, and whose lifespan runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from harken.core.events import ToolsListChanged
from harken.core.wire import DISCOVER, LISTEN, PROTOCOL_VERSION
from harken.server.hub import Hub
from tests.core.frames import Message, name
from tests.serving import new_hub, no_problems, serving, until
from tests.wire_client import (
    ALL,
    asked,
    connected,
    discovered,
    headers_for,
    listen,
    listening,
    request,
)

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}
EVERY_BIT = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
}


async def tools_only(context: Any, params: Any) -> Any:
    """The list of the low-level server's tools."""
    raise AssertionError("nobody asks")


def inner_apps() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Apps that discover: what of it is the family, and the bits that go with it."""
    return {
        "mcpserver": (MCPServer("inner").streamable_http_app(), EVERY_BIT),
        "tools only": (
            Server("inner", on_list_tools=tools_only).streamable_http_app(),
            {"tools": {"listChanged": True}},
        ),
    }


def answering(status: int, body: bytes = b"no", headers: dict[str, str] | None = None) -> Any:
    """An app that answers each POST alike."""

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(body, status, headers)

    return Starlette(routes=[Route("/mcp", answer, methods=["POST"])])


# -- Discovery


@pytest.mark.clause("R20", "A1", "R3")
@pytest.mark.field("F6", "F8")
@pytest.mark.parametrize("inner", ["mcpserver", "tools only"])
@pytest.mark.parametrize("listen_first", [False, True])
async def test_bits_and_acknowledgment_follow_what_the_app_has(inner: str, listen_first: bool) -> None:
    app, bits = inner_apps()[inner]
    async with serving(new_hub().asgi(app)) as port:
        if not listen_first:
            assert (await discovered(port)).discovered["capabilities"] == bits
        async with listening(port, ALL) as stream:
            families = {
                "toolsListChanged": "tools",
                "promptsListChanged": "prompts",
                "resourcesListChanged": "resources",
                "resourceSubscriptions": "resources",
            }
            honored = {key: ALL[key] for key, family in families.items() if family in bits}
            assert await stream.acknowledged() == honored
        answer = await discovered(port)
        assert answer.discovered["capabilities"] == bits
        assert answer.discovered["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "inner"


@pytest.mark.clause("R20")
@pytest.mark.field("F6")
@pytest.mark.parametrize(
    ("supports", "bits"),
    [
        ([], {"tools": {}, "prompts": {}, "resources": {}}),
        (["toolsListChanged"], {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}),
        (["resourceSubscriptions"], {"tools": {}, "prompts": {}, "resources": {"subscribe": True}}),
        (list(ALL), EVERY_BIT),
    ],
)
async def test_the_bits_are_exactly_what_is_supported(supports: list[str], bits: Message) -> None:
    hub = new_hub(supports=supports)
    async with serving(hub.asgi(MCPServer("inner").streamable_http_app())) as port:
        assert (await discovered(port)).discovered["capabilities"] == bits
        async with listening(port, ALL) as stream:
            assert set(await stream.acknowledged()) == set(supports)


@pytest.mark.clause("D3", "R20")
@pytest.mark.field("F2")
async def test_the_off_switch_takes_the_apps_own_bits_too() -> None:
    hub = new_hub(subscriptions=False)
    async with serving(hub.asgi(MCPServer("inner").streamable_http_app())) as port:
        assert (await discovered(port)).discovered["capabilities"] == {
            "tools": {},
            "prompts": {},
            "resources": {},
        }
        answer = await asked(port, listen(ALL))
        assert (answer.status, answer.error["code"]) == (404, -32601)


@pytest.mark.clause("R20", "A1")
@pytest.mark.parametrize("status", [404, 405, 400, 200])
async def test_an_app_without_discovery_is_spoken_for(status: int) -> None:
    """404 and 405 from what is no MCP server, 400 from one of an older revision without a session."""
    async with serving(new_hub(name="ours").asgi(answering(status))) as port:
        for _ in range(2):
            answer = await discovered(port)
            assert answer.discovered["capabilities"] == EVERY_BIT
            assert answer.discovered["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "ours"
            async with listening(port, ALL) as stream:
                assert await stream.acknowledged() == ALL


@pytest.mark.clause("R20")
@pytest.mark.parametrize("status", [401, 403, 421, 429, 500, 503])
async def test_an_app_that_turns_a_caller_away_is_not_spoken_for(status: int) -> None:
    hub = new_hub()
    app = answering(status, headers={"WWW-Authenticate": "Bearer", "Retry-After": "7"})
    async with serving(hub.asgi(app)) as port:
        for message in (request(DISCOVER), listen(ALL)):
            answer = await asked(port, message)
            assert (answer.status, answer.body) == (status, b"no")
            assert answer.headers["www-authenticate"] == ["Bearer"]
            assert answer.headers["retry-after"] == ["7"]
        assert not hub.streams


@pytest.mark.clause("R20")
async def test_one_bad_request_does_not_change_what_others_are_told() -> None:
    """The app's security refuses a Host, its reader an Accept: neither says what it can do."""
    app, bits = inner_apps()["tools only"]
    async with serving(new_hub().asgi(app)) as port:
        assert (await discovered(port, changes={"Host": "evil.example"})).status == 421
        await discovered(port, changes={"Accept": "text/html"})
        async with listening(port, ALL) as stream:
            assert await stream.acknowledged() == TOOLS
        assert (await discovered(port)).discovered["capabilities"] == bits


@pytest.mark.clause("R24")
@pytest.mark.parametrize("supports", [None, ["toolsListChanged"]])
async def test_the_app_is_asked_for_each_listen_anew(supports: list[str] | None) -> None:
    """One caller whom it lets in says nothing of the next one."""
    app = MCPServer("inner").streamable_http_app()  # takes loopback's names alone
    async with serving(new_hub(supports=supports).asgi(app)) as port:
        async with listening(port, TOOLS) as stream:
            assert await stream.acknowledged() == TOOLS
        foreign = headers_for(LISTEN, {"Host": "evil.example"})
        assert (await asked(port, listen(TOOLS), foreign)).status == 421


@pytest.mark.clause("R20", "A5")
async def test_an_app_that_fails_at_discovery_takes_nothing_with_it() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    async with serving(new_hub().asgi(failing), expected="failed at server/discover") as port:
        for message in (request(DISCOVER), listen(ALL)):
            answer = await asked(port, message)
            assert (answer.status, answer.error["code"]) == (500, -32603)


@pytest.mark.clause("R20")
@pytest.mark.parametrize("versions", [None, 7, "2026-07-28", ["2025-11-25"]])
async def test_an_answer_of_another_shape_is_no_discovery(versions: object) -> None:
    result = {"supportedVersions": versions, "capabilities": []}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
    async with serving(new_hub(name="ours").asgi(answering(200, body=body))) as port:
        assert (await discovered(port)).discovered["capabilities"] == EVERY_BIT


@pytest.mark.clause("R20", "H12")
async def test_an_answer_as_a_stream_is_read_too() -> None:
    result = {
        "supportedVersions": [PROTOCOL_VERSION],
        "capabilities": {"tools": {"x": 1}, "y": 2},
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "public",
    }
    data = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
    body = b": hello\n\nevent: message\ndata: " + data + b"\n\n"
    async with serving(new_hub().asgi(answering(200, body, {"content-type": "text/event-stream"}))) as port:
        answer = await discovered(port)
        assert answer.message["result"]["capabilities"] == {"tools": {"x": 1, "listChanged": True}, "y": 2}


@pytest.mark.clause("R20")
async def test_an_app_that_compresses_is_read_all_the_same() -> None:
    app, bits = inner_apps()["tools only"]
    wrapped = GZipMiddleware(app, minimum_size=1)
    async with serving(new_hub().asgi(wrapped)) as port:
        answer = await discovered(port, changes={"Accept-Encoding": "gzip"})
        assert answer.discovered["capabilities"] == bits


@pytest.mark.clause("D9")
async def test_a_listen_that_waits_for_the_app_is_not_admitted_too_late() -> None:
    """The hub drains while the app is asked what it has: such a stream would never end."""
    hub = new_hub()
    asked_for, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        asked_for.set()
        await go_on.wait()
        await PlainTextResponse("", 404)(scope, receive, send)

    async with serving(hub.asgi(slow), lifespan="off") as port:
        waiting = asyncio.create_task(asked(port, listen(ALL)))
        await asked_for.wait()
        await hub.drain()
        go_on.set()
        answer = await waiting
        assert (answer.status, answer.error["data"]["reason"]) == (503, "shutting_down")
        assert not hub.streams


# -- Whatever else goes through


@asynccontextmanager
async def echoing(**options: Any) -> AsyncIterator[tuple[Hub, int]]:
    """A hub around an app that says what reached it."""

    async def echo(request: Request) -> Response:
        body = await request.body()
        told = {
            "method": request.method,
            "path": request.url.path,
            "size": len(body),
            "sum": sum(body),
            "session": request.headers.get("mcp-session-id"),
            "param": request.headers.get("mcp-param-region"),
            "left": await request.is_disconnected(),
        }
        return JSONResponse(told, headers={"mcp-session-id": "from-the-app"})

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    app = Starlette(routes=[Route("/{path:path}", echo, methods=methods)])
    hub = new_hub(**options)
    async with serving(hub.asgi(app)) as port:
        yield hub, port


@pytest.mark.clause("H1")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/mcp", "/other"])
async def test_everything_else_reaches_the_app(method: str, path: str) -> None:
    headers = [
        ("Host", "x"),
        ("Mcp-Session-Id", "s-1"),
        ("Origin", "https://far.example"),
        ("Mcp-Param-Region", "eu"),
    ]
    async with echoing() as (_, port):
        answer = await asked(port, b"abc", headers, path, method)
        told = json.loads(answer.body)
        assert told == {
            "method": method, "path": path, "size": 3, "sum": sum(b"abc"), "session": "s-1", "param": "eu",
            "left": False,
        }  # fmt: skip
        assert answer.headers["mcp-session-id"] == ["from-the-app"]


@pytest.mark.clause("H1")
async def test_a_head_request_reaches_the_app() -> None:
    async with echoing() as (_, port), connected(port) as connection:
        await connection.send(b"", [("Host", "x")], "HEAD")
        assert (await connection.head()).headers["mcp-session-id"] == ["from-the-app"]


@pytest.mark.clause("H1")
@pytest.mark.parametrize(
    "body",
    [
        json.dumps(request("tools/list")).encode(),
        json.dumps([listen(ALL)]).encode(),
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b"\xff\x00" * 100,
        b"[" * 100_000,
        b"",
        b"a" * 1_048_575,
        b"a" * 1_048_577,
        b"ab" * 5_000_000,
    ],
    ids=lambda body: f"{len(body)} bytes",
)  # fmt: skip
async def test_a_post_that_is_not_ours_reaches_the_app_whole(body: bytes) -> None:
    async with echoing() as (_, port):
        answer = await asked(port, body, [("Host", "x")])
        told = json.loads(answer.body)
        assert (told["method"], told["size"], told["sum"]) == ("POST", len(body), sum(body))


@pytest.mark.clause("H4")
@pytest.mark.parametrize(
    ("header", "method"),
    [
        ("tools/list", LISTEN),
        ("tools/list", DISCOVER),
        (LISTEN, "tools/list"),
        (DISCOVER, LISTEN),
        (None, LISTEN),
    ],
)
async def test_who_names_one_method_and_calls_another_reaches_nobody(header: str | None, method: str) -> None:
    async with echoing() as (_, port):
        answer = await asked(port, request(method), headers_for(method, {"Mcp-Method": header}))
        assert (answer.status, answer.error["code"]) == (400, -32020)


@pytest.mark.clause("H8", "H14")
async def test_for_what_is_ours_the_origin_counts() -> None:
    async with echoing() as (_, port):
        headers = headers_for(LISTEN, {"Origin": "https://far.example"})
        assert (await asked(port, listen(ALL), headers)).status == 403
        near = {"Origin": "http://localhost:3000"}
        answer = await asked(port, listen({}), headers_for(LISTEN, {**near, "Content-Type": "text/plain"}))
        assert answer.status == 415
        assert answer.headers["access-control-allow-origin"] == [near["Origin"]]


@pytest.mark.clause("H14")
@pytest.mark.parametrize("status", [200, 401, 404])
async def test_what_the_app_answers_may_be_read_by_the_page_that_asked(status: int) -> None:
    app = MCPServer("inner").streamable_http_app() if status == 200 else answering(status)
    near = "http://localhost:3000"
    async with serving(new_hub().asgi(app)) as port:
        answer = await discovered(port, changes={"Origin": near})
        assert answer.status == (401 if status == 401 else 200)
        assert answer.headers["access-control-allow-origin"] == [near]


@pytest.mark.clause("H1")
async def test_a_client_that_leaves_within_its_request_disturbs_nobody() -> None:
    async with echoing() as (_, port):
        for length in (10, 60, 90):
            async with connected(port) as connection:
                await connection.send_raw(
                    b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n" + b"a" * length
                )
        assert (await asked(port, b"abc", [("Host", "x")])).status == 200


@pytest.mark.clause("H1")
async def test_a_websocket_reaches_the_app() -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    async def nothing(*_: Any) -> Any:
        raise AssertionError("not to be called")

    scope = {"type": "websocket", "path": "/mcp"}
    await new_hub().asgi(app)(scope, nothing, nothing)
    assert scopes == [scope]


@pytest.mark.clause("R21")
@pytest.mark.field("F8")
async def test_a_tool_that_publishes_tells_the_listeners_and_not_its_caller() -> None:
    hub = new_hub()
    server = MCPServer("inner")

    @server.tool()
    async def change() -> str:
        await hub.publish(ToolsListChanged())
        return "changed"

    async with serving(hub.asgi(server.streamable_http_app())) as port, listening(port, TOOLS) as stream:
        await stream.acknowledged()
        call = request("tools/call", {"name": "change", "arguments": {}}, id=2)
        answer = await asked(port, call, headers_for("tools/call", name="change"))
        assert answer.status == 200
        assert b"list_changed" not in answer.body
        assert b"changed" in answer.body
        assert name(await stream.expect()) == "tools/list_changed"
        await hub.drain()
        assert [name(message) for message in await stream.rest()] == ["result"]


# -- Lifespans


def recording(told: list[str], refuse: str | None = None) -> Starlette:
    """An app with a lifespan of its own."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
        if refuse:
            raise RuntimeError(refuse)
        told.append("start")
        yield {"state": "kept"}
        told.append("stop")

    async def state(request: Request) -> Response:
        return PlainTextResponse(request.state.state)

    return Starlette(routes=[Route("/state", state)], lifespan=lifespan)


async def test_the_apps_own_lifespan_runs_inside_the_hubs() -> None:
    told: list[str] = []
    hub = new_hub()
    async with serving(hub.asgi(recording(told)), lifespan="on") as port:
        assert told == ["start"]
        assert hub.running
        assert (await asked(port, b"", [("Host", "x")], "/state", "GET")).body == b"kept"
        async with listening(port, TOOLS) as stream:
            await stream.acknowledged()
            drained = hub.begin_drain()
            assert [name(message) for message in await stream.rest()] == ["result"]
            await drained
    assert told == ["start", "stop"]
    assert not hub.running


def raises(scope: Any) -> None:
    """What an app without a lifespan may do at once."""
    assert scope["type"] == "http"


@pytest.mark.parametrize("how", ["raises", "returns", "raises later", "returns later"])
async def test_an_app_that_refuses_lifespan_leaves_the_hub_its_own(how: str) -> None:
    hub = new_hub()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            if how.endswith("later"):
                await receive()
            if how.startswith("raises"):
                raises(scope)
            return
        await PlainTextResponse("", 404)(scope, receive, send)

    async with serving(hub.asgi(app), lifespan="on") as port:
        assert hub.running
        async with listening(port, TOOLS) as stream:
            assert await stream.acknowledged() == TOOLS
            await hub.publish(ToolsListChanged())
            assert name(await stream.expect()) == "tools/list_changed"
    assert not hub.running


async def test_an_app_that_fails_to_start_closes_the_hub() -> None:
    hub = new_hub()
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    with pytest.raises(RuntimeError, match="no database"):
        await hub.asgi(recording([], "no database"))({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.failed"]
    assert not hub.running


async def test_a_lifespan_that_breaks_later_is_told() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        raise RuntimeError("broken")

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        pass

    hub = new_hub()
    with pytest.raises(RuntimeError, match="broken"):
        await hub.asgi(app)({"type": "lifespan"}, receive, send)
    await hub.aclose()


@pytest.mark.parametrize("lifespan", ["auto", "off"])
async def test_without_a_lifespan_the_hub_starts_at_the_first_use(lifespan: Any) -> None:
    """Mounted in Starlette, whose lifespan never reaches it, and with the server's lifespan off."""
    hub = new_hub()
    app = Starlette(routes=[Mount("/api", hub.asgi())]) if lifespan == "auto" else hub.asgi()
    path = "/api/mcp" if lifespan == "auto" else "/mcp"
    async with serving(app, lifespan=lifespan) as port:
        assert not hub.running
        async with listening(port, TOOLS, path=path) as stream:
            assert await stream.acknowledged() == TOOLS
            await until(lambda: hub.running, limit=1)
            await hub.publish(ToolsListChanged())
            assert name(await stream.expect()) == "tools/list_changed"
            ending = asyncio.create_task(stream.rest())
            await until(lambda: hub.streams)
    await hub.aclose()
    await asyncio.gather(ending, return_exceptions=True)


@pytest.mark.parametrize(
    ("mount", "path", "status"),
    [
        ("/mcp", "/mcp/", 200),
        ("/api", "/api/mcp", 200),
        ("/api", "/api/mcp/", 200),
        ("/api", "/api/other", 404),
    ],
)
async def test_the_path_is_found_below_a_mount(mount: str, path: str, status: int) -> None:
    hub = new_hub()
    async with serving(Starlette(routes=[Mount(mount, hub.asgi())])) as port:
        assert (await asked(port, listen({}), path=path)).status == status
    await hub.aclose()


async def test_a_path_of_ones_own_or_none() -> None:
    for option, path, status in [
        ("/a/b", "/a/b", 200),
        ("/a/b", "/mcp", 404),
        (None, "/x", 200),
        ("/", "/", 200),
    ]:
        async with serving(new_hub().asgi(path=option)) as port:
            assert (await asked(port, listen({}), path=path)).status == status


@pytest.mark.parametrize("around", [False, True])
def test_a_test_client_may_start_it_again_and_again(around: bool) -> None:
    """Starlette's: with its context a lifespan each time; without, an event loop for each request."""
    hub = new_hub(supports=[])
    inner = Starlette(middleware=[Middleware(GZipMiddleware)]) if around else None
    app = hub.asgi(inner)
    headers = dict(headers_for(LISTEN))
    with no_problems():
        for _ in range(2):
            with TestClient(app) as client:
                for _ in range(2):
                    answer = client.post("/mcp", json=listen(ALL), headers=headers)
                    assert answer.status_code == 200
                    assert answer.text.count("data:") == 2
            assert not hub.running
        fresh = new_hub(supports=[])
        client = TestClient(fresh.asgi(inner))
        for _ in range(3):
            assert client.post("/mcp", json=listen(ALL), headers=headers).text.count("data:") == 2
        with TestClient(fresh.asgi(inner)) as client:
            assert client.post("/mcp", json=listen(ALL), headers=headers).text.count("data:") == 2


def test_events_still_flow_after_a_loop_that_died_in_between() -> None:
    hub = new_hub(keep_alive=0.2, min_interval=0.05)

    async def one_life() -> None:
        async with serving(hub.asgi(), lifespan="off") as port, listening(port, TOOLS) as stream:
            await stream.acknowledged()
            await hub.publish(ToolsListChanged())
            await hub.publish(ToolsListChanged())
            assert name(await stream.expect()) == "tools/list_changed"
            assert name(await stream.expect()) == "tools/list_changed"
            await stream.comment()
            await hub.publish(ToolsListChanged())

    for _ in range(3):
        asyncio.run(one_life())


async def test_a_hub_on_two_loops_at_once_says_so() -> None:
    async with new_hub() as hub:

        def elsewhere() -> None:
            asyncio.run(hub.publish(ToolsListChanged()))

        with pytest.raises(RuntimeError, match="publish_from_thread"):
            await asyncio.to_thread(elsewhere)
