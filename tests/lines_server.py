"""A stdio server for tests, which does on request what publishers and handlers do in the field.

Its one argument is a JSON object: options of the hub, and `uvloop`.
"""

import asyncio
import contextlib
import json
import logging
import resource
import sys
import threading
from collections.abc import Mapping
from typing import Any

from harken.core.events import Event, ResourceUpdated, ToolsListChanged
from harken.errors import HubClosed
from harken.server.hub import Hub
from harken.server.limits import Limits
from harken.server.methods import Request

logging.basicConfig(level=logging.INFO)
gates: dict[str, asyncio.Event] = {}
tasks: set[asyncio.Task[None]] = set()
before: set[asyncio.Task[Any]] = set()
progress = {"published": 0}


def events(request: Request) -> list[Event]:
    """The URIs of a request as events; without any, that the tools have changed."""
    uris = request.params.get("uris", ())
    assert isinstance(uris, list | tuple)
    return [ResourceUpdated(uri) for uri in uris] or [ToolsListChanged()]


async def publish(request: Request) -> Mapping[str, object]:
    """Publishes from within the handler."""
    await hub.publish(*events(request))
    return {}


async def tools(request: Request) -> Mapping[str, object]:
    """No tools."""
    return {"tools": []}


async def publish_from_task(request: Request) -> Mapping[str, object]:
    """Publishes from a background task, after the answer."""

    async def later() -> None:
        await asyncio.sleep(0)
        await hub.publish(*events(request))

    tasks.add(asyncio.create_task(later()))
    return {}


async def publish_from_thread(request: Request) -> Mapping[str, object]:
    """Publishes from another thread."""
    await asyncio.to_thread(hub.publish_from_thread, *events(request))
    return {}


async def storm(request: Request) -> Mapping[str, object]:
    """Publishes in a hot loop from now on, or for so many `seconds`."""
    names = events(request)
    loop = asyncio.get_running_loop()
    end = loop.time() + float(str(request.params.get("seconds", "inf")))

    async def run() -> None:
        with contextlib.suppress(HubClosed):
            while loop.time() < end:
                for event in names:
                    await hub.publish(event)
                    progress["published"] += 1

    tasks.add(asyncio.create_task(run()))
    return {}


async def wait(request: Request) -> Mapping[str, object]:
    """Answers once `test/open` names the same gate."""
    await gates.setdefault(str(request.params["gate"]), asyncio.Event()).wait()
    return {}


async def open_gate(request: Request) -> Mapping[str, object]:
    """Opens a gate."""
    gates.setdefault(str(request.params["gate"]), asyncio.Event()).set()
    return {}


async def stray(request: Request) -> Mapping[str, object]:
    """Writes where it must not, in every way that Python has."""
    print("stray print")
    sys.stdout.write("stray write\n")
    sys.stdout.flush()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('stray child'); input()")
    return {"child": await child.wait()}


async def state(request: Request) -> Mapping[str, object]:
    """What is held, in numbers."""
    current = asyncio.current_task()
    return {
        "streams": len(hub.streams),
        "endings": dict(hub.endings),
        "tasks": len([task for task in asyncio.all_tasks() if task is not current]),
        "threads": threading.active_count(),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **progress,
    }


async def blob(request: Request) -> Mapping[str, object]:
    """A large answer."""
    return {"blob": "x" * int(str(request.params["size"]))}


async def stop(request: Request) -> Mapping[str, object]:
    """Publishes, and shuts the hub down at once."""
    await hub.publish(*events(request))
    tasks.add(asyncio.create_task(hub.aclose()))
    return {}


options: dict[str, Any] = json.loads(sys.argv[1])
uvloop = options.pop("uvloop", False)
if "limits" in options:
    options["limits"] = Limits(**options["limits"])
hub = Hub(
    methods={
        "test/publish": publish,
        "test/task": publish_from_task,
        "test/thread": publish_from_thread,
        "test/storm": storm,
        "test/wait": wait,
        "test/open": open_gate,
        "test/stray": stray,
        "test/state": state,
        "test/blob": blob,
        "test/stop": stop,
        "tools/list": tools,
    },
    **options,
)

if __name__ == "__main__":
    print("stray banner")
    if uvloop:
        import uvloop as loops

        loops.run(hub.serve_stdio())
    else:
        asyncio.run(hub.serve_stdio())
    logging.getLogger("tests").info("served")
