"""A server as a child process: its start, its end, its death, and what it says on stderr."""

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import anyio
import pytest

from harken import Connection, ConnectionLost, Ending, ToolsListChanged, connect
from harken.client.stdio import StdioConnection

pytestmark = pytest.mark.anyio

# A server that acknowledges, tells of its process id in each result, and does what a test adds.
PRELUDE = """
import json, os, signal, sys, time

def say(message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()

def ack(id):
    say({"method": "notifications/subscriptions/acknowledged", "params": {
        "_meta": {"io.modelcontextprotocol/subscriptionId": id},
        "notifications": {"toolsListChanged": True}}})

def tools(id):
    say({"method": "notifications/tools/list_changed", "params": {
        "_meta": {"io.modelcontextprotocol/subscriptionId": id}}})

def serve(stop=None):
    for line in sys.stdin:
        message = json.loads(line)
        if message["method"] == "subscriptions/listen":
            ack(message["id"])
        elif "id" in message:
            say({"id": message["id"], "result": {"pid": os.getpid(), "cwd": os.getcwd(), **os.environ}})
        if message["method"] == stop:
            return message
"""


def server(code: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is only waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def pid_of(connection: Connection) -> int:
    """The server's process id, as it knows it and as we do."""
    pid = (await connection.request("tools/list"))["pid"]
    assert isinstance(pid, int)
    assert isinstance(connection, StdioConnection)
    assert connection.pid == pid
    return pid


@pytest.mark.clause("T4")
async def test_leaving_closes_stdin_and_waits(tmp_path: Path) -> None:
    done = tmp_path / "done"
    command = server(f"serve(); open({str(done)!r}, 'w').close()")
    async with connect(command) as connection, connection.listen(tools_list_changed=True):
        pid = await pid_of(connection)
    assert not is_alive(pid)
    assert done.exists(), "it was let end by itself"


@pytest.mark.clause("T4")
async def test_a_server_that_stays_is_terminated_then_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("harken.client.stdio._GRACE", 0.3)
    asked = tmp_path / "asked"
    code = f"""
        signal.signal(signal.SIGTERM, lambda *_: open({str(asked)!r}, "w").close())
        serve()
        while True:
            time.sleep(0.05)
    """
    async with connect(server(code)) as connection:
        pid = await pid_of(connection)
    assert asked.exists()
    assert not is_alive(pid)


@pytest.mark.clause("T4")
async def test_a_server_that_does_not_read_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harken.client.stdio._GRACE", 0.3)
    monkeypatch.setattr("harken.client.channel._FLUSH_TIME", 0.1)
    with anyio.fail_after(10):
        async with connect(server("serve('stop'); time.sleep(60)")) as connection:
            pid = await pid_of(connection)
            await connection.notify("stop")
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(connection.request, "tools/call", {"name": "x" * 100_000})
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
    assert not is_alive(pid)


@pytest.mark.clause("T4", "R18")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_death_is_noticed_at_once_by_every_subscription(number: signal.Signals) -> None:
    async with connect(server("serve()")) as connection:
        async with (
            connection.listen(tools_list_changed=True) as first,
            connection.listen(tools_list_changed=True) as second,
        ):
            os.kill(await pid_of(connection), number)
            with anyio.fail_after(5):
                assert [event async for event in first] == []
                assert [event async for event in second] == []
            assert (first.ending, second.ending) == (Ending.LOST, Ending.LOST)
            assert f"status {-number}" in str(first.error)
        with pytest.raises(ConnectionLost):
            await connection.request("tools/list")


@pytest.mark.clause("T4")
async def test_what_a_dying_server_has_said_is_still_heard() -> None:
    code = """
        id = serve("subscriptions/listen")["id"]
        tools(id)
        say({"id": id, "result": {"resultType": "complete"}})
        os._exit(3)
    """
    async with (
        connect(server(code)) as connection,
        connection.listen(tools_list_changed=True) as subscription,
    ):
        with anyio.fail_after(5):
            assert [event async for event in subscription] == [ToolsListChanged()]
        assert subscription.ending is Ending.COMPLETED


@pytest.mark.clause("T4")
async def test_death_is_noticed_where_a_grandchild_keeps_stdout_open() -> None:
    code = """
        import subprocess
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        os.environ["GRANDCHILD"] = str(subprocess.Popen(sleep, stdin=subprocess.DEVNULL).pid)
        serve("die")
        os._exit(1)
    """
    async with connect(server(code)) as connection:
        grandchild = int(str((await connection.request("tools/list"))["GRANDCHILD"]))
        try:
            async with connection.listen(tools_list_changed=True) as subscription:
                await connection.notify("die")
                with anyio.fail_after(5):
                    assert [event async for event in subscription] == []
                assert subscription.ending is Ending.LOST
        finally:
            os.kill(grandchild, signal.SIGKILL)


@pytest.mark.clause("T4")
async def test_a_server_that_closes_its_stdout_is_lost() -> None:
    code = "serve('subscriptions/listen'); os.close(1); serve()"
    async with (
        connect(server(code)) as connection,
        connection.listen(tools_list_changed=True) as subscription,
    ):
        with anyio.fail_after(5):
            assert [event async for event in subscription] == []
        assert subscription.ending is Ending.LOST
        assert "closed its stdout" in str(subscription.error)


@pytest.mark.clause("T4", "T1")
async def test_stderr_is_handed_over_line_by_line_and_is_no_failure() -> None:
    lines: list[str] = []
    code = r"""
        sys.stderr.buffer.write(b"first\nsec" + b"ond \xff\n" + b"x" * 100_000 + b"\nERROR\n")
        sys.stderr.flush()
        serve()
    """
    async with (
        connect(server(code), stderr=lines.append) as connection,
        connection.listen(tools_list_changed=True) as subscription,
    ):
        assert subscription.ending is None
    assert lines == ["first", "second \ufffd", "ERROR"]


async def test_stderr_goes_to_our_own_without_a_taker(capfd: pytest.CaptureFixture[str]) -> None:
    async with connect(server("print('hello', file=sys.stderr, flush=True); serve()")) as connection:
        await connection.request("tools/list")
    assert "hello" in capfd.readouterr().err


async def test_environment_and_folder_are_the_caller_s(tmp_path: Path) -> None:
    environment = {**os.environ, "HARKEN_TEST": "yes"}
    async with connect(server("serve()"), env=environment, cwd=tmp_path) as connection:
        found = await connection.request("tools/list")
    assert found["HARKEN_TEST"] == "yes"
    assert Path(str(found["cwd"])).name == tmp_path.name


async def test_ctrl_c_is_not_for_the_server() -> None:
    async with connect(server("serve()")) as connection:
        assert os.getpgid(await pid_of(connection)) != os.getpgid(0)


@pytest.mark.parametrize(
    ("code", "wrote"), [("", ""), ("print('hello')", " It wrote 'hello'."), ("print('1')", " It wrote '1'.")]
)
async def test_a_program_that_ends_without_an_answer(code: str, wrote: str) -> None:
    command = [sys.executable, "-c", f"{code}; raise SystemExit(3)" if code else "raise SystemExit(3)"]
    with anyio.fail_after(20), pytest.raises(ConnectionLost) as caught:
        async with connect(command) as connection:
            await connection.request("tools/list")
    question = "before it answered; does it speak MCP on its stdin and stdout?"
    assert str(caught.value) == f"{sys.executable!r} has ended with status 3 {question}{wrote}"


async def test_a_command_that_is_not_there() -> None:
    with pytest.raises(ConnectionLost, match=r"cannot start 'no-such-command'"):
        async with connect(["no-such-command"]):
            pytest.fail("there is nothing to connect to")


async def test_an_error_in_the_body_is_itself_and_leaves_no_child() -> None:
    pid = 0

    async def fail() -> None:
        nonlocal pid
        async with connect(server("serve()")) as connection, connection.listen(tools_list_changed=True):
            pid = await pid_of(connection)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert not is_alive(pid)


async def test_a_cancelled_body_leaves_no_child() -> None:
    pid = 0
    with anyio.CancelScope() as scope:
        async with (
            connect(server("serve()")) as connection,
            connection.listen(tools_list_changed=True) as subscription,
        ):
            pid = await pid_of(connection)
            scope.cancel()
            await anext(subscription)
    assert not is_alive(pid)


def test_a_task_that_is_cancelled_twice_leaves_no_child() -> None:
    """As by a second Ctrl-C, while the first one's child is still being waited for."""
    pid = 0

    async def run(opened: asyncio.Event) -> None:
        nonlocal pid
        async with connect(server("serve(); time.sleep(60)")) as connection:
            pid = await pid_of(connection)
            opened.set()
            await asyncio.Event().wait()

    async def cancel_twice() -> None:
        opened = asyncio.Event()
        task = asyncio.create_task(run(opened))
        async with asyncio.timeout(10):
            await opened.wait()
            died, descriptor = asyncio.Event(), os.pidfd_open(pid)
            asyncio.get_running_loop().add_reader(descriptor, died.set)
            task.cancel()
            await asyncio.wait([task], timeout=0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await died.wait()
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    asyncio.run(cancel_twice())


@pytest.mark.clause("R17")
async def test_a_connection_is_used_once() -> None:
    connection = connect(server("serve()"))
    with pytest.raises(RuntimeError, match="not open"):
        await connection.request("tools/list")
    async with connection:
        with pytest.raises(RuntimeError, match="once"):
            async with connection:
                pytest.fail("it is open already")
        await connection.aclose()
        with pytest.raises(ConnectionLost, match="closed"):
            await connection.request("tools/list")
