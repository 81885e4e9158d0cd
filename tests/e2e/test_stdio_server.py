"""stdio as it is in the field: a server of its own process behind real pipes, on asyncio and on uvloop."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.core.frames import ODD_IDS, Message, brief, name, same_id, tag
from tests.lines_client import (
    ACK,
    ALL,
    LIMIT,
    SERVER,
    TOOLS,
    Lines,
    cancel,
    encode,
    listen,
    request,
    server,
)

pytestmark = pytest.mark.anyio
LOOPS = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


def run(*, stdin: Any, stdout: Any = subprocess.PIPE, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs the server on files instead of pipes, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(SERVER.parent.parent), "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-W", "error", str(SERVER), json.dumps(options)],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=LIMIT,
        check=False,
    )


def tidy(stderr: str) -> bool:
    """Whether stderr tells of no trouble."""
    return "Traceback" not in stderr and "never retrieved" not in stderr and "Warning" not in stderr


# -- stdout is for messages alone


@pytest.mark.clause("T1", "T5")
@LOOPS
async def test_whatever_else_is_printed_goes_to_stderr(uvloop: bool) -> None:
    """By a banner before the start, a handler, a child process: `Lines` reads nothing but messages."""
    async with server(uvloop=uvloop) as client:
        await client.listen(TOOLS)
        assert (await client.call("test/stray"))["child"] == 1, "a child must find its stdin at the end"
        await client.quiet()
        client.end_input()
        assert [name(message) for message in await client.rest()] == ["result"]
        stderr = await client.stderr()
    for stray in ("banner", "print", "write", "child"):
        assert f"stray {stray}" in stderr


@pytest.mark.clause("T5")
@LOOPS
async def test_nothing_is_written_before_the_first_request(uvloop: bool) -> None:
    async with server(uvloop=uvloop) as client:
        client.end_input()
        assert await client.rest() == []
        assert await client.exit_code() == 0


# -- The main path


@pytest.mark.clause("T2", "R15")
@pytest.mark.field("F43")
@LOOPS
async def test_a_list_and_a_cancel_while_a_listen_is_open(uvloop: bool) -> None:
    async with server(uvloop=uvloop) as client:
        await client.listen(TOOLS, 1)
        await client.send(request("test/wait", {"gate": "a"}, 2), request("tools/list", id=3))
        assert "result" in await client.answer(3)
        await client.send(cancel(1))
        await client.quiet()
        assert (await client.call("test/state"))["endings"] == {"cancelled": 1}
        await client.call("test/publish")
        await client.quiet()
        await client.send(request("test/open", {"gate": "a"}, 4))
        assert {(await client.receive())["id"] for _ in range(2)} == {2, 4}


@pytest.mark.clause("R6", "R4")
@pytest.mark.field("F44")
async def test_overlapping_filters_get_tagged_copies_and_one_goes_on_without_the_other() -> None:
    async with server() as client:
        await client.listen(TOOLS, "A")
        await client.listen({**TOOLS, "promptsListChanged": True}, "B")
        await client.call("test/publish")
        await client.quiet_but(["A", "B"])
        assert Counter(map(tag, events(client))) == {"A": 1, "B": 1}
        await client.send(cancel("A"))
        await client.call("test/publish")
        await client.quiet_but(["B"])
        assert Counter(map(tag, events(client))) == {"A": 1, "B": 2}


def events(client: Lines) -> list[Message]:
    """The change notifications that were seen."""
    return [message for message in client.seen if "method" in message and name(message) != ACK]


@pytest.mark.clause("R4")
@pytest.mark.field("F45")
@LOOPS
async def test_odd_ids_all_on_one_channel(uvloop: bool) -> None:
    async with server(uvloop=uvloop) as client:
        for id in ODD_IDS:
            text = json.dumps(id) if isinstance(id, str) else str(id)
            await client.send(
                json.dumps(listen(TOOLS, 0)).replace('"id": 0', f'"id": {text}').encode() + b"\n"
            )
            assert same_id(tag(await client.receive()), id), brief(id)
        await client.call("test/publish")
        client.end_input()
        tags = [tag(message) for message in [*events(client), *await client.rest()]]
        for id in ODD_IDS:
            assert sum(same_id(one, id) for one in tags) == 2, brief(id)


@pytest.mark.clause("R1", "R10")
@pytest.mark.field("F7")
@pytest.mark.parametrize("how", ["test/publish", "test/task", "test/thread"])
@LOOPS
async def test_from_wherever_it_is_published(how: str, uvloop: bool) -> None:
    async with server(uvloop=uvloop) as client:
        assert "error" not in await client.ask(how, {"uris": ["x://a"]}, "nobody listens")
        await client.quiet()
        await client.listen(ALL, 1)
        await client.ask(how, {"uris": ["x://a", "x://b"]})
        while not events(client):
            await client.receive()
        await client.quiet()
        assert [name(event) for event in events(client)] == ["resources/updated x://a"]


@pytest.mark.clause("R2", "R14", "R15", "R1")
@LOOPS
async def test_a_publisher_in_a_hot_loop(uvloop: bool) -> None:
    """Ack first, nothing but what was asked for, nothing after the end; and the channel answers meanwhile."""
    async with server(uvloop=uvloop, drain_window=0) as client:
        uris = [f"x://{number}" for number in range(20)]
        await client.send(request("test/storm", {"uris": uris}, "storm"))
        await client.answer("storm")
        filters: dict[object, set[str]] = {}
        for id in range(40):
            named = {f"x://{id % 20}", f"x://{(id + 7) % 20}"}
            filters[id] = named
            await client.send(listen({"resourceSubscriptions": sorted(named)}, id))
            if id >= 20:
                await client.send(cancel(id - 20), request("server/discover", id=f"cancelled {id - 20}"))
        await client.answer("cancelled 19")
        client.end_input()
        await client.rest()
        assert await client.exit_code() == 0
    told: dict[object, list[str]] = {}
    over: set[object] = set()
    for message in client.seen:
        if "method" not in message and str(message["id"]).startswith("cancelled"):
            over.add(int(message["id"].split()[1]))
        elif "method" in message or type(message["id"]) is int:
            assert tag(message) not in over, "something came after the cancel"
            told.setdefault(tag(message), []).append(name(message))
    for listened, named in filters.items():
        names = told.get(listened, [ACK])
        assert names[0] == ACK
        allowed = {f"resources/updated {uri}" for uri in named}
        assert set(names[1:]) <= allowed | {"result"}
        assert names.count(ACK) == 1
        if listened in over:
            assert "result" not in names
        else:
            assert names[-1] == "result"
            assert names.count("result") == 1
            assert allowed <= set(names), "it was not told while the storm blew"


@pytest.mark.field("F41")
async def test_two_hundred_changes_in_one_go_are_two_frames_at_most() -> None:
    async with server() as client:
        await client.listen({"resourceSubscriptions": ["x://a"]}, 1)
        await client.ask("test/publish", {"uris": ["x://a"] * 200})
        await client.ask("test/thread", {"uris": ["x://a"]})
        await client.quiet_but([1])
        assert 1 <= len(events(client)) <= 3
        assert events(client)[-1]["params"]["uri"] == "x://a"


# -- The end


@pytest.mark.clause("T3", "R14")
@pytest.mark.field("F39")
@LOOPS
async def test_end_of_input_with_three_listens(uvloop: bool) -> None:
    async with server(uvloop=uvloop) as client:
        for id in range(3):
            await client.listen(ALL, id)
        client.end_input()
        async with asyncio.timeout(2):
            results = await client.rest()
            assert await client.exit_code() == 0
        assert [name(message) for message in results] == ["result"] * 3
        assert {tag(message) for message in results} == {0, 1, 2}
        assert tidy(await client.stderr())


@pytest.mark.clause("R14", "T3")
@pytest.mark.field("F37")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("streams", [0, 3])
@LOOPS
async def test_signals_end_it_gracefully(number: signal.Signals, streams: int, uvloop: bool) -> None:
    async with server(uvloop=uvloop) as client:
        await client.call("server/discover")
        for id in range(streams):
            await client.listen(ALL, id)
        assert client.process is not None
        client.process.send_signal(number)
        async with asyncio.timeout(3):
            results = await client.rest()
            assert await client.exit_code() == 0
        assert Counter(map(tag, results)) == dict.fromkeys(range(streams), 1)
        assert {name(message) for message in results} <= {"result"}
        assert tidy(await client.stderr())


@pytest.mark.clause("R14")
@pytest.mark.field("F38")
@LOOPS
async def test_what_is_published_right_before_the_end_is_told_before_it(uvloop: bool) -> None:
    async with server(uvloop=uvloop, drain_window=0) as client:
        for id in range(10):
            await client.listen(TOOLS, id)
        await client.send(request("test/stop", id="stop"))
        told: dict[object, list[str]] = {}
        while sum("result" in names for names in told.values()) < 10:
            message = await client.receive()
            if message.get("id") != "stop":
                told.setdefault(tag(message), []).append(name(message))
        assert told == {id: ["tools/list_changed", "result"] for id in range(10)}


@pytest.mark.clause("R15", "T3")
@LOOPS
async def test_a_client_that_closes_everything_is_no_failure(uvloop: bool) -> None:
    """Its reading end first, with a publisher in a hot loop: broken pipes, and nobody to tell."""
    async with server(uvloop=uvloop) as client:
        await client.listen({"resourceSubscriptions": ["x://a"]}, 1)
        await client.call("test/storm", uris=["x://a"])
        client.pipe.close()
        assert await client.exit_code() == 0
        assert tidy(await client.stderr())


# -- Readers that stop


@pytest.mark.clause("D13")
@LOOPS
async def test_a_pipe_that_is_never_read_costs_a_constant(uvloop: bool) -> None:
    """Promise 3: a storm for a reader that has stopped; then it reads, and has the last state."""
    uris = [f"x://host/{number}" for number in range(2000)]
    async with server(uvloop=uvloop) as client:
        await client.listen({"resourceSubscriptions": uris}, 1)
        await client.listen(TOOLS, 2)
        await client.call("test/publish", uris=uris)
        before = (await client.call("test/state"))["peak"]
        client.pipe.pause_reading()
        await client.send(request("test/storm", {"uris": uris, "seconds": 2}, "storm"))
        await asyncio.sleep(2.5)  # nobody can see from outside when it is over
        client.pipe.resume_reading()
        await client.answer("storm")
        after = await client.call("test/state")
        assert after["published"] > 10_000
        assert after["peak"] - before < 20_000_000
        assert after["streams"] == 2
        frames = len(events(client))
        assert frames < after["published"] / 2, "what nobody read has collapsed"
        mark = len(client.seen)
        await client.call("test/publish", uris=uris)
        await client.quiet_but([1])
        assert {event["params"]["uri"] for event in events_since(client, mark)} == set(uris)


def events_since(client: Lines, mark: int) -> list[Message]:
    """The change notifications that were seen since."""
    return [message for message in client.seen[mark:] if "method" in message]


@pytest.mark.clause("D13")
@LOOPS
async def test_a_pipe_that_is_never_read_is_left_after_the_write_timeout(uvloop: bool) -> None:
    async with server(uvloop=uvloop, write_timeout=0.3) as client:
        uris = [f"x://host/{number}" for number in range(2000)]
        await client.listen({"resourceSubscriptions": uris}, 1)
        client.pipe.pause_reading()
        await client.send(request("test/storm", {"uris": uris}, "storm"))
        assert await client.exit_code() == 0
        stderr = await client.stderr()
        assert "took nothing for 0.3 s" in stderr
        assert tidy(stderr)


@pytest.mark.clause("T3")
@LOOPS
async def test_a_pipe_that_is_never_read_does_not_hold_up_the_end(uvloop: bool) -> None:
    async with server(uvloop=uvloop, drain_window=0) as client:
        uris = [f"x://host/{number}" for number in range(2000)]
        await client.listen({"resourceSubscriptions": uris}, 1)
        client.pipe.pause_reading()
        await client.send(request("test/storm", {"uris": uris}, "storm"))
        await asyncio.sleep(0.3)  # until the pipe is full, which nobody but the server can see
        assert client.process is not None
        client.process.terminate()
        async with asyncio.timeout(4):
            assert await client.exit_code() == 0
        assert tidy(await client.stderr())


# -- What stdin and stdout may be


@pytest.mark.clause("T1", "T3")
@LOOPS
async def test_files(uvloop: bool, tmp_path: Path) -> None:
    """A million requests' worth of bytes, read no faster than they are served."""
    asked = tmp_path / "in"
    lines = [encode(listen(ALL, "é"))]
    lines += [encode(request("server/discover", id=id)) for id in range(99)]
    lines += [b"\n" * 70_000, b"nonsense\n", encode(request("server/discover", id="last")), b'{"half']
    asked.write_bytes(b"".join(lines))
    with asked.open("rb") as stdin, (tmp_path / "out").open("wb") as stdout:
        done = run(stdin=stdin, stdout=stdout, uvloop=uvloop)
    assert done.returncode == 0
    assert tidy(done.stderr.decode())
    messages = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert messages[0]["method"].endswith("acknowledged")
    assert {m["id"] for m in messages if "result" in m} == {"é", "last", *range(99)}
    assert messages[-1]["id"] == "é", "the stream ends when all is answered"
    assert [m["error"]["code"] for m in messages if "error" in m] == [-32700]


