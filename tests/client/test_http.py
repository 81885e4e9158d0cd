"""Subscriptions over HTTP, against servers that say exactly what a test tells them to."""

import gc
import gzip
import json
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest

from harken import (
    Connection,
    ConnectionLost,
    Ending,
    Event,
    Filter,
    ListenTimeout,
    NeverAcknowledged,
    PoolFull,
    ProtocolError,
    Refused,
    ResourceUpdated,
    RPCError,
    Subscription,
    ToolsListChanged,
    connect,
    listen,
)
from harken.client.http import encode_header, parse_retry_after
from harken.core.demux import Ignored
from tests.client.scripted import (
    SSE,
    Exchange,
    Server,
    ack,
    encode,
    error,
    http_server,
    result,
    tools_changed,
    updated,
)

pytestmark = pytest.mark.anyio

Say = Callable[[Any], object]


async def hold(exchange: Exchange) -> None:
    """Acknowledge, and stay until the client leaves."""
    await exchange.acknowledge(toolsListChanged=True)
    await exchange.until_closed()


def streaming(*messages: Say, status: int = 200) -> Callable[[Exchange], Awaitable[None]]:
    """Answer each request with these messages, made from its id, and close."""

    async def script(exchange: Exchange) -> None:
        await exchange.open(status)
        await exchange.say(*(make(exchange.id) for make in messages))

    return script


def replying(status: int, body: Say, **headers: str) -> Callable[[Exchange], Awaitable[None]]:
    """Answer each request with this JSON."""

    async def script(exchange: Exchange) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await exchange.reply(status, encode(body(exchange.id)), named)

    return script


def acked(id: Any) -> object:
    return ack(id, toolsListChanged=True)


async def events_of(subscription: Subscription) -> list[Event]:
    with anyio.fail_after(5):
        return [event async for event in subscription]


async def enter(server: Server, **options: Any) -> None:
    with anyio.fail_after(5):
        async with listen(server.url, tools_list_changed=True, **options):
            pytest.fail("there was nothing to enter")


# What is sent


@pytest.mark.clause("H3")
async def test_a_listen_says_all_that_it_must() -> None:
    async with http_server(hold) as server, listen(server.url, tools_list_changed=True):
        pass
    [exchange] = server.exchanges
    assert exchange.target == "/mcp"
    assert exchange.headers["accept"] == "application/json, text/event-stream"
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.headers["mcp-protocol-version"] == "2026-07-28"
    assert exchange.headers["mcp-method"] == "subscriptions/listen"
    assert "mcp-name" not in exchange.headers
    assert exchange.body["params"]["notifications"] == {"toolsListChanged": True}
    assert exchange.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


@pytest.mark.field("F57")
@pytest.mark.parametrize("own", [True, False])
async def test_no_connection_header_and_fifty_uris_on_one_stream(own: bool) -> None:
    uris = [f"x://{number}" for number in range(50)]

    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(resourceSubscriptions=uris)
        await exchange.until_closed()

    async with (
        http_server(script) as server,
        httpx2.AsyncClient() as client,
        listen(server.url, resource_subscriptions=uris, http_client=client if own else None) as subscription,
    ):
        assert len(subscription.honored.resource_subscriptions) == 50
    assert len(server.exchanges) == 1
    assert "connection" not in server.exchanges[0].headers


@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("resources/read", {"uri": "file:///a b"}, "file:///a b"),
        ("tools/call", {"name": "plain"}, "plain"),
        ("prompts/get", {"name": "größe"}, "=?base64?Z3LDtsOfZQ==?="),
        ("tools/list", {"name": "not for this method"}, None),
        ("tools/call", {}, None),
    ],
)
async def test_the_name_is_repeated_in_a_header(
    method: str, params: dict[str, object], name: str | None
) -> None:
    async with http_server(replying(200, result)) as server, connect(server.url) as connection:
        await connection.request(method, params)
    assert server.exchanges[0].headers.get("mcp-name") == name


@pytest.mark.clause("H3")
@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("", "=?base64??="),
        ("a", "a"),
    ],
)
def test_header_values_are_encoded_as_the_specification_s_examples_are(value: str, encoded: str) -> None:
    assert encode_header(value) == encoded


