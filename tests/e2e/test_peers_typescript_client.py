"""The official TypeScript SDK's client listens to our server, over HTTP and stdio."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.e2e.commands import command
from tests.peers.typescript import Line, TypeScriptClient, typescript_client

pytestmark = pytest.mark.anyio

URI = "note://today"
OURS = [sys.executable, "-m", "tests.peers.ours"]
ALL = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": [URI],
}
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
EVENTS = [
    ({"event": "tools_list_changed"}, TOOLS),
    ({"event": "prompts_list_changed"}, PROMPTS),
    ({"event": "resources_list_changed"}, RESOURCES),
    ({"event": "resource_updated", "uri": URI}, UPDATED),
]

Meet = Callable[..., AbstractAsyncContextManager[TypeScriptClient]]


@contextlib.asynccontextmanager
async def over_http(node: str, options: list[str]) -> AsyncIterator[TypeScriptClient]:
    """The client on a server of ours over HTTP; both end as they should."""
    async with command(*OURS, "http", *options) as server:
        async with typescript_client(node, await server.url()) as client:
            yield client
        await server.interrupt()
        code, _, stderr = await server.end()
        assert (code, "Traceback" in stderr) == (0, False), stderr


@contextlib.asynccontextmanager
async def over_stdio(node: str, options: list[str]) -> AsyncIterator[TypeScriptClient]:
    """The client on a server of ours over stdio."""
    async with typescript_client(node, *OURS, "stdio", *options) as client:
        yield client


@pytest.fixture(params=[over_http, over_stdio], ids=["http", "stdio"])
def meet(request: pytest.FixtureRequest, node: str) -> Meet:
    """Connects the client to a server of ours, which supports the given kinds; without any, all."""

    def connect(*kinds: str) -> AbstractAsyncContextManager[TypeScriptClient]:
        options = [word for kind in kinds for word in ("--supports", kind)]
        connection: AbstractAsyncContextManager[TypeScriptClient] = request.param(node, options)
        return connection

    return connect


def id_of(line: Line) -> object:
    """The subscription of a notification."""
    return line["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]


async def until_streams(client: TypeScriptClient, count: int) -> None:
    """Ask until the server holds `count` streams."""
    while await client.call("streams") != str(count):
        pass


@pytest.mark.clause("R2", "R4", "R6", "D5")
async def test_the_ack_names_what_is_honored(meet: Meet) -> None:
    async with meet() as client:
        assert await client.listen("all", **ALL | {"resourceSubscriptions": [URI, URI]}) == ALL
        assert await client.listen("one", promptsListChanged=True) == {"promptsListChanged": True}
        await client.close("all")
        await client.close("one")
        assert await client.rest() == []


@pytest.mark.clause("R7", "R8", "R9", "R10")
async def test_each_change_is_heard_once(meet: Meet) -> None:
    async with meet() as client:
        await client.listen("all", **ALL)
        for event, method in EVENTS:
            await client.call("publish", **event)
            line = await client.see(type="notification", method=method)
            assert line["params"].get("uri") == event.get("uri")
        await client.close("all")
        assert await client.rest() == []


@pytest.mark.clause("R1")
@pytest.mark.field("F8")
async def test_nothing_else_is_heard(meet: Meet) -> None:
    async with meet() as client:
        await client.listen("one", resourceSubscriptions=[URI])
        for event, _ in EVENTS[:3]:
            await client.call("publish", **event)
        await client.call("publish", event="resource_updated", uri="note://yesterday")
        await client.call("publish", event="resource_updated", uri=URI)
        assert (await client.see(type="notification"))["params"]["uri"] == URI
        await client.close("one")
        assert await client.rest() == []


@pytest.mark.clause("R3", "R20")
async def test_an_unsupported_kind_is_left_out_and_not_advertised(meet: Meet) -> None:
    async with meet("toolsListChanged", "resourceSubscriptions") as client:
        assert client.capabilities == {
            "tools": {"listChanged": True},
            "prompts": {},
            "resources": {"subscribe": True},
        }
        honored = await client.listen("all", **ALL)
        assert honored == {"toolsListChanged": True, "resourceSubscriptions": [URI]}
        await client.call("publish", event="prompts_list_changed")
        await client.call("publish", event="tools_list_changed")
        assert (await client.see(type="notification"))["method"] == TOOLS
        await client.close("all")
        assert await client.rest() == []


@pytest.mark.clause("D2")
@pytest.mark.field("F1")
async def test_a_stream_of_which_nothing_is_honored_ends_at_once(meet: Meet) -> None:
    async with meet("toolsListChanged") as client:
        assert await client.listen("nothing", promptsListChanged=True) == {}
        await client.see(**{"type": "closed", "as": "nothing", "how": "graceful"})
        await until_streams(client, 0)
        assert await client.rest() == []


@pytest.mark.clause("R14", "D1")
async def test_the_servers_end_is_graceful_and_comes_last(meet: Meet) -> None:
    async with meet() as client:
        await client.listen("a", toolsListChanged=True)
        await client.listen("b", toolsListChanged=True)
        await client.call("publish", event="tools_list_changed")
        await client.call("end")
        for name in ("a", "b"):
            await client.see(type="notification", method=TOOLS)
            await client.see(**{"type": "closed", "as": name, "how": "graceful"})
        assert await client.rest() == []


@pytest.mark.clause("R15", "H9")
@pytest.mark.field("F55")
async def test_the_clients_cancel_ends_it_without_another_word(meet: Meet) -> None:
    """This client closes the stream and sends `notifications/cancelled` as well, on both transports."""
    async with meet() as client:
        await client.listen("one", toolsListChanged=True)
        await until_streams(client, 1)
        await client.close("one")
        await until_streams(client, 0)
        await client.call("publish", event="tools_list_changed")
        assert await client.rest() == []


@pytest.mark.clause("R6", "R12", "T2")
@pytest.mark.field("F43", "F44")
async def test_two_subscriptions_overlap_and_one_outlives_the_other(meet: Meet) -> None:
    async with meet() as client:
        await client.listen("longer", toolsListChanged=True, promptsListChanged=True)
        await client.listen("shorter", toolsListChanged=True)
        await client.call("publish", event="tools_list_changed")
        heard = [await client.see(type="notification", method=TOOLS) for _ in range(2)]
        await client.call("publish", event="prompts_list_changed")
        longer = id_of(await client.see(type="notification", method=PROMPTS))
        assert {id_of(line) for line in heard} > {longer}
        await client.close("shorter")
        await until_streams(client, 1)
        await client.call("publish", event="tools_list_changed")
        assert id_of(await client.see(type="notification", method=TOOLS)) == longer
        await client.close("longer")
        assert await client.rest() == []
