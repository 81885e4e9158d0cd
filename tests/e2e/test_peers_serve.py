"""`harken serve` on a folder, with a listener of each official SDK attached at the same time."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent, Subscription
from mcp_types import SubscriptionFilter

from tests.e2e.commands import command
from tests.peers.typescript import typescript_client

pytestmark = pytest.mark.anyio

LIMIT = 30  # seconds, a bound on a machine with much else to do


async def until(heard: Subscription, event: ServerEvent) -> None:
    """Read to this event; one edit may be told more than once."""
    while await anext(heard) != event:
        pass


@pytest.mark.clause("R6", "R9", "R10", "R14", "H13")
async def test_both_hear_an_edit_and_both_are_told_of_the_end(
    tmp_path: Path, harken_command: str, node: str
) -> None:
    note = tmp_path / "note.md"
    note.write_text("one")
    async with command(harken_command, "serve", str(tmp_path), "--port", "0") as server:
        url = await server.url()
        with anyio.fail_after(LIMIT):
            async with Client(url) as python, typescript_client(node, url) as typescript:
                uri = (await python.list_resources()).resources[0].uri
                assert uri == note.as_uri()
                async with python.listen(resources_list_changed=True, resource_subscriptions=[uri]) as heard:
                    wanted = {"resourcesListChanged": True, "resourceSubscriptions": [uri]}
                    assert await typescript.listen("it", **wanted) == wanted
                    assert heard.honored == SubscriptionFilter.model_validate(wanted)

                    note.write_text("two")
                    await until(heard, ResourceUpdated(uri=uri))
                    updated = await typescript.see(
                        type="notification", method="notifications/resources/updated"
                    )
                    assert updated["params"]["uri"] == uri

                    (tmp_path / "another.md").write_text("new")
                    await until(heard, ResourcesListChanged())
                    await typescript.see(type="notification", method="notifications/resources/list_changed")
                    listed = {resource.uri for resource in (await python.list_resources()).resources}
                    assert listed == {uri, (tmp_path / "another.md").as_uri()}

                    await server.interrupt()
                    async for _ in heard:  # SubscriptionLost unless the end is graceful
                        pass
                    await typescript.see(**{"type": "closed", "as": "it", "how": "graceful"})
                assert {line["type"] for line in await typescript.rest()} <= {"notification"}
        code, _, stderr = await server.end()
        assert (code, "Traceback" in stderr) == (0, False), stderr
