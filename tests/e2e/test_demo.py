"""`make demo`: the real script with its real commands, on a copy of the examples."""

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.anyio

LIMIT = 40  # seconds, a bound on a machine with much else to do


@pytest.fixture
def examples(tmp_path: Path, project: Path) -> Path:
    """A copy of examples/, so that the edits of a test stay out of the checkout."""
    ignore = shutil.ignore_patterns("today.md", "__pycache__")
    return shutil.copytree(project / "examples", tmp_path / "examples", ignore=ignore)


@contextlib.asynccontextmanager
async def demo(examples: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The running demo, its output and errors in one pipe."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(examples / "demo.py"),
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT):
            yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def line_with(process: asyncio.subprocess.Process, *words: str) -> str:
    """Reads on until a line has all these words."""
    assert process.stdout is not None
    seen = []
    async for line in process.stdout:
        seen.append(line.decode())
        if all(word in seen[-1] for word in words):
            return seen[-1]
    raise AssertionError(f"the output ended without {words}:\n{''.join(seen)}")


async def rest(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.read()).decode()


async def test_once_shows_the_edit_and_ends(examples: Path) -> None:
    async with demo(examples, "--once") as process:
        output = await rest(process)
        assert await process.wait() == 0
    assert any("updated" in line and "today.md" in line for line in output.splitlines())
    assert "Traceback" not in output
    assert "Edit, add" not in output  # nobody can, it ends
    assert "The demo wrote this" in (examples / "notes" / "today.md").read_text("utf-8")


async def test_edits_by_hand_are_seen_until_ctrl_c(examples: Path) -> None:
    async with demo(examples) as process:
        await line_with(process, "not honored")
        await line_with(process, "Edit, add or delete")
        await line_with(process, "today.md")
        (examples / "notes" / "shopping.md").write_text("- a drum\n", "utf-8")
        await line_with(process, "updated", "shopping.md")
        process.send_signal(signal.SIGINT)
        output = await rest(process)
        assert await process.wait() == 0
        assert "Traceback" not in output
        assert "completed" in output