async def test_the_token_goes_into_the_header_and_is_asked_for_each_time() -> None:
    asked = 0

    async def token() -> str:
        nonlocal asked
        asked += 1
        return f"t{asked}"

    async with http_server(hold) as server, connect(server.url, token=token) as connection:
        for _ in range(2):
            async with connection.listen(tools_list_changed=True):
                pass
    assert [exchange.headers["authorization"] for exchange in server.exchanges] == ["Bearer t1", "Bearer t2"]
    assert [exchange.target for exchange in server.exchanges] == ["/mcp", "/mcp"]


async def test_the_token_goes_before_the_client_s_own_authentication() -> None:
    async with http_server(hold) as server, httpx2.AsyncClient(auth=("user", "word")) as client:
        async with listen(server.url, tools_list_changed=True, http_client=client, token="mine"):
            pass
        async with listen(server.url, tools_list_changed=True, http_client=client, headers={"x-more": "1"}):
            pass
    first, second = (exchange.headers for exchange in server.exchanges)
    assert first["authorization"] == "Bearer mine"
    assert second["authorization"].startswith("Basic ")
    assert second["x-more"] == "1"


async def test_a_token_that_no_header_can_carry_is_never_shown() -> None:
    async with http_server(hold) as server:
        with pytest.raises(ValueError, match="token") as caught:
            await enter(server, token="se\ncret")
    assert "cret" not in str(caught.value)
    assert server.exchanges == []


@pytest.mark.clause("R17", "T6")
async def test_each_request_has_an_id_of_its_own() -> None:
    async with http_server(hold) as server:
        for _ in range(2):
            async with listen(server.url, tools_list_changed=True):
                pass
    first, second = (exchange.id for exchange in server.exchanges)
    assert first != second


# What is heard


@pytest.mark.clause("R11")
async def test_what_is_not_honored_is_visible(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "harken.client")

    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True, resourceSubscriptions=["X://a"])
        await exchange.until_closed()

    wanted = Filter(True, True, False, ("x://a", "x://b"))
    async with http_server(script) as server, listen(server.url, wanted) as subscription:
        assert subscription.requested == wanted
        assert subscription.honored == Filter(True, resource_subscriptions=("X://a",))
        assert subscription.unsupported == Filter(
            prompts_list_changed=True, resource_subscriptions=("x://b",)
        )
        assert subscription.subscription_id == server.exchanges[0].id
    assert "promptsListChanged" in caplog.text


@pytest.mark.clause("R19")
async def test_events_are_typed_and_an_update_s_uri_is_not_held_against_it() -> None:
    script = streaming(
        lambda id: ack(id, toolsListChanged=True, resourceSubscriptions=["x://a"]),
        tools_changed,
        lambda id: updated(id, "x://a"),
        lambda id: updated(id, "x://a/b"),
        result,
    )
    async with http_server(script) as server:
        async with listen(server.url, Filter(True, resource_subscriptions=("x://a",))) as subscription:
            assert await events_of(subscription) == [
                ToolsListChanged(),
                ResourceUpdated("x://a"),
                ResourceUpdated("x://a/b"),
            ]
        assert subscription.ending is Ending.COMPLETED


@pytest.mark.clause("H11")
@pytest.mark.field("F24")
async def test_comments_are_keep_alives_wherever_they_are_split() -> None:
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1

    async def script(exchange: Exchange) -> None:
        await exchange.open()
        data = b"\xef\xbb\xbf: first\r\n\r\ndata: %b\r\rdata: %b\n" % (
            encode(acked(exchange.id)),
            encode(tools_changed(exchange.id)),
        )
        for byte in data + b":\r\n\r\nevent: other\ndata: no json\n\nevent: message\n\ndata:\n\n: ping\n":
            await exchange.raw(bytes([byte]))
        await exchange.say(result(exchange.id))

    async with http_server(script) as server:
        async with listen(server.url, tools_list_changed=True, on_keep_alive=count) as subscription:
            assert await events_of(subscription) == [ToolsListChanged()]
        assert subscription.ending is Ending.COMPLETED
    assert seen == 3
    assert subscription.last_keep_alive is not None


