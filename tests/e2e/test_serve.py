"""`harken serve`: the real command on real folders, heard over both transports, by our client and another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client import subscriptions as official
from mcp_types.methods import parse_server_notification, parse_server_result

from harken.client.connection import Connection
from harken.client.listen import connect
from harken.client.subscription import Subscription
from harken.core.demux import Ending
from harken.core.events import Event, ResourcesListChanged, ResourceUpdated
from harken.errors import RPCError
from tests.e2e.commands import LIMIT, Command, command, run

pytestmark = pytest.mark.anyio

LIST = ResourcesListChanged()
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}

Serving = Callable[..., AbstractAsyncContextManager[Connection]]


@pytest.fixture
def notes(tmp_path: Path, project: Path) -> Path:
    """A copy of the examples' notes, in a folder whose name needs encoding."""
    copy = shutil.copytree(project / "examples" / "notes", tmp_path / "my notes (new)")
    (copy / "today.md").unlink(missing_ok=True)
    return copy


@contextlib.asynccontextmanager
async def over_http(harken: str, folder: Path, *options: str) -> AsyncIterator[Connection]:
    async with command(harken, "serve", str(folder), "--port", "0", *options) as server:
        async with connect(await server.url()) as connection:
            yield connection
        await ends_well(server, signal.SIGINT)


@contextlib.asynccontextmanager
async def over_stdio(harken: str, folder: Path, *options: str) -> AsyncIterator[Connection]:
    said: list[str] = []
    words = [harken, "serve", str(folder), "--stdio", *options]
    async with asyncio.timeout(LIMIT):
        async with connect(words, stderr=said.append) as connection:
            yield connection
    assert said == []


async def ends_well(server: Command, number: signal.Signals) -> None:
    """The server ends by the signal as it should."""
    await server.interrupt(number)
    code, stdout, stderr = await server.end()
    assert (code, stdout) == (0, "")
    assert "Ctrl-C ends" in stderr
    assert "Traceback" not in stderr


both = pytest.mark.parametrize("serving", [over_http, over_stdio], ids=["http", "stdio"])


def uri(path: Path) -> str:
    return ResourceUpdated(path.as_uri().replace("%28", "(").replace("%29", ")")).uri


def updated(path: Path) -> Event:
    return ResourceUpdated(uri(path))


async def resources(connection: Connection) -> dict[str, Any]:
    """What `resources/list` names, by URI."""
    found: dict[str, Any] = {}
    params: dict[str, object] = {}
    while True:
        result: Any = await connection.request("resources/list", params)
        parse_server_result("resources/list", VERSION, result)
        found |= {resource["uri"]: resource for resource in result["resources"]}
        if "nextCursor" not in result:
            return found
        params = {"cursor": result["nextCursor"]}


async def text_of(connection: Connection, path: Path) -> str:
    result: Any = await connection.request("resources/read", {"uri": uri(path)})
    parse_server_result("resources/read", VERSION, result)
    text = result["contents"][0]["text"]
    assert isinstance(text, str)
    return text


async def heard(subscription: Subscription, *wanted: Event) -> set[Event]:
    """All that was heard until each of `wanted` was."""
    found: set[Event] = set()
    while not found >= set(wanted):
        found.add(await anext(subscription))
    return found


@both
@pytest.mark.clause("R9", "R10", "T2")
@pytest.mark.field("F7")
async def test_every_change_is_heard_and_can_be_fetched(
    harken_command: str, notes: Path, serving: Serving
) -> None:
    async with serving(harken_command, notes) as connection:
        listed = await resources(connection)
        assert {listed[each]["name"] for each in listed} == {"ideas.txt", "shopping.md", "welcome.md"}
        new, shopping = notes / "new.txt", notes / "shopping.md"
        async with connection.listen(
            resources_list_changed=True, resource_subscriptions=[*listed, uri(new)]
        ) as subscription:
            shopping.write_text("- a drum\n", "utf-8")
            assert await heard(subscription, updated(shopping)) == {updated(shopping)}
            assert await text_of(connection, shopping) == "- a drum\n"

            new.write_text("1", "utf-8")
            await heard(subscription, LIST, updated(new))
            assert uri(new) in await resources(connection)

            new.rename(shopping)
            await heard(subscription, LIST, updated(new), updated(shopping))
            assert await text_of(connection, shopping) == "1"
            with pytest.raises(RPCError) as refused:
                await text_of(connection, new)
            assert (refused.value.code, refused.value.data) == (-32602, {"uri": uri(new)})

            shopping.unlink()
            await heard(subscription, LIST, updated(shopping))
            assert set(await resources(connection)) == set(listed) - {uri(shopping)}


