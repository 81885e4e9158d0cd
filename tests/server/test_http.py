"""Streamable HTTP over real sockets: what is refused, in which order and how, and what is accepted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from harken.core.events import ToolsListChanged
from harken.core.subscription import Ending
from harken.core.wire import CANCELLED, DISCOVER, LISTEN
from harken.errors import RPCError
from harken.server.hub import Hub
from harken.server.limits import Limits
from harken.server.methods import Request
from tests.core.frames import Message
from tests.serving import PROTOCOLS, new_hub, serving, until
from tests.wire_client import (
    ALL,
    HOP_BY_HOP,
    META,
    PREFIX,
    Headers,
    asked,
    connected,
    discovered,
    headers_for,
    listen,
    listening,
    request,
    without_id,
)

pytestmark = pytest.mark.anyio

TOOLS = {"toolsListChanged": True}


BROKEN = "the handler of 'resources/read' failed"


async def read_resource(request: Request) -> Mapping[str, object]:
    """Answers `resources/read`."""
    if request.params["uri"] == "x://lost":
        raise RPCError(-32602, "no such resource", {"uri": "x://lost"})
    if request.params["uri"] == "x://broken":
        raise RuntimeError("broken")
    contents = [{"uri": request.params["uri"], "text": request.meta.version}]
    return {"contents": contents, "ttlMs": 0, "cacheScope": "private"}


@pytest.fixture(scope="module")
async def hub() -> Hub:
    """A hub with one method of its own."""
    return new_hub(methods={"resources/read": read_resource})


@pytest.fixture(scope="module", params=PROTOCOLS)
async def port(hub: Hub, request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Where it is served, by each of uvicorn's HTTP implementations."""
    app = hub.asgi(allowed_origins=["https://chat.example"])
    async with serving(app, request.param, expected=BROKEN) as port:
        yield port


def changed(**meta: object) -> dict[str, Any]:
    """The usual `_meta` with some fields replaced, or left out where they are `...`."""
    whole = {**META, **{PREFIX + key: value for key, value in meta.items()}}
    return {key: value for key, value in whole.items() if value is not ...}


def doubled(name: str, *values: str) -> Headers:
    """The usual headers with one given several times."""
    return [*headers_for(LISTEN, {name: None}), *((name, value) for value in values)]


# -- Accepted


@pytest.mark.clause("H2", "R2")
@pytest.mark.field("F22", "F57")
async def test_the_stream_starts_with_its_headers_and_the_acknowledgment(port: int) -> None:
    async with listening(port, ALL) as stream:
        assert stream.headers["content-type"] == ["text/event-stream; charset=utf-8"]
        assert stream.headers["cache-control"] == ["no-cache, no-transform"]
        assert stream.headers["x-accel-buffering"] == ["no"]
        assert not HOP_BY_HOP & set(stream.headers)  # they are illegal on HTTP/2
        assert await stream.acknowledged() == ALL  # with no event, and long before any keep-alive
        assert stream.comments == 0


@pytest.mark.clause("H1")
async def test_session_and_resumption_headers_are_ignored(port: int) -> None:
    headers = headers_for(LISTEN, {"Mcp-Session-Id": "s-1", "Last-Event-ID": "17"})
    async with listening(port, ALL, headers=headers) as stream:
        assert not {"mcp-session-id", "last-event-id"} & set(stream.headers)
        await stream.acknowledged()
        assert not any(line.startswith(b"id:") for line in stream.frames[0].splitlines())


@pytest.mark.clause("H4")
async def test_header_names_are_case_insensitive(port: int) -> None:
    for change in (str.upper, str.lower):
        headers = [(change(name), value) for name, value in headers_for(LISTEN)]
        async with listening(port, ALL, headers=headers) as stream:
            assert await stream.acknowledged() == ALL


@pytest.mark.clause("H7")
@pytest.mark.parametrize("client", [..., {"name": "a", "version": "1"}])
async def test_client_info_is_optional(port: int, client: object) -> None:
    message = request(LISTEN, {"notifications": {}, "_meta": changed(clientInfo=client)})
    assert (await asked(port, message)).status == 200