async def test_a_slow_reader_s_events_collapse() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        for _ in range(500):
            await exchange.say(*[tools_changed(exchange.id)] * 20)
        await exchange.say(result(exchange.id))

    async with http_server(script) as server, listen(server.url, tools_list_changed=True) as subscription:
        with anyio.fail_after(10):
            while subscription.ending is None:
                await anyio.wait_all_tasks_blocked()
        assert await events_of(subscription) == [ToolsListChanged()]


@pytest.mark.clause("R22")
@pytest.mark.field("F48")
async def test_what_is_not_its_own_is_counted_and_never_answered() -> None:
    script = streaming(
        acked,
        lambda _: {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        lambda _: tools_changed(-1),
        lambda id: tools_changed(str(id)),
        lambda _: {"method": "notifications/tools/list_changed"},
        lambda id: {"method": "notifications/progress", "params": {"progressToken": id}},
        result,
    )
    async with http_server(script) as server, connect(server.url) as connection:
        async with connection.listen(tools_list_changed=True) as subscription:
            assert await events_of(subscription) == []
        assert connection.ignored == {
            Ignored.SERVER_REQUEST: 1,
            Ignored.UNKNOWN: 2,
            Ignored.MALFORMED: 1,
            Ignored.OTHER: 1,
        }
        assert subscription.ending is Ending.COMPLETED
    assert len(server.exchanges) == 1


# How it ends


@pytest.mark.clause("R25", "R18", "D1")
@pytest.mark.parametrize(
    ("end", "ending"),
    [
        ([result], Ending.COMPLETED),
        ([lambda id: {"id": id, "result": {}}], Ending.COMPLETED),
        ([error], Ending.ERROR_AFTER_ACK),
        ([lambda _: {"error": {"code": -32603, "message": "no"}}], Ending.ERROR_AFTER_ACK),
        (
            [lambda id: {"method": "notifications/cancelled", "params": {"requestId": id}}],
            Ending.CANCELLED_BY_SERVER,
        ),
        ([lambda id: {"id": id, "result": {"resultType": "input_required"}}], Ending.PROTOCOL_ERROR),
        ([lambda id: {"id": id, "result": {"resultType": "sideways"}}], Ending.PROTOCOL_ERROR),
        ([], Ending.LOST),
    ],
)
async def test_endings_are_told_apart(end: list[Say], ending: Ending) -> None:
    async with http_server(streaming(acked, tools_changed, *end)) as server:
        async with listen(server.url, tools_list_changed=True) as subscription:
            assert await events_of(subscription) == [ToolsListChanged()]
            assert subscription.ending is ending
        assert subscription.ending is ending, "leaving changes nothing"


async def test_nothing_honored_is_told_apart() -> None:
    async with http_server(streaming(ack, result)) as server:
        async with listen(server.url, tools_list_changed=True) as subscription:
            assert await events_of(subscription) == []
        assert subscription.ending is Ending.NOTHING_HONORED
        assert subscription.unsupported == Filter(tools_list_changed=True)


@pytest.mark.clause("R18")
async def test_a_connection_that_breaks_off_is_lost() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head(200, {**SSE, "transfer-encoding": "chunked"})
        event = b"data: %b\n\n" % encode(acked(exchange.id))
        await exchange.raw(b"%x\r\n%b\r\nff\r\ndata: half" % (len(event), event))

    async with http_server(script) as server:
        async with listen(server.url, tools_list_changed=True) as subscription:
            assert await events_of(subscription) == []
        assert subscription.ending is Ending.LOST
        assert server.url in str(subscription.error)


@pytest.mark.field("F24")
@pytest.mark.parametrize(
    "event",
    [
        b"data: " + b"x" * 2000,
        b"data: no json\n\n",
        b'data: {"a":"\xff"}\n\n',
        b"data: []\n\n",
        b":" + b"x" * 2000,
    ],
    ids=["long", "text", "bytes", "array", "long comment"],
)
async def test_an_event_that_cannot_be_read_ends_the_stream_as_lost(event: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        await exchange.raw(event)
        await exchange.until_closed()

    async with (
        http_server(script) as server,
        listen(server.url, tools_list_changed=True, max_event_bytes=1000) as subscription,
    ):
        assert await events_of(subscription) == []
        assert subscription.ending is Ending.LOST
        with anyio.fail_after(5):
            while not server.closed:
                await anyio.wait_all_tasks_blocked()


@pytest.mark.field("F24")
async def test_an_event_of_ten_megabytes_is_not_kept() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        await exchange.raw(b"data: " + b"x" * 10 * 1024 * 1024 + b"\n\n")
        await exchange.until_closed()

    async with http_server(script) as server, listen(server.url, tools_list_changed=True) as subscription:
        assert await events_of(subscription) == []
        assert subscription.ending is Ending.LOST
        assert "1048576 bytes" in str(subscription.error)


@pytest.mark.clause("R16")
async def test_leaving_closes_the_response_and_sends_nothing() -> None:
    async with http_server(hold) as server, connect(server.url) as connection:
        async with connection.listen(tools_list_changed=True) as subscription:
            assert server.closed == 0
        with anyio.fail_after(5):
            while not server.closed:
                await anyio.wait_all_tasks_blocked()
        assert subscription.ending is Ending.CLOSED
        assert await events_of(subscription) == []
    assert len(server.exchanges) == 1


@pytest.mark.clause("R16")
async def test_closing_the_connection_ends_what_is_on_it() -> None:
    async with http_server(hold) as server, connect(server.url) as connection:
        async with connection.listen(tools_list_changed=True) as subscription:
            await connection.aclose()
            assert await events_of(subscription) == []
            assert subscription.ending is Ending.CLOSED
            assert "closed" in repr(subscription)
        with pytest.raises(ConnectionLost):
            await connection.discover()


# Where entering fails


@pytest.mark.clause("R26", "R16")
@pytest.mark.parametrize("opened", [True, False])
async def test_without_an_ack_in_time_the_stream_is_closed(opened: bool) -> None:
    async def script(exchange: Exchange) -> None:
        if opened:
            await exchange.open()
        await exchange.until_closed()

    async with http_server(script) as server:
        with pytest.raises(ListenTimeout, match=r"0\.1 s"):
            await enter(server, ack_timeout=0.1)
        with anyio.fail_after(5):
            while not server.closed:
                await anyio.wait_all_tasks_blocked()


@pytest.mark.clause("H12", "D14")
@pytest.mark.parametrize("status", [200, 400, 404, 503])
@pytest.mark.parametrize("id", [lambda id: {"id": id}, lambda _: {"id": None}, lambda _: {}])
@pytest.mark.parametrize("form", [replying, streaming])
async def test_a_refusal_is_read_in_every_form(
    status: int, id: Callable[[Any], dict[str, Any]], form: Any
) -> None:
    def refusal(request_id: Any) -> object:
        data = {"reason": "server_full", "retryAfter": 7}
        return {**id(request_id), "error": {"code": -32603, "message": "full", "data": data}}

    script = replying(status, refusal) if form is replying else streaming(refusal, status=status)
    async with http_server(script) as server:
        with pytest.raises(Refused, match="full") as caught:
            await enter(server)
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == (-32603, status, 7.0)
    assert caught.value.data == {"reason": "server_full", "retryAfter": 7}


@pytest.mark.clause("H12")
@pytest.mark.parametrize(
    ("body", "said"),
    [(b"", ""), (b"<p>go\n away</p>", "<p>go away</p>"), (b'{"detail":"no"}', '{"detail":"no"}')],
)
async def test_a_refusal_without_a_message_of_the_protocol(body: bytes, said: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.reply(401, body, {"www-authenticate": "Bearer realm=x", "retry-after": "3"})

    async with http_server(script) as server:
        with pytest.raises(Refused) as caught:
            await enter(server)
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == (401, 401, 3.0)
    assert str(caught.value).startswith("HTTP 401")
    assert "Bearer realm=x" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "HTTP 404 Status"),
        (b"Status", "HTTP 404 Status"),
        (b"404 status\n", "HTTP 404 Status"),
        (b'{"error": "clients listen at \\u2026/mcp"}', "HTTP 404 Status: clients listen at …/mcp"),
        (b'{"error": {"message": "no such route"}}', "HTTP 404 Status: no such route"),
        (b'{"error": "Status"}', "HTTP 404 Status"),
        (b'{"error": true}', 'HTTP 404 Status: {"error": true}'),
        (b'{"result": {}}', 'HTTP 404 Status: {"result": {}}'),
        (b"[1]", "HTTP 404 Status: [1]"),
    ],
)
async def test_an_error_page_is_told_by_its_status_and_its_text(body: bytes, said: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.reply(404, body, {"content-type": "application/json"})

    async with http_server(script) as server:
        with pytest.raises(Refused) as caught:
            await enter(server)
    assert str(caught.value) == said
    assert (caught.value.code, caught.value.status) == (404, 404)


async def test_a_failed_stream_without_a_message() -> None:
    async with http_server(streaming(status=502)) as server:
        with pytest.raises(Refused, match="HTTP 502"):
            await enter(server)


@pytest.mark.parametrize(
    ("header", "delay"),
    [
        ("5", 5.0),
        (" 0 ", 0.0),
        ("-1", None),
        ("soon", None),
        (None, None),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
    ],
)
def test_retry_after_is_read(header: str | None, delay: float | None) -> None:
    assert parse_retry_after(header) == delay


def test_retry_after_may_be_a_date() -> None:
    delay = parse_retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True))
    assert delay is not None
    assert 90 < delay <= 100