@both
async def test_the_folder_goes_and_comes_back(harken_command: str, notes: Path, serving: Serving) -> None:
    async with serving(harken_command, notes) as connection:
        welcome = notes / "welcome.md"
        async with connection.listen(
            resources_list_changed=True, resource_subscriptions=[uri(welcome)]
        ) as subscription:
            shutil.rmtree(notes)
            await heard(subscription, LIST, updated(welcome))
            assert await resources(connection) == {}
            os.mkdir(notes)
            welcome.write_text("back", "utf-8")
            await heard(subscription, LIST, updated(welcome))
            assert set(await resources(connection)) == {uri(welcome)}
            welcome.write_text("again", "utf-8")
            await heard(subscription, updated(welcome))


@both
@pytest.mark.clause("R3", "R20", "A1")
async def test_it_promises_what_a_folder_can_tell(harken_command: str, notes: Path, serving: Serving) -> None:
    async with serving(harken_command, notes) as connection:
        discovered = await connection.discover()
        assert discovered["capabilities"] == {"resources": {"listChanged": True, "subscribe": True}}
        parse_server_result("server/discover", VERSION, discovered)
        async with connection.listen(
            tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        ) as subscription:
            assert subscription.unsupported.to_wire() == {
                "toolsListChanged": True,
                "promptsListChanged": True,
            }
        template: Any = await connection.request("resources/templates/list")
        parse_server_result("resources/templates/list", VERSION, template)
        assert template["resourceTemplates"][0]["uriTemplate"] == uri(notes) + "/{+path}"


@both
async def test_the_options(harken_command: str, notes: Path, serving: Serving) -> None:
    (notes / ".draft.md").touch()
    (notes / "old").mkdir()
    (notes / "old" / "list.md").touch()
    options = ["--exclude", "*.txt", "--exclude", "old/", "--hidden", "--base-uri", "notes:///"]
    async with serving(harken_command, notes, *options) as connection:
        assert set(await resources(connection)) == {
            "notes:///.draft.md",
            "notes:///shopping.md",
            "notes:///welcome.md",
        }
        async with connection.listen(resource_subscriptions=["notes:///.draft.md"]) as subscription:
            (notes / ".draft.md").write_text("x", "utf-8")
            assert await anext(subscription) == ResourceUpdated("notes:///.draft.md")


@both
async def test_nothing_outside_is_readable(harken_command: str, notes: Path, serving: Serving) -> None:
    (notes.parent / "secret").write_text("secret", "utf-8")
    (notes / "link").symlink_to(notes.parent / "secret")
    (notes / "up").symlink_to(notes.parent)
    rests = ["/../secret", "/%2e%2e/secret", "/..%2Fsecret", "/link", "/up/secret", "//etc/passwd", "/x%00"]
    async with serving(harken_command, notes) as connection:
        for asked in [
            *(uri(notes) + rest for rest in rests),
            "file:///etc/passwd",
            uri(notes.parent / "secret"),
        ]:
            with pytest.raises(RPCError) as refused:
                await connection.request("resources/read", {"uri": asked})
            assert (refused.value.code, refused.value.data) == (-32602, {"uri": asked})
        assert len(await resources(connection)) == 3