@pytest.mark.clause("H4")
async def test_a_name_in_base64_equals_the_body(port: int) -> None:
    message = request("resources/read", {"uri": "x://ä"})
    headers = headers_for("resources/read", name="=?base64?eDovL8Ok?=")
    answer = await asked(port, message, headers)
    assert answer.status == 200
    assert answer.message["result"]["contents"] == [{"uri": "x://ä", "text": "2026-07-28"}]


# -- Refused, and in which order


def case(
    clause: str,
    name: str,
    body: object,
    headers: Headers | None = None,
    status: int = 400,
    code: int = -32600,
    echoed: bool = True,
) -> Any:
    """One bad request, and how it is refused: the status, the code, and whether its id is echoed."""
    return pytest.param(
        body, headers, status, code, echoed, id=f"{clause}: {name}", marks=pytest.mark.clause(clause)
    )


def bad_headers() -> Iterator[Any]:
    """Headers that are missing, doubled, malformed, or different from the body."""
    good, read = listen(TOOLS), request("resources/read", {"uri": "x://a"})
    for name, values in {
        "MCP-Protocol-Version": (None, "", "2026-07-28\u00e9", "2025-11-25"),
        "Mcp-Method": (None, "", "a\tb", DISCOVER, LISTEN.upper()),
    }.items():
        for value in values:
            yield case("H4", f"{name}: {value}", good, headers_for(LISTEN, {name: value}), code=-32020)
    for name, values in {
        "MCP-Protocol-Version": ("2026-07-28", "2026-07-28"),
        "Mcp-Method": (LISTEN, "tools/list"),
    }.items():
        yield case("H4", f"{name} twice", good, doubled(name, *values), code=-32020)
    for value in ("", "x://b", "=?base64?*?=", "=?base64?/w==?="):
        yield case("H4", f"Mcp-Name: {value}", read, headers_for("resources/read", name=value), code=-32020)
    other = request(LISTEN, {"notifications": TOOLS, "_meta": changed(protocolVersion="2025-11-25")})
    yield case("H4", "another version in the body", other, code=-32020)
    agreed = headers_for(LISTEN, {"MCP-Protocol-Version": "2025-11-25"})
    yield case("H5", "another version in both", other, agreed, code=-32022)


def bad_envelopes() -> Iterator[Any]:
    """Bodies that are no request of this revision."""
    good, bare = listen(TOOLS), headers_for(LISTEN)
    yield case("H6", "unknown method", request("tools/lost"), status=404, code=-32601)
    yield case("H6", "another case", request("Server/Discover"), status=404, code=-32601)
    yield case("R22", "ping", request("ping"), status=404, code=-32601)
    old_ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    old_headers = [header for header in bare if "mcp" not in header[0].lower()]
    yield case("R22", "ping of an older client", old_ping, old_headers, status=404, code=-32601)
    yield case("H10", "batch", [good, good], bare, echoed=False)
    yield case("H10", "empty batch", [], bare, echoed=False)
    yield case("H10", "string", b'"x"', echoed=False)
    yield case("H10", "null", b"null", echoed=False)
    yield case("H10", "result", {"jsonrpc": "2.0", "id": 1, "result": {}}, bare, echoed=False)
    failed = {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}
    yield case("H10", "error", failed, bare, echoed=False)
    yield case("H10", "no method", {"jsonrpc": "2.0", "id": 1}, bare)
    yield case("H10", "jsonrpc 1.0", {**good, "jsonrpc": "1.0"})
    yield case("H10", "method 1", {**good, "method": 1}, bare)
    yield case("H10", "params a list", {**good, "params": [TOOLS]}, code=-32602)
    text = json.dumps(good).encode()
    deep = text[:-1] + b',"x":' + b"[" * 90_000 + b"]" * 90_000 + b"}"
    for name, body in {
        "empty": b"",
        "not JSON": b"{",
        "two messages": b"{}{}",
        "NaN": b'{"jsonrpc":"2.0","id":NaN}',
        "bad UTF-8": text.replace(b"tools", b"t\xffols"),
        "lone surrogate": json.dumps(listen({"x": "\ud800"})).encode(),
        "deep": deep,
    }.items():
        yield case("H10", name, body, code=-32700, echoed=False)
    odd_ids: tuple[object, ...] = (None, True, 1.5, [], {}, ["x"], "a" * 1025)
    for id in odd_ids:
        yield case("D14", f"id {json.dumps(id)[:9]}", {**good, "id": id}, echoed=False)
    yield case("D16", "listen without id", without_id(good), echoed=False)
    yield case("D16", "discover without id", without_id(request(DISCOVER)), echoed=False)