@pytest.mark.clause("T3")
@LOOPS
async def test_the_null_device(uvloop: bool) -> None:
    done = run(stdin=subprocess.DEVNULL, uvloop=uvloop)
    assert (done.returncode, done.stdout) == (0, b"")
    done = run(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, uvloop=uvloop)
    assert done.returncode == 0
    assert tidy(done.stderr.decode())


@pytest.mark.clause("T3")
@LOOPS
@pytest.mark.parametrize("end", ["signal", "hangup"])
async def test_a_terminal(uvloop: bool, end: str) -> None:
    main, terminal = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), json.dumps({"uvloop": uvloop}),
        stdin=terminal, stdout=terminal, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(SERVER.parent.parent), "PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    os.close(terminal)
    try:
        text = await asyncio.to_thread(_talk, main, encode(listen(TOOLS, 1)), b"acknowledged")
        assert b"acknowledged" in text
        if end == "signal":
            process.terminate()
            async with asyncio.timeout(LIMIT):
                assert await process.wait() == 0
            assert b"resultType" in await asyncio.to_thread(os.read, main, 4096)
        else:
            os.close(main)
            main = -1
            async with asyncio.timeout(LIMIT):
                assert await process.wait() == 0
        assert process.stderr is not None
        assert tidy((await process.stderr.read()).decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        if main >= 0:
            os.close(main)


def _talk(fd: int, line: bytes, awaited: bytes) -> bytes:
    """Types a line, and reads the terminal until something stands there."""
    os.write(fd, line)
    text = b""
    while awaited not in text:
        text += os.read(fd, 4096)
    return text


async def test_closed_descriptors_are_an_error_that_says_so() -> None:
    for redirect in ("<&-", ">&-"):
        process = await asyncio.create_subprocess_shell(
            f'"{sys.executable}" "{SERVER}" "{{}}" {redirect}',
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SERVER.parent.parent)},
        )
        async with asyncio.timeout(LIMIT):
            _, stderr = await process.communicate()
        assert process.returncode == 1
        assert b"stdin or stdout is closed" in stderr