async def test_a_git_checkout_of_a_thousand_files(harken_command: str, tmp_path: Path) -> None:
    """Each of them is heard, through one filter that names them all."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def git(*words: str) -> None:
        identity = ["-c", "user.name=harken", "-c", "user.email=harken@localhost"]
        words = ("git", *identity, "-c", "gc.auto=0", *words)
        subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, timeout=LIMIT)

    files = [folder / f"part{number % 20}" / f"{number}.txt" for number in range(1_000)]
    await asyncio.to_thread(git, "init", "-b", "main")
    for text in ("one", "two"):
        for file in files:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
        await asyncio.to_thread(git, "add", ".")
        await asyncio.to_thread(git, "commit", "-m", text)
    async with over_http(harken_command, folder) as connection:
        listed = await resources(connection)
        assert set(listed) == set(map(uri, files))
        async with connection.listen(
            resources_list_changed=True, resource_subscriptions=list(listed)
        ) as subscription:
            await asyncio.to_thread(git, "checkout", "--detach", "HEAD~1")
            assert await heard(subscription, *map(updated, files)) >= set(map(updated, files))
            assert await text_of(connection, files[-1]) == "one"


async def test_two_clients_of_two_makers_hear_an_edit_and_the_end(harken_command: str, notes: Path) -> None:
    """Ctrl-C on the server ends both gracefully."""
    shopping = notes / "shopping.md"
    async with command(harken_command, "serve", str(notes), "--port", "0") as server:
        url = await server.url()
        async with (
            connect(url) as connection,
            connection.listen(resource_subscriptions=[uri(shopping)]) as ours,
            Client(url) as client,
            client.listen(resource_subscriptions=[uri(shopping)]) as theirs,
        ):
            shopping.write_text("- a drum\n", "utf-8")
            assert await anext(ours) == updated(shopping)
            assert await anext(theirs) == official.ResourceUpdated(uri=uri(shopping))
            await server.interrupt()
            assert [event async for event in theirs] == []  # raises unless the end is graceful
            assert [event async for event in ours] == []
            assert ours.ending is Ending.COMPLETED
        assert (await server.end())[0] == 0


async def test_the_official_client_lists_and_reads(harken_command: str, notes: Path) -> None:
    (notes / "bell.bin").write_bytes(b"\0\1")
    async with (
        command(harken_command, "serve", str(notes), "--port", "0") as server,
        Client(await server.url()) as client,
    ):
        listed = await client.list_resources()
        assert [resource.name for resource in listed.resources] == [
            "bell.bin",
            "ideas.txt",
            "shopping.md",
            "welcome.md",
        ]
        contents = [(await client.read_resource(str(each.uri))).contents[0] for each in listed.resources]
        assert [content.mime_type for content in contents] == [
            "application/octet-stream",
            "text/plain",
            "text/markdown",
            "text/markdown",
        ]
        templates = await client.list_resource_templates()
        assert templates.resource_templates[0].name == notes.name


async def test_listen_all_follows_the_list(harken_command: str, notes: Path) -> None:
    """The command of the demo: a file is added, and then edited."""
    async with command(harken_command, "serve", str(notes), "--port", "0") as server:
        url = await server.url()
        async with command(harken_command, "listen", url, "--all", "--json") as listener:
            assert (await listener.message())["type"] == "ack"
            new = notes / "new.md"
            new.touch()
            while uri(new) not in (message := await listener.message()).get("honored", {}).get(
                "resourceSubscriptions", []
            ):
                assert message["type"] in {"event", "ack"}
            new.write_text("x", "utf-8")
            while (message := await listener.message()).get("uri") != uri(new):
                assert message["type"] in {"event", "ack"}
            await ends_well(server, signal.SIGTERM)
            *_, last = await listener.messages()
            assert (last["type"], last["ending"]) == ("ended", "completed")
            assert (await listener.end())[0] == 0


@pytest.mark.clause("T1", "T3", "T5")
async def test_stdio_says_nothing_but_the_protocol(harken_command: str, notes: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        harken_command,
        "serve",
        str(notes),
        "--stdio",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def send(id: int, method: str, **params: object) -> None:
        assert process.stdin is not None
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": META}}
        process.stdin.write(json.dumps(message).encode() + b"\n")

    try:
        async with asyncio.timeout(LIMIT):
            send(1, "subscriptions/listen", notifications={"resourcesListChanged": True})
            ack = json.loads(await process.stdout.readline())
            assert ack["method"] == "notifications/subscriptions/acknowledged"
            send(2, "resources/list")
            answer = json.loads(await process.stdout.readline())
            assert (answer["id"], len(answer["result"]["resources"])) == (2, 3)
            (notes / "new.md").touch()
            event = json.loads(await process.stdout.readline())
            parse_server_notification(event["method"], VERSION, event["params"])
            assert event["method"] == "notifications/resources/list_changed"
            process.stdin.close()
            rest, said = await process.communicate()
            assert process.returncode == 0
            assert said == b""
            *others, last = [json.loads(line) for line in rest.splitlines()]
            assert {other["method"] for other in others} <= {"notifications/resources/list_changed"}
            assert (last["id"], last["result"]["resultType"]) == (1, "complete")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_json_says_where_on_stdout(harken_command: str, notes: Path) -> None:
    async with command(harken_command, "serve", str(notes), "--port", "0", "--json") as server:
        ready = await server.message()
        assert ready["type"] == "ready"
        async with connect(ready["url"]) as connection:
            assert len(await resources(connection)) == 3
        await server.interrupt()
        assert await server.end() == (0, "", "")


async def test_a_port_in_use_is_said(harken_command: str, notes: Path) -> None:
    async with command(harken_command, "serve", str(notes), "--port", "0") as server:
        port = (await server.url()).removesuffix("/mcp").rpartition(":")[2]
        code, stdout, stderr = await run(harken_command, "serve", str(notes), "--port", port)
        assert (code, stdout) == (2, "")
        assert "is in use" in stderr
        assert "Traceback" not in stderr