def bad_params() -> Iterator[Any]:
    """Parameters that are missing or of a wrong type; nothing is coerced."""
    good = listen(TOOLS)
    yield case("H7", "no params", {"jsonrpc": "2.0", "id": 1, "method": LISTEN}, code=-32602)
    yield case("H7", "no _meta", {**good, "params": {"notifications": TOOLS}}, code=-32602)
    yield case("H7", "_meta a list", request(LISTEN, {"notifications": {}, "_meta": []}), code=-32602)
    wrong_meta: dict[str, tuple[object, ...]] = {
        "protocolVersion": (..., None, 20260728, ["2026-07-28"]),
        "clientCapabilities": (..., None, "x", [], True),
        "clientInfo": ("x", 1, []),
    }
    for key, values in wrong_meta.items():
        for value in values:
            message = request(LISTEN, {"notifications": {}, "_meta": changed(**{key: value})})
            yield case("H7", f"{key} {value!r}", message, code=-32602)
    yield case("R13", "no notifications", request(LISTEN), code=-32602)
    wrong_filters: tuple[object, ...] = (None, True, 1, "x", [], [{}])
    for value in wrong_filters:
        yield case("R13", f"notifications {value!r}", listen(value), code=-32602)
    wrong_fields: dict[str, tuple[object, ...]] = {
        "toolsListChanged": (None, "false", 1, 0, [], {}),
        "promptsListChanged": (None, "false", 1, 0, [], {}),
        "resourcesListChanged": (None, "false", 1, 0, [], {}),
        "resourceSubscriptions": (None, "x://a", True, 1, {}, [1], [None], ["x://a", ["x://b"]]),
    }
    for key, values in wrong_fields.items():
        for value in values:
            yield case("R13", f"{key} {value!r}", listen({key: value}), code=-32602)
    for uri in ("", "no scheme", "/relative", "x://a b", "x://%zz"):
        yield case("D7", f"URI {uri!r}", listen({"resourceSubscriptions": ["x://a", uri]}), code=-32602)


REFUSALS = [*bad_headers(), *bad_envelopes(), *bad_params()]


@pytest.mark.clause("A5", "D14", "R2")
@pytest.mark.parametrize(("body", "headers", "status", "code", "echoed"), REFUSALS)
async def test_what_is_refused(
    port: int, hub: Hub, body: object, headers: Headers | None, status: int, code: int, echoed: bool
) -> None:
    answer = await asked(port, body, headers)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.message.get("id", ...) == (1 if echoed else ...)  # D14
    assert not hub.streams


def worse_and_worse() -> list[Any]:
    """One request that is wrong in every way, mended one check after the other (clause H4)."""
    headers: dict[str, str | None] = {"MCP-Protocol-Version": None, "Mcp-Method": "tools/lost"}
    body: Message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "subscriptions/lost",
        "params": {"notifications": 1},
    }
    steps: list[tuple[object, dict[str, str | None], int, int]] = [
        (b"{" + json.dumps(body).encode(), headers, 400, -32700)
    ]
    steps.append((body, headers, 400, -32020))
    headers = {**headers, "MCP-Protocol-Version": "1"}
    steps.append((body, headers, 400, -32602))
    body = {**body, "params": {"notifications": 1, "_meta": changed(protocolVersion="2")}}
    steps.append((body, headers, 400, -32020))
    headers = {"MCP-Protocol-Version": "2", "Mcp-Method": "subscriptions/lost"}
    steps.append((body, headers, 400, -32022))
    body = {**body, "params": {"notifications": 1, "_meta": META}}
    headers = {"Mcp-Method": "subscriptions/lost"}
    steps.append((body, headers, 404, -32601))
    body = {**body, "method": LISTEN}
    steps.append((body, {}, 400, -32602))
    steps.append(({**body, "params": {"notifications": {}, "_meta": META}}, {}, 200, 0))
    return steps


