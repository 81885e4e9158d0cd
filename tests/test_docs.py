"""The examples in README and docs: each is a program that runs as it stands."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from harken import Filter

PAGES = ["README.md", "docs/server.md", "docs/client.md"]
_BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = "8000"  # the examples' own; a free one takes its place


def examples(project: Path, page: str) -> dict[str, str]:
    return dict(_BLOCK.findall((project / page).read_text()))


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@pytest.fixture
def folder(tmp_path: Path, project: Path, port: int) -> Path:
    """Every example as a file of its name."""
    for page in PAGES:
        for name, text in examples(project, page).items():
            (tmp_path / name).write_text(text.replace(_PORT, str(port)))
    return tmp_path


@contextmanager
def serving(folder: Path, module: str, port: int) -> Iterator[None]:
    """`uvicorn module:app`, until the test is done."""
    command = [sys.executable, "-m", "uvicorn", f"{module}:app", "--port", str(port), "--log-level", "info"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "running on" in line:
                break
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)


@contextmanager
def running(command: list[str], folder: Path, output: str) -> Iterator[IO[str]]:
    """What a program prints, until the test is done with it, or for half a minute."""
    stdout, stderr = (subprocess.PIPE if name == output else None for name in ("stdout", "stderr"))
    with subprocess.Popen(command, cwd=folder, text=True, stdout=stdout, stderr=stderr) as process:
        limit = threading.Timer(30, process.kill)
        limit.start()
        try:
            stream = process.stdout or process.stderr
            assert stream is not None
            yield stream
        finally:
            limit.cancel()
            process.kill()


def run(folder: Path, name: str) -> str:
    command = [sys.executable, name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(folder: Path, port: int, call: str, path: str = "/mcp") -> str:
    """What a client prints that runs `call` on a connection to the server."""
    program = (
        "import asyncio, harken\n"
        "async def main():\n"
        f"    async with harken.connect('http://127.0.0.1:{port}{path}') as connection:\n"
        f"        {call}\n"
        "asyncio.run(main())\n"
    )
    (folder / "asking.py").write_text(program)
    return run(folder, "asking.py")


def test_every_python_block_is_an_example(project: Path) -> None:
    for page in PAGES:
        text = (project / page).read_text()
        assert len(_BLOCK.findall(text)) == text.count("```python"), page


def test_the_readme_runs(folder: Path, port: int) -> None:
    with serving(folder, "server", port):
        printed = run(folder, "client.py")
    assert "honored: sensor://kitchen/temperature" in printed
    assert "ResourceUpdated(uri='sensor://kitchen/temperature')" in printed


def test_listen_runs(folder: Path, port: int) -> None:
    with serving(folder, "server", port):
        printed = run(folder, "listen.py")
    assert "read again: sensor://kitchen/temperature" in printed
    assert "not honored: Filter(tools_list_changed=True" in printed
    assert "ended: closed" in printed


def test_watch_runs(folder: Path, port: int) -> None:
    with serving(folder, "server", port):
        printed = run(folder, "watch.py").splitlines()
    assert printed == [
        "live None None",
        f"fetch everything; poll these: {Filter()!r}",
        "read again: sensor://kitchen/temperature",
        "closed closed None",
    ]


def test_mirror_keeps_its_copies_right(folder: Path, port: int) -> None:
    notes = folder / "notes"
    notes.mkdir()
    (notes / "today.md").write_text("drum")
    harken = str(Path(sys.executable).with_name("harken"))
    with (
        running([harken, "serve", str(notes), "--port", str(port)], folder, "stderr") as served,
        running([sys.executable, "-u", "mirror.py"], folder, "stdout") as printed,
    ):
        assert served.readline().startswith("http")
        assert printed.readline() == "fetched all: 1\n"
        (notes / "today.md").write_text("drums")
        assert printed.readline() == f"fetched {(notes / 'today.md').as_uri()}\n"
        (notes / "more.md").write_text("a bell")
        assert "fetched all: 2\n" in printed


def test_several_on_stdio_runs(folder: Path) -> None:
    printed = run(folder, "several.py")
    assert "Filter(tools_list_changed=True" in printed
    assert "'tools': []" in printed


def test_around_the_official_sdk(folder: Path, port: int) -> None:
    call = (
        "async with connection.listen(tools_list_changed=True) as changes:\n"
        "            tool = {'name': 'learn', 'arguments': {'name': 'sing'}}\n"
        "            await connection.request('tools/call', tool)\n"
        "            print(await anext(aiter(changes)))"
    )
    with serving(folder, "sdk_server", port):
        assert "ToolsListChanged()" in ask(folder, port, call)


def test_around_fastmcp(folder: Path, port: int) -> None:
    call = (
        "async with connection.listen(resource_subscriptions=['counter://now']) as changes:\n"
        "            print(changes.honored)"
    )
    with serving(folder, "fastmcp_server", port):
        assert "counter://now" in ask(folder, port, call)


def test_mounted(folder: Path, port: int) -> None:
    with serving(folder, "mounted", port):
        assert "'listChanged': True" in ask(folder, port, "print(await connection.discover())", "/api/mcp")