@pytest.mark.clause("D11")
@pytest.mark.parametrize("form", [replying, streaming])
async def test_a_result_without_an_ack_is_final(form: Any) -> None:
    script = replying(200, result) if form is replying else streaming(result)
    async with http_server(script) as server:
        with pytest.raises(NeverAcknowledged):
            await enter(server)


@pytest.mark.clause("D1")
async def test_a_cancel_before_the_ack() -> None:
    script = streaming(lambda id: {"method": "notifications/cancelled", "params": {"requestId": id}})
    async with http_server(script) as server:
        with pytest.raises(NeverAcknowledged, match="cancelled"):
            await enter(server)


@pytest.mark.clause("R25")
@pytest.mark.parametrize(
    "script",
    [
        streaming(lambda id: ack(id, toolsListChanged="yes")),
        streaming(lambda id: {"id": id, "result": {"resultType": "input_required"}}),
        replying(200, acked),
        replying(200, lambda _: []),
        replying(202, lambda _: {}),
    ],
    ids=["ack", "input_required", "notification as JSON", "array", "accepted"],
)
async def test_what_the_protocol_forbids(script: Callable[[Exchange], Awaitable[None]]) -> None:
    async with http_server(script) as server:
        with pytest.raises(ProtocolError):
            await enter(server)