@pytest.mark.clause("H4")
async def test_the_order_of_the_checks(port: int) -> None:
    for body, headers, status, code in worse_and_worse():
        answer = await asked(port, body, headers_for(LISTEN, headers))
        assert answer.status == status
        if code:
            assert answer.error["code"] == code


@pytest.mark.clause("H5")
async def test_an_unknown_version_is_told_what_would_do(port: int) -> None:
    message = request(LISTEN, {"notifications": {}, "_meta": changed(protocolVersion="1999-01-01")})
    answer = await asked(port, message, headers_for(LISTEN, {"MCP-Protocol-Version": "1999-01-01"}))
    assert answer.error["data"] == {"supported": ["2026-07-28"], "requested": "1999-01-01"}


@pytest.mark.clause("A7", "A5")
@pytest.mark.field("F56")
@pytest.mark.parametrize("version", ["2025-11-25", None, 7])
async def test_initialize_names_the_supported_versions(port: int, version: object) -> None:
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": version}}
    accept = "application/json, text/event-stream"
    answer = await asked(
        port, message, [("Host", "x"), ("Accept", accept), ("Content-Type", "application/json")]
    )
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32022, 0)
    requested = version if isinstance(version, str) else ""
    assert answer.error["data"] == {"supported": ["2026-07-28"], "requested": requested}
    assert "2026-07-28" in answer.error["message"]


@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (None, 200),
        ("*/*", 200),
        ("text/*", 200),
        ("text/event-stream", 200),
        ("Text/Event-Stream;q=0.1, application/json", 200),
        ("*/*;q=0, text/event-stream", 200),
        ("application/json", 406),
        ("text/html, application/*", 406),
        ("*/*;q=0", 406),
        ("text/event-stream;q=0, */*", 406),
        ("text/event-stream; q=0.0, text/*", 406),
    ],
)
async def test_who_cannot_take_a_stream_is_told(port: int, accept: str | None, status: int) -> None:
    answer = await asked(port, listen({}), headers_for(LISTEN, {"Accept": accept}))
    assert answer.status == status
    if status == 406:
        assert answer.error["code"] == -32600
        assert answer.message["id"] == 1


@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/json-patch+json", 415),
    ],
)
async def test_only_json_is_taken(port: int, content_type: str, status: int) -> None:
    answer = await asked(port, listen({}), headers_for(LISTEN, {"Content-Type": content_type}))
    assert answer.status == status


# -- Notifications


@pytest.mark.clause("H9", "R23", "H4")
@pytest.mark.field("F55")
@pytest.mark.parametrize(
    "params", [{}, {"requestId": 1}, {"requestId": "lost"}, {"requestId": [1], "_meta": META}]
)
@pytest.mark.parametrize("headers", [headers_for(CANCELLED), [("Host", "x")]], ids=["all headers", "none"])
async def test_a_posted_cancel_is_accepted_and_does_nothing(
    port: int, hub: Hub, params: Message, headers: Headers
) -> None:
    async with listening(port, TOOLS) as stream:
        await stream.acknowledged()
        answer = await asked(port, {"jsonrpc": "2.0", "method": CANCELLED, "params": params}, headers)
        assert (answer.status, answer.body) == (202, b"")
        await hub.publish(ToolsListChanged())
        assert (await stream.expect())["method"] == "notifications/tools/list_changed"
    await until(lambda: not hub.streams)


@pytest.mark.clause("H9", "R23")
async def test_any_notification_is_accepted(port: int) -> None:
    answer = await asked(port, {"jsonrpc": "2.0", "method": "notifications/lost"}, [("Host", "x")])
    assert (answer.status, answer.body) == (202, b"")


# -- The endpoint


