"""`POST /publish`: who may, and what is taken."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx2
import pytest

from harken.gateway import publish
from harken.gateway.publish import Publish
from harken.server.asgi import Message
from harken.server.hub import Hub
from tests.gateway.conftest import Serve

pytestmark = pytest.mark.anyio

TOOLS = {"event": "tools_list_changed"}


def error(response: httpx2.Response) -> str:
    message = response.json()["error"]
    assert isinstance(message, str)
    return message


async def test_one_event_or_a_list_reaches_who_listens(serve: Serve) -> None:
    async with (
        serve() as peer,
        peer.listen(
            toolsListChanged=True, promptsListChanged=True, resourceSubscriptions=["file:///a"]
        ) as messages,
    ):
        await anext(messages)
        answer = await peer.publish(TOOLS)
        assert (answer.status_code, answer.json()) == (202, {"accepted": 1})
        assert (await anext(messages))["method"] == "notifications/tools/list_changed"
        answer = await peer.publish(
            [{"event": "resource_updated", "uri": "file:///a"}, {"event": "prompts_list_changed"}]
        )
        assert (answer.status_code, answer.json()) == (202, {"accepted": 2})
        updated = await anext(messages)
        assert updated["method"] == "notifications/resources/updated"
        assert updated["params"]["uri"] == "file:///a"  # type: ignore[index]  # JSON
        assert (await anext(messages))["method"] == "notifications/prompts/list_changed"


async def test_without_anyone_who_listens_it_is_accepted(serve: Serve) -> None:
    async with serve() as peer:
        assert (await peer.publish([])).json() == {"accepted": 0}
        assert (await peer.publish([TOOLS, TOOLS])).json() == {"accepted": 2}


async def test_a_bad_entry_is_named_and_none_is_accepted(serve: Serve) -> None:
    async with serve() as peer, peer.listen(toolsListChanged=True, promptsListChanged=True) as messages:
        await anext(messages)
        answer = await peer.publish([TOOLS, {"event": "nonsense"}])
        assert answer.status_code == 400
        assert answer.json()["index"] == 1
        assert "event must be one of" in answer.json()["reason"]
        assert error(answer).startswith("the entry at index 1: ")
        await peer.publish({"event": "prompts_list_changed"})
        assert (await anext(messages))["method"] == "notifications/prompts/list_changed"


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5_000])
async def test_a_broken_body_is_answered(serve: Serve, body: bytes) -> None:
    async with serve() as peer:
        assert (await peer.publish(body)).status_code == 400


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_what_a_form_could_send_is_not_taken(serve: Serve, content_type: str) -> None:
    async with serve() as peer:
        answer = await peer.publish(TOOLS, content_type=content_type)
        assert answer.status_code == 415
        assert "application/json" in error(answer)


async def test_a_charset_is_taken(serve: Serve) -> None:
    async with serve() as peer:
        answer = await peer.publish(TOOLS, content_type="Application/JSON; charset=utf-8")
        assert answer.status_code == 202


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:8766", "http://127.0.0.1"]
)
@pytest.mark.parametrize("token", [None, "secret"])
async def test_no_web_page_may_publish(serve: Serve, origin: str, token: str | None) -> None:
    async with serve(token) as peer:
        answer = await peer.publish(TOOLS, origin=origin, authorization="Bearer secret")
        assert answer.status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8766", "127.0.0.1.evil.example", "", "[", "10.0.0.1"]
)
async def test_a_rebound_name_may_not_publish(serve: Serve, host: str) -> None:
    async with serve() as peer:
        answer = await peer.publish(TOOLS, host=host)
        assert answer.status_code == 403
        assert "localhost" in error(answer)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8766", "[::1]:8766", "127.9.9.9"])
async def test_every_name_of_loopback_may_publish(serve: Serve, host: str) -> None:
    async with serve() as peer:
        assert (await peer.publish(TOOLS, host=host)).status_code == 202


async def test_without_a_token_no_proxy_may_publish(serve: Serve) -> None:
    async with serve() as peer:
        answer = await peer.publish(TOOLS, x_forwarded_for="203.0.113.9")
        assert answer.status_code == 403
        assert "--publish-token" in error(answer)


@pytest.mark.parametrize("authorization", ["Bearer secret", "bearer secret", "BEARER  secret"])
async def test_the_token_opens(serve: Serve, authorization: str) -> None:
    async with serve("secret") as peer:
        answer = await peer.publish(TOOLS, authorization=authorization, x_forwarded_for="203.0.113.9")
        assert answer.status_code == 202


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer Secret"},
        {"authorization": "Bearer secret2"},
        {"authorization": "Bearer secre"},
        {"authorization": "Bearer \xff"},
        {"authorization": "Basic secret"},
        {"authorization": "secret"},
    ],
)
async def test_without_the_right_token_it_is_401(serve: Serve, headers: dict[str, str]) -> None:
    async with serve("secret") as peer:
        raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        answer = await peer.http.post("/publish", json=TOOLS, headers=raw)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert "secret" not in error(answer)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_only_post(serve: Serve, method: str) -> None:
    async with serve() as peer:
        answer = await peer.http.request(method, "/publish")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"


async def test_the_body_is_capped(serve: Serve) -> None:
    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 65_536

    async with serve() as peer:
        assert (await peer.publish(b" " * (publish.MAX_BODY + 1))).status_code == 413
        headers = {"content-type": "application/json"}
        answer = await peer.http.post("/publish", content=chunks(), headers=headers)
        assert answer.status_code == 413
        assert (await peer.publish(TOOLS)).status_code == 202


async def test_half_a_request_publishes_nothing(serve: Serve) -> None:
    async with serve() as peer, peer.listen(toolsListChanged=True, promptsListChanged=True) as messages:
        await anext(messages)
        body = b'{"event": "tools_list_changed"}'
        head = b"POST /publish HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", peer.http.base_url.port or 0)) as half:
            half.sendall(head + b"content-length: %d\r\n\r\n" % (len(body) + 1) + body)
        await peer.publish({"event": "prompts_list_changed"})
        assert (await anext(messages))["method"] == "notifications/prompts/list_changed"


async def test_a_body_that_never_comes_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "BODY_TIMEOUT", 0.05)
    async with serve() as peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.http.base_url.port)
        head = b"POST /publish HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: 5\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()


async def test_a_hub_that_ends_says_when_to_come_back(serve: Serve) -> None:
    async with serve() as peer:
        await peer.hub.drain()
        answer = await peer.publish(TOOLS)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0


async def ask(app: Publish, client: tuple[str, int] | None, host: bytes = b"localhost") -> int:
    """Publishes as a caller at this address, which no loopback socket can have."""
    headers = [(b"host", host), (b"content-type", b"application/json"), (b"authorization", b"Bearer secret")]
    scope = {"type": "http", "method": "POST", "headers": headers, "client": client}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"[]"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status = sent[0]["status"]
    assert isinstance(status, int)
    return status


@pytest.mark.parametrize(
    ("client", "status"),
    [
        (("127.0.0.1", 1), 202),
        (("::1", 1), 202),
        (("192.0.2.1", 1), 403),
        (("::ffff:192.0.2.1", 1), 403),
        (None, 403),
    ],
)
async def test_without_a_token_only_this_machine_may(client: tuple[str, int] | None, status: int) -> None:
    async with Hub() as hub:
        assert await ask(Publish(hub, None), client) == status


@pytest.mark.parametrize(
    ("token", "any_host", "status"),
    [("secret", True, 202), ("secret", False, 403), (None, True, 403), (None, False, 403)],
)
async def test_off_loopback_the_token_alone_decides(token: str | None, any_host: bool, status: int) -> None:
    async with Hub() as hub:
        app = Publish(hub, token, any_host=any_host)
        assert await ask(app, ("127.0.0.1", 1), b"hub.example") == status