@LOOPS
async def test_a_pipe_that_others_hold_too_is_left_as_it_was(uvloop: bool) -> None:
    """Event loops set pipes to non-blocking, for everybody who has them open."""
    reading, writing = os.pipe()
    output, stdout = os.pipe()
    try:
        os.write(writing, encode(request("server/discover")))
        os.close(writing)
        done = await asyncio.to_thread(run, stdin=reading, stdout=stdout, uvloop=uvloop)
        assert done.returncode == 0
        assert os.get_blocking(reading)
        assert os.get_blocking(stdout)
        assert json.loads(os.read(output, 65_536))["id"] == 1
    finally:
        for fd in (reading, output, stdout):
            os.close(fd)


# -- Bad input, all of it on one channel


@pytest.mark.clause("T9", "T6", "D14", "D16", "A7", "R22")
@LOOPS
async def test_hostile_input_and_the_subscription_lives_on(uvloop: bool) -> None:
    async with server(uvloop=uvloop) as client:
        await client.listen(TOOLS, 1)
        deep = b'{"jsonrpc":"2.0","id":5,"method":"x","params":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001
        bad: list[tuple[Message | bytes, int]] = [
            (b"\xff\xfe\n", -32700),
            (b'{"jsonrpc":"2.0","id":1,"met\n', -32700),
            (deep + b"\n", -32700),
            (b"[]\n", -32600),
            (b'{"jsonrpc":"2.0","id":1,"result":{}}\n', -32600),
            (b"x" * 10_000_000 + b"\n", -32600),
            (listen(ALL, None), -32600),
            (listen(ALL, True), -32600),
            (listen(ALL, 1.0), -32600),
            (listen(ALL, 1), -32600),
            (listen({"toolsListChanged": "true"}, 2), -32602),
            (request("ping", id=2), -32601),
            ({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {}}, -32022),
        ]
        for line, code in bad:
            await client.send(line)
            assert (await client.receive())["error"]["code"] == code
        unanswered = {key: value for key, value in listen(ALL).items() if key != "id"}
        await client.send(unanswered, cancel("1"), cancel(1.0), cancel(True), cancel(2))
        await client.quiet()
        await client.call("test/publish")
        await client.quiet_but([1])
        assert [tag(event) for event in events(client)] == [1]
        state = await client.call("test/state")
        assert (state["streams"], state["endings"]) == (1, {})
        client.end_input()
        assert [name(message) for message in await client.rest()] == ["result"]
        assert tidy(await client.stderr())


@pytest.mark.clause("D9")
async def test_refusals_say_why_and_when_to_come_back() -> None:
    async with server(limits={"max_streams": 1}) as client:
        await client.listen(TOOLS, 1)
        await client.send(listen(TOOLS, 2))
        refusal = await client.receive()
        assert refusal["error"]["data"] == {"reason": "server_full", "retryAfter": 5}
        await client.send(cancel(1))
        await client.listen(TOOLS, 2)


@pytest.mark.clause("R15")
async def test_nothing_is_left_of_a_thousand_subscriptions() -> None:
    async with server() as client:
        await client.call("server/discover")
        before = await client.call("test/state")
        for turn in range(10):
            ids = range(turn * 100, turn * 100 + 100)
            await client.send(*(listen(ALL, id) for id in ids))
            for _ in ids:
                assert name(await client.receive()) == ACK
            await client.send(*map(cancel, ids))
        after = await client.call("test/state")
        assert after["endings"] == {"cancelled": 1000}
        assert (after["streams"], after["tasks"], after["threads"]) == (0, before["tasks"], before["threads"])