@pytest.mark.clause("H1")
@pytest.mark.field("F56")
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "PATCH", "OPTIONS"])
async def test_only_post_is_allowed(port: int, method: str) -> None:
    async with connected(port) as connection:
        await connection.send(b"", [("Host", "x")], method)
        answer = await connection.head()
        assert (answer.status, answer.headers["allow"]) == (405, ["POST"])
        assert answer.headers["content-length"] == ["0"]
        assert (await connection.ask(listen({}))).status == 200  # the connection lives on


@pytest.mark.clause("H1")
@pytest.mark.parametrize(
    ("path", "status"), [("/mcp", 200), ("/mcp/", 200), ("/", 404), ("/mcp/x", 404), ("/mcpx", 404)]
)
async def test_there_is_one_endpoint(port: int, path: str, status: int) -> None:
    assert (await asked(port, listen({}), path=path)).status == status


@pytest.mark.clause("R22")
async def test_a_connection_lives_on_after_a_ping(port: int) -> None:
    async with connected(port) as connection:
        assert (await connection.ask(request("ping"))).status == 404
        assert (await connection.ask(request(DISCOVER))).status == 200


@pytest.mark.clause("R24")
async def test_each_request_stands_for_itself(port: int) -> None:
    """What an earlier request on the connection said counts for nothing."""
    async with connected(port) as connection:
        assert (await connection.ask(request(DISCOVER))).status == 200
        bare = {**listen(TOOLS), "params": {"notifications": TOOLS}}
        assert (await connection.ask(bare)).error["code"] == -32602
        bare_headers = headers_for(LISTEN, {"MCP-Protocol-Version": None})
        assert (await connection.ask(listen(TOOLS), bare_headers)).error["code"] == -32020


# -- Browsers


@pytest.mark.clause("H14")
@pytest.mark.field("F54")
async def test_a_preflight_is_answered_before_anything_else(port: int) -> None:
    wanted = "authorization, content-type, accept, mcp-protocol-version, mcp-method, mcp-name"
    headers = [
        ("Host", "x"),
        ("Origin", "https://chat.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", wanted),
    ]
    answer = await asked(port, b"", headers, method="OPTIONS")
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == ["https://chat.example"]
    assert answer.headers["access-control-allow-methods"] == ["POST"]
    allowed = answer.headers["access-control-allow-headers"][0].replace(" ", "").lower().split(",")
    assert set(wanted.split(", ")) <= set(allowed)
    assert "content-length" not in answer.headers


@pytest.mark.clause("H14")
@pytest.mark.field("F54")
async def test_every_answer_may_be_read_by_the_page_that_asked(port: int) -> None:
    origin = {"Origin": "https://chat.example"}
    statuses = set()
    for body, headers, method in [
        (listen({}), {}, "POST"),
        (request(DISCOVER), {"Mcp-Method": DISCOVER}, "POST"),
        (without_id(request(CANCELLED)), {}, "POST"),
        (b"{", {}, "POST"),
        (request("tools/lost"), {"Mcp-Method": "tools/lost"}, "POST"),
        (b"", {}, "GET"),
        (listen({}), {"Accept": "text/html"}, "POST"),
        (b" " * 2_000_000, {}, "POST"),
        (b"", {"Content-Type": "text/plain"}, "POST"),
    ]:
        answer = await asked(port, body, headers_for(LISTEN, {**origin, **headers}), method=method)
        statuses.add(answer.status)
        assert answer.headers["access-control-allow-origin"] == ["https://chat.example"]
        assert answer.headers["vary"] == ["origin"]
    assert statuses == {200, 202, 400, 404, 405, 406, 413, 415}


@pytest.mark.clause("H8", "H14")
@pytest.mark.field("F54")
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://chat.example", "https://chat.example.evil"]
)
async def test_a_foreign_page_is_refused(port: int, origin: str) -> None:
    answer = await asked(port, listen(ALL), headers_for(LISTEN, {"Origin": origin}))
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers
    preflight = [("Host", "x"), ("Origin", origin), ("Access-Control-Request-Method", "POST")]
    assert (await asked(port, b"", preflight, method="OPTIONS")).status == 403