@pytest.mark.clause("R18")
async def test_a_stream_that_closes_before_the_ack_is_lost() -> None:
    async with http_server(streaming()) as server:
        with pytest.raises(ConnectionLost):
            await enter(server)


async def test_a_server_that_is_not_there() -> None:
    async with http_server(hold) as server:
        pass
    with pytest.raises(ConnectionLost) as caught:
        await enter(server)
    assert str(caught.value) == f"cannot reach {server.url}: connection refused; is the server running?"


async def test_a_server_without_tls_that_is_asked_for_it() -> None:
    async def plain(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    url = f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, plain)
        with pytest.raises(ConnectionLost) as caught:
            await enter(Server(f"https://{url}"))
        tasks.cancel_scope.cancel()
    assert str(caught.value) == f"cannot reach https://{url}: its port does not speak TLS; try http://{url}"


async def test_an_error_never_shows_what_is_secret_in_the_url() -> None:
    async with http_server(hold) as server:
        pass
    url = server.url.replace("http://", "http://user:secret@") + "?key=secret"
    with pytest.raises(ConnectionLost) as caught:
        await enter(Server(url))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host:x/", "http://host:99999999/", "http:///mcp"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        connect(url)


# Redirects


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_is_followed(status: int) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.target == "/mcp":
            await exchange.reply(status, headers={"location": "/mcp/"})
        else:
            await hold(exchange)

    async with http_server(script) as server, listen(server.url, tools_list_changed=True, token="t"):
        assert [exchange.target for exchange in server.exchanges] == ["/mcp", "/mcp/"]
        assert server.exchanges[0].body == server.exchanges[1].body


