"""The standalone hub: what is at which path."""

from __future__ import annotations

import pytest

from harken.gateway.app import build
from tests.gateway.conftest import META, Serve

pytestmark = pytest.mark.anyio


@pytest.mark.clause("R20", "A1")
async def test_discover_promises_all_four_kinds(serve: Serve) -> None:
    async with serve() as peer:
        result = (await peer.call("server/discover")).json()["result"]
        assert result["capabilities"] == {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
        }


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ],
)
async def test_a_client_that_refetches_meets_no_error(serve: Serve, method: str, key: str) -> None:
    async with serve() as peer:
        result = (await peer.call(method)).json()["result"]
        assert result[key] == []
        assert result["resultType"] == "complete"
        assert (result["ttlMs"], result["cacheScope"]) == (0, "public")


async def test_every_kind_is_honoured(serve: Serve) -> None:
    wanted = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["file:///a"],
    }
    async with serve() as peer, peer.listen(**wanted) as messages:
        ack = await anext(messages)
        assert ack["params"]["notifications"] == wanted  # type: ignore[index]  # JSON


@pytest.mark.parametrize("path", ["/", "/sse", "/mcp/more", "/publish/x"])
async def test_another_path_is_told_where_to_go(serve: Serve, path: str) -> None:
    async with serve() as peer:
        answer = await peer.http.get(path)
        assert answer.status_code == 404
        assert answer.json()["paths"] == ["/mcp", "/publish"]


async def test_a_trailing_slash_does_no_harm(serve: Serve) -> None:
    async with serve() as peer:
        assert (await peer.http.get("/mcp/")).status_code == 405
        assert (await peer.http.get("/publish/")).status_code == 405


@pytest.mark.field("F56")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_what_older_clients_try_is_405(serve: Serve, method: str) -> None:
    async with serve() as peer:
        answer = await peer.http.request(method, "/mcp")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"


@pytest.mark.field("F56")
@pytest.mark.clause("A7")
async def test_an_older_client_learns_which_versions_would_do(serve: Serve) -> None:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "old", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    async with serve() as peer:
        answer = await peer.http.post("/mcp", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["data"]["supported"] == [
            META["io.modelcontextprotocol/protocolVersion"]
        ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "hub.example"])
def test_off_loopback_strangers_may_not_publish(host: str) -> None:
    with pytest.raises(ValueError, match="HARKEN_PUBLISH_TOKEN or pass --publish-token"):
        build(host, None)
    build(host, "secret")


async def test_off_loopback_any_name_leads_to_it(serve: Serve) -> None:
    async with serve("secret", "0.0.0.0") as peer:
        headers = {"host": "hub.example", "authorization": "Bearer secret"}
        assert (await peer.publish([], **headers)).status_code == 202