@pytest.mark.clause("H8")
async def test_by_default_only_loopback_pages_may_come() -> None:
    async with serving(new_hub().asgi()) as port:
        for origin, status in [
            ("http://localhost:3000", 200),
            ("http://127.0.0.1", 200),
            ("https://[::1]:8", 200),
            ("https://chat.example", 403),
            ("http://localhost.evil.example", 403),
            ("file://", 403),
            ("http://[", 403),
        ]:
            answer = await asked(port, listen({}), headers_for(LISTEN, {"Origin": origin}))
            assert answer.status == status, origin


@pytest.mark.clause("H8", "H14")
async def test_a_foreign_host_is_refused() -> None:
    """A page of a name that its owner points at 127.0.0.1 is of the same origin as we, to its browser."""
    async with serving(new_hub().asgi(allowed_hosts=["localhost", "127.0.0.1"])) as port:
        for host, status in [("localhost:80", 200), ("127.0.0.1", 200), ("evil.example", 403), ("[", 403)]:
            headers = headers_for(LISTEN, {"Host": host, "Origin": "http://localhost"})
            answer = await asked(port, listen({}), headers)
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == ["http://localhost"]


# -- Refused for now


@pytest.mark.clause("D9", "A5", "R2")
@pytest.mark.field("F3")
async def test_a_full_server_says_so_and_when_to_come_back(caplog: pytest.LogCaptureFixture) -> None:
    hub = new_hub(limits=Limits(max_streams=1))
    async with serving(hub.asgi()) as port:
        async with listening(port, TOOLS) as stream:
            await stream.acknowledged()
            answer = await asked(port, listen(TOOLS, "b"))
            assert answer.status == 503
            assert answer.message["id"] == "b"
            assert answer.error["code"] == -32603
            assert answer.error["data"] == {"reason": "server_full", "retryAfter": 5}
            assert answer.headers["retry-after"] == ["5"]
            assert hub.endings[Ending.REJECTED] == 1
            assert "refused a listen" in caplog.text
        await until(lambda: not hub.streams)
        async with listening(port, TOOLS) as stream:  # the place is free again
            await stream.acknowledged()


@pytest.mark.clause("D9")
@pytest.mark.clause("D5")
async def test_too_many_uris_are_the_callers_fault() -> None:
    """Duplicates count once."""
    async with serving(new_hub(limits=Limits(max_uris=2)).asgi()) as port:
        async with listening(
            port, {"resourceSubscriptions": ["x://a", "x://b", "X://a", "x://%61"]}
        ) as stream:
            assert await stream.acknowledged() == {"resourceSubscriptions": ["x://a", "x://b"]}
        answer = await asked(port, listen({"resourceSubscriptions": ["x://a", "x://b", "x://c"]}))
        assert answer.status == 429
        assert answer.error["data"]["reason"] == "quota"
        assert answer.headers["retry-after"] == [str(answer.error["data"]["retryAfter"])]


@pytest.mark.clause("D9")
async def test_a_handler_may_send_its_caller_away_for_a_while() -> None:
    async def busy(request: Request) -> Mapping[str, object]:
        raise RPCError(-32603, "come back later", {"reason": "server_full", "retryAfter": 7})

    async with serving(new_hub(methods={"tools/list": busy}).asgi()) as port:
        answer = await asked(port, request("tools/list"))
        assert answer.status == 503
        assert answer.headers["retry-after"] == ["7"]


@pytest.mark.clause("D9")
async def test_a_server_that_shuts_down_sends_clients_away() -> None:
    hub = new_hub()
    async with serving(hub.asgi()) as port:
        await hub.publish()
        await hub.drain()
        answer = await asked(port, listen(TOOLS))
        assert answer.status == 503
        assert answer.error["data"] == {"reason": "shutting_down", "retryAfter": 1}
        assert (await discovered(port)).status == 200