@pytest.mark.parametrize("follow", [True, False])
async def test_the_token_never_goes_to_another_origin(follow: bool) -> None:
    async with http_server(hold) as other:

        async def script(exchange: Exchange) -> None:
            await exchange.reply(307, headers={"location": other.url})

        async with http_server(script) as server, httpx2.AsyncClient(follow_redirects=follow) as client:
            with pytest.raises(Refused, match=other.url) as caught:
                await enter(server, token="secret", http_client=client)
            assert caught.value.status == 307
    assert other.exchanges == []


@pytest.mark.parametrize(
    ("status", "location"), [(302, "/mcp/"), (303, "/mcp/"), (307, "http://host:x/"), (307, "/mcp")]
)
async def test_other_redirects_are_refusals(status: int, location: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.reply(status, headers={"location": location})

    async with http_server(script) as server:
        with pytest.raises(Refused, match="redirects"):
            await enter(server)


# The user's own client


async def test_a_read_timeout_does_not_end_a_quiet_stream() -> None:
    release = anyio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.acknowledge(toolsListChanged=True)
        await release.wait()
        await exchange.say(tools_changed(exchange.id), result(exchange.id))

    async with http_server(script) as server, httpx2.AsyncClient(timeout=0.05) as client:
        async with listen(server.url, tools_list_changed=True, http_client=client) as subscription:
            with anyio.move_on_after(0.3) as scope:
                await anext(subscription)
            assert scope.cancelled_caught
            assert subscription.ending is None
            release.set()
            assert await events_of(subscription) == [ToolsListChanged()]
        assert not client.is_closed


async def test_a_hundred_and_one_streams_at_once() -> None:
    """One more than an HTTP client of its own accord has connections."""
    open_streams = 0

    async def stay(connection: Connection) -> None:
        nonlocal open_streams
        async with connection.listen(tools_list_changed=True):
            open_streams += 1
            await anyio.sleep_forever()

    async with (
        http_server(hold) as server,
        connect(server.url) as connection,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(101):
            tasks.start_soon(stay, connection)
        with anyio.fail_after(20):
            while open_streams < 101:
                await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_full_pool_of_the_user_s_own_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harken.client.http._POOL_WAIT", 0.1)
    limits = httpx2.Limits(max_connections=1)
    async with (
        http_server(hold) as server,
        httpx2.AsyncClient(limits=limits) as client,
        connect(server.url, http_client=client) as connection,
        connection.listen(tools_list_changed=True) as subscription,
    ):
        with pytest.raises(PoolFull, match="max_connections"):
            await enter(server, http_client=client)
        with pytest.raises(PoolFull, match="max_connections"):
            await connection.request("tools/list")
        assert subscription.ending is None


async def test_a_client_that_has_been_closed_is_a_clear_error() -> None:
    async with http_server(hold) as server, httpx2.AsyncClient() as client:
        await client.aclose()
        with pytest.raises(ConnectionLost, match="http_client"):
            await enter(server, http_client=client)


# Other requests


@pytest.mark.clause("H12", "D14")
@pytest.mark.parametrize("form", [replying, streaming])
async def test_requests_are_answered_in_either_form(form: Any) -> None:
    def progress(id: Any) -> object:
        return {"method": "notifications/progress", "params": {"progressToken": id}}

    def answer(id: Any) -> object:
        return result(id, tools=[1])

    script = replying(200, answer) if form is replying else streaming(progress, answer)
    async with http_server(script) as server, connect(server.url) as connection:
        assert (await connection.request("tools/list"))["tools"] == [1]
        assert (await connection.discover())["resultType"] == "complete"


@pytest.mark.clause("H12", "D14")
@pytest.mark.parametrize("form", [replying, streaming])
async def test_requests_fail_in_either_form(form: Any) -> None:
    def failure(_: Any) -> object:
        return {"id": None, "error": {"code": -32601, "message": "unknown"}}

    script = replying(404, failure) if form is replying else streaming(failure, status=404)
    async with http_server(script) as server, connect(server.url) as connection:
        with pytest.raises(RPCError, match="unknown") as caught:
            await connection.request("tools/list")
        assert caught.value.code == -32601


async def test_requests_that_get_no_answer() -> None:
    async with http_server(streaming()) as server, connect(server.url) as connection:
        with pytest.raises(ConnectionLost, match="before it answered"):
            await connection.request("tools/list")
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1"):
        async with connect(server.url) as connection:
            await connection.request("tools/list")


async def test_a_comment_in_an_answer_is_ignored() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.open()
        await exchange.raw(b": ping\n\n")
        await exchange.say(result(exchange.id, tools=[2]))

    async with http_server(script) as server, connect(server.url) as connection:
        assert (await connection.request("tools/list"))["tools"] == [2]


async def test_an_answer_over_the_cap_is_not_read() -> None:
    script = replying(200, lambda id: result(id, text="x" * 2000))
    async with http_server(script) as server, connect(server.url, max_event_bytes=1000) as connection:
        with pytest.raises(ConnectionLost, match="1000 bytes"):
            await connection.request("tools/list")


async def test_a_compressed_answer_is_read_all_the_same() -> None:
    async def script(exchange: Exchange) -> None:
        body = gzip.compress(json.dumps(result(exchange.id, tools=[])).encode())
        await exchange.reply(200, body, {"content-encoding": "gzip"})

    async with http_server(script) as server, connect(server.url) as connection:
        assert (await connection.request("tools/list"))["tools"] == []
    assert server.exchanges[0].headers["accept-encoding"] == "identity"


@pytest.mark.clause("H12")
@pytest.mark.parametrize("status", [202, 400])
async def test_a_failed_notification_is_never_fatal(status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.reply(status)

    async with http_server(script) as server, connect(server.url) as connection:
        await connection.notify("notifications/example", {"a": 1})
        await connection.notify("notifications/example")
    assert server.exchanges[0].headers["mcp-method"] == "notifications/example"
    assert "id" not in server.exchanges[0].body
    assert ("400" in caplog.text) is (status == 400)
    async with connect(server.url) as connection:
        await connection.notify("notifications/example")
    assert "was not sent" in caplog.text


# Nothing is left


async def test_an_error_in_the_body_is_itself() -> None:
    async def fail(url: str) -> None:
        async with listen(url, tools_list_changed=True):
            raise KeyError("mine")

    async with http_server(hold) as server:
        with pytest.raises(KeyError, match="mine"):
            await fail(server.url)
        with anyio.fail_after(5):
            while not server.closed:
                await anyio.wait_all_tasks_blocked()


async def test_a_cancelled_body_closes_the_stream() -> None:
    async with http_server(hold) as server:
        with anyio.CancelScope() as scope:
            async with listen(server.url, tools_list_changed=True) as subscription:
                scope.cancel()
                await anext(subscription)
        assert subscription.ending is Ending.CLOSED
        with anyio.fail_after(5):
            while not server.closed:
                await anyio.wait_all_tasks_blocked()


async def test_a_cancel_while_entering_leaves_nothing() -> None:
    async def script(exchange: Exchange) -> None:
        scope.cancel()
        await exchange.until_closed()

    async with http_server(script) as server:
        with anyio.CancelScope() as scope:
            await enter(server)
        assert scope.cancelled_caught
        with anyio.fail_after(5):
            while not server.closed:
                await anyio.wait_all_tasks_blocked()


async def test_all_connections_share_one_tls_context() -> None:
    """One of its own would cost each of a thousand watched servers nearly a megabyte."""

    def contexts() -> int:
        return sum(isinstance(found, ssl.SSLContext) for found in gc.get_objects())

    async with connect("https://127.0.0.1:1/mcp"):
        before = contexts()
        assert before >= 1
        async with connect("http://127.0.0.1:1/mcp"), connect("https://127.0.0.1:2/mcp"):
            assert contexts() == before
