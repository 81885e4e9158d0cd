"""`harken listen --all` on `harken serve`: what is added is listened to, and what is edited is heard."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import Command, command

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one file."""
    (tmp_path / "first.md").write_text("one", "utf-8")
    return tmp_path


@contextlib.asynccontextmanager
async def listener_over_http(harken_command: str, folder: Path) -> AsyncIterator[Command]:
    async with command(harken_command, "serve", str(folder), "--port", "0") as server:
        url = await server.url()
        async with command(harken_command, "listen", url, "--all", "--json") as listener:
            yield listener
        server.process.send_signal(signal.SIGINT)
        code, _, stderr = await server.end()
        assert code == 0
        assert "Traceback" not in stderr


@contextlib.asynccontextmanager
async def listener_over_stdio(harken_command: str, folder: Path) -> AsyncIterator[Command]:
    server = [harken_command, "serve", str(folder), "--stdio"]
    async with command(harken_command, "listen", "--all", "--json", "--", *server) as listener:
        yield listener


async def until(listener: Command, **wanted: object) -> list[Any]:
    """Reads up to the first message that has all of `wanted`."""
    seen: list[Any] = []
    while not seen or not wanted.items() <= seen[-1].items():
        seen.append(await listener.message())
    return seen


@pytest.mark.parametrize("transport", [listener_over_http, listener_over_stdio])
async def test_a_file_is_added_and_then_edited(harken_command: str, folder: Path, transport: Any) -> None:
    first, second = (folder / name for name in ("first.md", "second.md"))
    async with transport(harken_command, folder) as listener:
        ack = await listener.message()
        assert ack["honored"]["resourceSubscriptions"] == [first.as_uri()]
        assert ack["unsupported"] == {"toolsListChanged": True, "promptsListChanged": True}

        second.write_text("two", "utf-8")
        seen = await until(listener, type="ack")
        assert [message for message in seen if message.get("event") == "resources_list_changed"]
        assert seen[-1]["honored"]["resourceSubscriptions"] == [first.as_uri(), second.as_uri()]

        second.write_text("two and a half", "utf-8")
        await until(listener, event="resource_updated", uri=second.as_uri())
        first.write_text("one and a half", "utf-8")
        await until(listener, event="resource_updated", uri=first.as_uri())

        first.unlink()
        seen = await until(listener, type="ack")
        assert seen[-1]["honored"]["resourceSubscriptions"] == [second.as_uri()]