@pytest.mark.clause("D3", "H6", "R20")
@pytest.mark.field("F2")
async def test_the_off_switch_takes_the_method_and_every_bit() -> None:
    async with serving(
        new_hub(subscriptions=False, methods={"resources/read": read_resource}).asgi()
    ) as port:
        answer = await asked(port, listen(ALL))
        assert (answer.status, answer.error["code"]) == (404, -32601)
        assert (await discovered(port)).discovered["capabilities"] == {"resources": {}}


# -- Other methods, and what is hostile


async def test_a_method_of_ones_own_answers_and_refuses(port: int) -> None:
    good = request("resources/read", {"uri": "x://a"})
    answer = await asked(port, good, headers_for("resources/read", name="x://a"))
    assert answer.message["result"]["resultType"] == "complete"
    assert answer.message["result"]["_meta"][PREFIX + "serverInfo"]["name"] == "harken"
    lost = request("resources/read", {"uri": "x://lost"})
    answer = await asked(port, lost, headers_for("resources/read", name="x://lost"))
    assert (answer.status, answer.error["code"], answer.error["data"]) == (400, -32602, {"uri": "x://lost"})


async def test_a_method_that_fails_is_an_error_of_the_servers() -> None:
    hub = new_hub(methods={"resources/read": read_resource})
    async with serving(hub.asgi(), expected=BROKEN) as port:
        broken = request("resources/read", {"uri": "x://broken"})
        answer = await asked(port, broken, headers_for("resources/read", name="x://broken"))
        assert (answer.status, answer.error["code"], answer.message["id"]) == (500, -32603, 1)


@pytest.mark.parametrize("size", [1_048_577, 10_000_000])
async def test_a_body_over_the_cap_is_refused_and_the_connection_lives_on(port: int, size: int) -> None:
    async with connected(port) as connection:
        answer = await connection.ask(json.dumps(listen({"x": "a" * size})).encode())
        assert (answer.status, answer.error["code"]) == (413, -32600)
        assert "id" not in answer.message
        assert (await connection.ask(listen({}))).status == 200


async def test_a_body_in_many_small_pieces_is_one(port: int) -> None:
    async with connected(port) as connection:
        body = json.dumps(listen({})).encode()
        lines = [f"{name}: {value}" for name, value in headers_for(LISTEN)]
        head = ["POST /mcp HTTP/1.1", *lines, "Transfer-Encoding: chunked", "", ""]
        await connection.send_raw("\r\n".join(head).encode())
        for octet in body:
            await connection.send_raw(b"1\r\n%c\r\n" % octet)
        await connection.send_raw(b"0\r\n\r\n")
        assert (await connection.answer()).status == 200


async def test_clients_that_leave_within_their_request_disturb_nobody(port: int, hub: Hub) -> None:
    whole = b"\r\n".join([b"POST /mcp HTTP/1.1", *(f"{n}: {v}".encode() for n, v in headers_for(LISTEN))])
    body = json.dumps(listen(TOOLS)).encode()
    request = whole + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with listening(port, TOOLS) as stream:
        await stream.acknowledged()
        for length in range(0, len(request), 7):
            async with connected(port) as connection:
                await connection.send_raw(request[:length])
                if length % 2:
                    connection.reset()
        await hub.publish(ToolsListChanged())
        assert (await stream.expect())["method"] == "notifications/tools/list_changed"
        await until(lambda: len(hub.streams) == 1)
    await until(lambda: not hub.streams)


async def test_hostile_requests_leave_the_other_streams_untouched(port: int, hub: Hub) -> None:
    async with listening(port, TOOLS, id="good") as stream:
        await stream.acknowledged()
        for refusal in REFUSALS:
            await asked(port, refusal.values[0], refusal.values[1])
        await hub.publish(ToolsListChanged())
        assert (await stream.expect())["method"] == "notifications/tools/list_changed"
        assert len(stream.frames) == 2
    await until(lambda: not hub.streams)


async def test_what_is_no_http_request_is_closed() -> None:
    """Alone, the hub has nothing for a WebSocket."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    app = new_hub().asgi()
    await asyncio.wait_for(app({"type": "websocket", "path": "/mcp"}, receive, send), 5)
    assert sent == [{"type": "websocket.close", "code": 1000}]
