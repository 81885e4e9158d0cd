"""What `harken listen` writes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import anyio
import pytest

from harken.cli.output import JSONLines, Lines, Output, hush, open_output, printable, reader_gone, room
from harken.client.status import WatchState, WatchStatus
from harken.core.demux import Ending
from harken.core.events import (
    Event,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from harken.core.filters import Filter

pytestmark = pytest.mark.anyio

EVERYTHING = Filter(True, True, True, ("file:///a", "file:///b"))


def json_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """What was written, each line's time checked and taken out."""
    messages = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for message in messages:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", message["time"])
        assert datetime.fromisoformat(message.pop("time")).tzinfo is not None
    return messages


@pytest.mark.clause("R11")
def test_the_json_ack_names_what_is_honored_and_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    honored = Filter(tools_list_changed=True, resource_subscriptions=("file:///a",))
    JSONLines().ack(honored, EVERYTHING.without(honored), 7)
    assert json_lines(capsys) == [
        {
            "type": "ack",
            "honored": {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]},
            "unsupported": {
                "promptsListChanged": True,
                "resourcesListChanged": True,
                "resourceSubscriptions": ["file:///b"],
            },
            "subscriptionId": 7,
        }
    ]


def test_the_json_events_are_named_as_they_are_published(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = [
        ToolsListChanged(),
        PromptsListChanged(),
        ResourcesListChanged(),
        ResourceUpdated("file:///ü"),
    ]
    for event in events:
        JSONLines().event(event)
    assert json_lines(capsys) == [
        {"type": "event", "event": "tools_list_changed"},
        {"type": "event", "event": "prompts_list_changed"},
        {"type": "event", "event": "resources_list_changed"},
        {"type": "event", "event": "resource_updated", "uri": "file:///ü"},
    ]


def test_the_json_ending_is_its_word(capsys: pytest.CaptureFixture[str]) -> None:
    JSONLines().ended(Ending.COMPLETED, None)
    assert json_lines(capsys) == [{"type": "ended", "ending": "completed"}]
    JSONLines().ended(Ending.LOST, "the cable is cut")
    assert json_lines(capsys) == [
        {"type": "error", "message": "the cable is cut"},
        {"type": "ended", "ending": "lost"},
    ]


def test_the_json_of_a_watch(capsys: pytest.CaptureFixture[str]) -> None:
    JSONLines().state(WatchStatus(WatchState.LIVE))
    JSONLines().resync()
    JSONLines().state(WatchStatus(WatchState.BACKING_OFF, Ending.LOST, 1.23456))
    assert json_lines(capsys) == [
        {"type": "state", "state": "live", "reason": None, "delay": None},
        {"type": "resync"},
        {"type": "state", "state": "backing_off", "reason": "lost", "delay": 1.235},
    ]


def test_a_watch_in_words(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    output.state(WatchStatus(WatchState.LIVE))
    output.resync()
    output.state(WatchStatus(WatchState.BACKING_OFF, Ending.LOST, 1.26))
    assert plain(capsys)[0] == [
        "state: live",
        "everything may have changed",
        "state: backing_off, next attempt in 1.3 s",
    ]


def test_a_fault_is_an_error(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    JSONLines().fault("oops")
    assert json_lines(capsys) == [{"type": "error", "message": "a fault in harken: oops"}]
    output.fault("oops")
    assert plain(capsys) == ([], ["a fault in harken, please report it: oops"])


def test_what_is_no_message_stays_out_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    JSONLines().keep_alive(15.04)
    JSONLines().warning("careful")
    assert capsys.readouterr() == ("", "keep-alive after 15.0 s\nwarning: careful\n")


def plain(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """The lines on stdout and stderr, each line's time checked and taken out."""
    captured = capsys.readouterr()
    lines = captured.out.splitlines(), captured.err.splitlines()
    for line in lines[0] + lines[1]:
        assert datetime.fromisoformat(line.split("  ")[0]).tzinfo is not None
    return [line.split("  ", 1)[1] for line in lines[0]], [line.split("  ", 1)[1] for line in lines[1]]


@pytest.fixture
def output() -> Output:
    """Plain lines: under pytest stdout is no terminal."""
    opened = open_output(False)
    assert isinstance(opened, Lines)
    return opened


@pytest.mark.parametrize(
    ("honored", "words"),
    [
        (EVERYTHING, "listening for tools, prompts, resources and 2 URIs"),
        (Filter(tools_list_changed=True), "listening for tools"),
        (Filter(prompts_list_changed=True, resource_subscriptions=("x:/",)), "listening for prompts and x:/"),
        (Filter(), "listening for nothing"),
    ],
)
def test_the_ack_in_words(
    capsys: pytest.CaptureFixture[str], output: Output, honored: Filter, words: str
) -> None:
    output.ack(honored, Filter(), 1)
    assert plain(capsys) == ([words], [])


@pytest.mark.clause("R11")
def test_what_is_not_honored_in_words(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    output.ack(Filter(True), EVERYTHING.without(Filter(True)), 1)
    assert plain(capsys)[0] == [
        "listening for tools",
        "not honored by the server: prompts, resources, file:///a, file:///b",
    ]


def test_what_is_not_honored_is_told_once(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    for unsupported in (Filter(True), Filter(True), Filter(True, True)):
        output.ack(Filter(resources_list_changed=True), unsupported, 1)
    assert [line for line in plain(capsys)[0] if line.startswith("not")] == [
        "not honored by the server: tools",
        "not honored by the server: tools, prompts",
    ]


def test_events_in_words(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged(), ResourceUpdated("x:/a")):
        output.event(event)
    output.keep_alive(14.96)
    assert plain(capsys)[0] == [
        "the list of tools changed",
        "the list of prompts changed",
        "the list of resources changed",
        "updated x:/a",
        "keep-alive after 15.0 s",
    ]


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_is_a_sentence_with_its_word(
    capsys: pytest.CaptureFixture[str], output: Output, ending: Ending
) -> None:
    output.ended(ending, "why")
    out, err = plain(capsys)
    graceful = ending in {"completed", "cancelled_by_server", "nothing_honored", "closed"}
    (line,) = out if graceful else err
    sentence = "" if ending == "lost" else "[a-z ]+: "
    assert re.fullmatch(rf"ended \({ending}\): {sentence}why", line)


def test_warnings_go_to_stderr(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    output.warning("careful")
    assert plain(capsys) == ([], ["warning: careful"])


def test_a_server_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str], output: Output) -> None:
    output.event(ResourceUpdated("x:/\x1b[2J\n2026  forged\u202e"))
    assert plain(capsys)[0] == ["updated x:/\\x1b[2J\\n2026  forged\\u202e"]
    assert printable("naïve 世界") == "naïve 世界"


def test_on_a_terminal_there_are_colours_and_lines_are_not_broken() -> None:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    code = textwrap.dedent("""
        from harken.cli.output import open_output
        from harken.core.demux import Ending
        from harken.core.events import ResourceUpdated

        output = open_output(False)
        output.event(ResourceUpdated("x:/" + "[red]" * 40))
        output.ended(Ending.COMPLETED, None)
    """)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"} | {"NO_COLOR": ""}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=slave, env=environment, timeout=30)
    os.close(slave)
    shown = b""
    while not shown.rstrip().endswith(b"stream\x1b[0m"):
        shown += os.read(master, 4096)
    os.close(master)
    lines = shown.decode().splitlines()
    assert len(lines) == 2
    assert "[red]" * 40 in lines[0]
    assert "\x1b[" in lines[0]
    assert re.match(r"\x1b\[2m\d\d:\d\d:\d\d", lines[0])


@contextlib.contextmanager
def stdout_is(descriptor: int) -> Iterator[None]:
    """Within it, what is printed goes to `descriptor`. (pytest sets stdout anew after the fixtures.)"""
    with os.fdopen(descriptor, "w") as stdout, contextlib.redirect_stdout(stdout):
        yield


def fill(descriptor: int) -> None:
    """Writes into a pipe until it takes no more."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"x" * 4096)


async def test_a_full_pipe_is_waited_for() -> None:
    reading, writing = os.pipe()
    with anyio.fail_after(10), stdout_is(writing):
        await room()
        fill(writing)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(room)
            await anyio.wait_all_tasks_blocked()
            os.read(reading, 65536)
    os.close(reading)


async def test_a_reader_that_leaves_is_noticed() -> None:
    reading, writing = os.pipe()
    with anyio.fail_after(10), stdout_is(writing):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader_gone)
            await anyio.wait_all_tasks_blocked()
            os.close(reading)
        hush()
        print("into nothing", flush=True)


async def test_a_file_has_no_reader_that_could_leave(tmp_path: Path) -> None:
    with anyio.fail_after(10), stdout_is(os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)):
        await room()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader_gone)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
